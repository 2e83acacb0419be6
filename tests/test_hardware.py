"""Profiles of machines: what they say, and which files are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import msparallel.hardware
from msparallel.hardware import hardware_names, load_hardware, read_hardware

pytestmark = pytest.mark.pure
PROFILES = Path(msparallel.hardware.__file__).parent / "profiles"
COMPARISON = sorted(path.stem for path in (PROFILES / "comparison").glob("*.yaml"))


@pytest.mark.parametrize("name", [*hardware_names(), *COMPARISON])
def test_every_profile_is_whole_and_says_where_its_numbers_are_from(name):
    machine = load_hardware(name)
    assert machine.name == name and machine.links[-1].joins is None
    text = next(PROFILES.rglob(f"{name}.yaml")).read_text()
    for number in ("tflops", "bandwidth_gb_s", "kernel_us", "attention_efficiency"):
        assert number in text
    assert "Source" in text or "assumed" in text


def test_a_recipe_names_only_machines_that_mindspore_trains_on():
    assert {load_hardware(name).target for name in hardware_names()} == {"CPU", "Ascend"}
    assert {load_hardware(name).target for name in COMPARISON} == {"CUDA"}
    assert not set(COMPARISON) & set(hardware_names())


def test_the_cube_units_of_a_chip_give_its_peak():
    """Cores x 16x16x16 multiply-adds x clock, as CANN's platform configuration has them."""
    for name, cores in (("atlas_800t_a2", 20), ("atlas_900_a2", 24), ("atlas_900_a3", 24)):
        assert load_hardware(name).matrix.tflops["bfloat16"] == pytest.approx(
            cores * 2 * 16**3 * 1.8e9 / 1e12, rel=1e-3
        )


def test_an_unknown_name_is_a_key_error():
    with pytest.raises(KeyError):
        load_hardware("../profiles/cpu")


def test_no_more_is_usable_than_there_is(tmp_path):
    (tmp_path / "bad.yaml").write_text(GOOD.replace("usable_gib: 58.0", "usable_gib: 65.0"))
    with pytest.raises(ValueError, match=r"usable_gib: 65 of 64 \(memory_gib\)"):
        read_hardware(tmp_path / "bad.yaml")


GOOD = (PROFILES / "atlas_800t_a2.yaml").read_text()


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "key", "told"),
    [
        ("bfloat16: 294.9", "bfloat16: 294.9e+12", "matrix.tflops.bfloat16", "to 20000; the unit is TFLOP/s"),
        ("bfloat16: 294.9", "bfloat16: -1.0", "matrix.tflops.bfloat16", "greater than or equal to 0.001"),
        ("bfloat16: 294.9", "int4: 294.9", "matrix.tflops.int4", "'float32', 'float16' or 'bfloat16'"),
        ("bandwidth_gb_s: 1600.0", "bandwidth_gb_s: 1.6e+12", "memory.bandwidth_gb_s", "the unit is GB/s"),
        ("bandwidth_gb_s: 25.0", "bandwidth_gb_s: 0.0", "links.1.bandwidth_gb_s", "greater than or equal to 0.01"),
        ("efficiency: 0.87", "efficiency: 87.0", "matrix.efficiency", "less than or equal to 1; it is a share"),
        ("latency_us: 1.5", "latency_us: 1.5e-6", "links.1.latency_us", "the unit is a millionth of a second"),
        ("kernel_us: 2.0", "kernel_us: two", "launch.kernel_us", "valid number"),
        ("topology: mesh", "topology: ring", "links.0.topology", "'switch' or 'mesh'"),
        ("devices_per_node: 8", "devices_per_node: 0", "devices_per_node", "greater than or equal to 1"),
        ("chip: Ascend 910B", "chips: Ascend 910B", "chip", "is missing"),
        ("usable_gib: 58.0", "usable_gib: 58.0e+9", "usable_gib", "the unit is GiB"),
        ("usable_gib: 58.0", "usable_gib: 5.8e1", "usable_gib", "is text to YAML"),
        ("usable_gib: 58.0", "usable_gib: '58'", "usable_gib", "is text to YAML"),
        ("usable_gib: 58.0", "usable_gib: 58GiB", "usable_gib", "valid number"),
        ("usable_gib: 58.0", "usable_gib: .nan", "usable_gib", "nan"),
        ("usable_gib: 58.0", "usable_gib: .inf", "usable_gib", "the unit is GiB"),
        ("usable_gib: 58.0", "usable_gib: true", "usable_gib", "valid number"),
        ("usable_gib: 58.0", "usable_gib:  # forgotten", "usable_gib", "nothing: Input should be a valid number"),
        ("usable_gib: 58.0", "usable_gib: 0.0", "usable_gib", "0 of 64"),
        ("memory_gib: 64.0", "memory_gib: 0", "memory_gib", "0 means the host's memory"),
        ("devices_per_node: 8", "devices_per_node: 100000000", "devices_per_node", "less than or equal to 4096"),
        ("devices_per_node: 8", "devices: 8", "devices_per_node", "is missing"),
        ("efficiency: 0.87", "efficiency: .nan", "matrix.efficiency", "it is a share of the peak"),
        ("bandwidth_gb_s: 1600.0", "bandwidth_gb_s: 1.6", "memory.bandwidth_gb_s", "Is one in another unit?"),
        ("bandwidth_gb_s: 25.0", "bandwidth_gb_s: 25000.0", "links.1.bandwidth_gb_s", "Is one in another unit?"),
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_meant_is_refused_with_its_line(tmp_path, old, new, key, told):
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError) as caught:
        read_hardware(path)
    place, _, rule = str(caught.value).partition("  ")
    assert rule.startswith(f"{key}: ") and told in rule
    assert place == f"{path}:{1 if 'missing' in rule else line_of(path.read_text(), new)}"
    assert "\n" not in rule


def test_a_missing_number_is_refused_where_it_should_stand(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text("\n".join(line for line in GOOD.splitlines() if "collective_us" not in line))
    with pytest.raises(
        ValueError, match=rf"bad\.yaml:{line_of(path.read_text(), 'launch:')}  launch.collective_us: is miss"
    ):
        read_hardware(path)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("joins: null", "joins: 64", "the last one, and no other, joins any number"),
        ("joins: 8,", "joins: 6,", "6 devices are neither a part of a node of 8 nor whole nodes"),
    ],
)
def test_links_widen_from_devices_to_the_cluster(tmp_path, old, new, told):
    path = tmp_path / "bad.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ValueError, match=told):
        read_hardware(path)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "empty"),
        (b"# later\n", "empty"),
        (b"- 1", "no mapping"),
        (b"7", "no mapping"),
        (b"a: [", "not YAML"),
        (b"a: 1\n---\nb: 2\n", "second document"),
        (b"a: " + b"[" * 3000 + b"]" * 3000, "levels deep"),
        (b"a: !!python/name:os.system\n", "tag"),
        (b"a: &a [1]\nb: *a\n<<: *a\n", "Merge keys"),
        (b"chip: \xfcber", "0xfc is not UTF-8"),
        (b"chip: a\0b", "not allowed"),
        (b"# " + b"x" * 70_000, "KiB"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_name(tmp_path, data, told):
    path = tmp_path / "bad.yaml"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"bad\.yaml:.*{told}"):
        read_hardware(path)


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text(GOOD.replace("usable_gib: 58.0", "usable_gib: 58.0\nusable_gib: 30.0"))
    first = line_of(path.read_text(), "usable_gib: 58.0")
    with pytest.raises(ValueError, match=rf"twice\.yaml:{first + 1}  usable_gib: stands on line {first} too"):
        read_hardware(path)
