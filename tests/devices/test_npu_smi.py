"""npu-smi's table and its other outputs: every layout, every way of being cut, and what npu-smi itself refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from devices.npu_smi_texts import COMMON, ECC, INFO_310P, INFO_950, MAP_A3, USAGES, info_a2, info_a3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.devices.npu_smi import parse_info
from msparallel.devices.npu_smi_details import parse_details, parse_map
from msparallel.devices.tool_text import CODES, DeviceUnavailable
from msparallel.errors import UserError

pytestmark = pytest.mark.pure
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


def test_a_card_with_one_chip():
    table = parse_info(info_a2((0, 5), hbm="31859/ 32768", processes={5: [(4711, "python3.11", 28170)]}), "f")
    assert table.version == "24.1.0"
    first, second = table.devices
    assert (second.npu_id, second.chip_id, second.phy_id, second.name) == (5, 0, None, "910B2")
    assert (first.memory_used_mib, first.memory_total_mib, first.memory_kind) == (31859, 32768, "HBM")
    assert (first.power_w, first.temperature_c, first.aicore_percent) == (91.5, 44, 0)
    assert first.bus_id == "0000:C1:00.0" and first.healthy and first.label == "NPU 0"
    assert table.idle == (0,) and table.has_process_table
    assert [(p.pid, p.name, p.memory_mib) for p in table.processes_of(second)] == [(4711, "python3.11", 28170)]
    assert table.processes_of(first) == ()


def test_ddr_beside_hbm_is_not_the_devices_memory():
    device = parse_info(info_a2(name="910B", ddr="2346 / 15567", hbm="4    / 32768"), "f").devices[0]
    assert (device.memory_kind, device.memory_used_mib, device.ddr_used_mib) == ("HBM", 4, 2346)


def test_two_dies_a_card():
    table = parse_info(info_a3(range(8)), "f")
    assert [d.phy_id for d in table.devices] == list(range(16))
    assert [d.power_w for d in table.devices[:2]] == [178.5, None]
    assert table.devices[3].label == "NPU 1 chip 1"
    assert not table.has_process_table


def test_310p_has_ddr_and_ids_of_its_own():
    table = parse_info(INFO_310P, "f")
    first, second = table.devices
    assert (first.npu_id, second.chip_id, second.logic_id, first.power_w) == (2944, 1, 1, None)
    assert (first.memory_kind, first.memory_used_mib, first.memory_total_mib) == ("DDR", 1839, 21525)
    assert (second.memory_used_mib, second.memory_total_mib, second.bus_id) == (None, 21525, None)
    assert (second.hugepages_used, second.hugepages_total) == (15, 15)


def test_950_has_no_chips():
    table = parse_info(INFO_950, "f")
    assert [(d.npu_id, d.name, d.aicore_percent, d.bus_id) for d in table.devices] == [
        (0, "Ascend950PR", 100, "0000:71:00.0"), (3, "Ascend950DT", 0, None)]  # fmt: skip
    assert table.devices[0].memory_total_mib == 114688
    assert [(p.npu_id, p.pid) for p in table.processes] == [(0, 1648703)] and table.idle == (3,)


def test_processes_of_a_container_have_two_pids_and_perhaps_no_name():
    text = info_a2(processes={0: [(632268, "python3.1", 197), (9, "", 132)], 1: [(8, "a|b", "NA")]}, container=True)
    found = parse_info(text, "f").processes
    assert [(p.pid, p.name, p.memory_mib, p.pid_in_container) for p in found] == [
        (632268, "python3.1", 197, 77), (9, "", 132, 77), (8, "a|b", None, 77)]  # fmt: skip


@pytest.mark.parametrize("health", ["OK", "Warning", "Alarm", "Critical", "UNKNOWN"])
def test_health_is_told_as_it_is(health):
    device = parse_info(info_a2(health=health), "f").devices[0]
    assert device.health == health and device.healthy == (health == "OK")


def test_a_shell_around_the_table_and_left_out_parts_do_not_matter():
    text = "[root@node ~]# npu-smi info\n" + info_a2().replace("+---", "...\n+---", 1) + "...\n[root@node ~]#\n"
    assert len(parse_info(text, "f").devices) == 2
    assert len(parse_info("\n".join("> " + line for line in text.splitlines()), "f").devices) == 2
    assert len(parse_info(text.replace("\n", "\r\n"), "f").devices) == 2
    commented = "\n".join(f"# {line}" for line in text.splitlines())
    report = f"| part | version |\n|---|---|\n| CANN | 9.0.0 |\n\n{commented}"
    assert len(parse_info(report, "f").devices) == 2, "in a comment, below a table of another kind"
    assert len(parse_info(text.replace(" |\n", "\n"), "f").devices) == 2, "borders on the right cut off"


@pytest.mark.parametrize("ending", ["", "| NPU Chip | Process id | Process name | Process memory(MB) |\n"])
def test_a_device_without_its_second_line_is_refused_with_its_line(ending):
    text = "".join(info_a2((0, 1)).splitlines(keepends=True)[:-2]) + ending
    with pytest.raises(UserError, match=r"f:10  NPU 1\n.*second line of this device.*cut"):
        parse_info(text, "f")


def test_another_devices_first_line_is_no_second_line():
    lines = info_a2((0, 1)).splitlines()
    with pytest.raises(UserError, match=r"f:9  OK\n.*second one of line 7"):
        parse_info("\n".join(lines[:7] + lines[8:]), "f")


@pytest.mark.parametrize(
    ("written", "other", "expected"),
    [
        ("91.5", "warm", r"f:7  warm\n.*Power\(W\) is a number"),
        ("91.5", "91.5 12", r"f:7 .*\n.*3 values: Power\(W\), Temp\(C\), Hugepages"),
        ("3416 / 65536", "3416", r"f:8  3416\n.*used / total"),
        ("3416 / 65536", "34167777777777 / 65536", r"HBM-Usage\(MB\) is a number"),
        ("3416 / 65536", "3.5 / 65536", r"f:8  3.5\n.*whole number"),
        ("| 0     910B2", "| 0x1   910B2", r"f:7  0x1\n.*NPU is a whole number"),
        ("OK            ", "", r"f:7  \n.*Health is OK"),
        ("0000:C1:00.0", "c1", r"f:8  c1\n.*Bus-Id"),
        ("| OK", "| OK | OK", r"f:7 .*\n.*4 cells, its header 3"),
    ],
)
def test_what_does_not_fit_its_header_is_refused_with_its_line(written, other, expected):
    text = info_a2((0,))
    assert written in text
    with pytest.raises(UserError, match=expected):
        parse_info(text.replace(written, other, 1), "f")


def test_two_outputs_in_one_file_are_refused():
    with pytest.raises(UserError, match="on line 7 already. One output"):
        parse_info(info_a2((0,)) * 2, "f")


def test_no_table_is_told():
    with pytest.raises(UserError, match="There is no table of npu-smi in it"):
        parse_info("hello\n", "f")
    with pytest.raises(UserError, match="a header and no device under it"):
        parse_info(info_a2(()), "f")
    with pytest.raises(UserError, match="header are expected before"):
        parse_info("| 0     910B2 | OK | 91.5 44 0 / 0 |", "f")
    with pytest.raises(UserError, match="characters; at most"):
        parse_info("x" * 5_000_000, "f")


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ("dcmi module initialize failed. ret is -8005\n", -8005, "cannot be initialised"),
        ("dcmi model initialized failed, because the device is used. ret is -8020\n", -8020, "in use by another"),
        ("DrvMngGetConsoleLogLevel failed. (ret=4)\nnpu get board type failed. ret is -9005\n", -9005, "board"),
        ("something failed. ret is -8999\n", -8999, "no name that is known here"),
        ("There is no NPU card on this server.\n", None, "no NPU on this machine"),
        ("npu-smi did not answer within 30 s. The driver may hang.\n", None, "hangs"),
        ("bash: npu-smi: command not found\n", None, "not installed"),
        ("npu-smi: error while loading shared libraries: libdcmi.so: cannot open\n", None, "lib64"),
    ],
)  # fmt: skip
def test_what_npu_smi_refuses_is_told_as_what_it_is(text, code, told):
    for parse in (parse_info, parse_details, parse_map):
        with pytest.raises(DeviceUnavailable, match=told) as caught:
            parse(text, "f")
        assert caught.value.code == code and caught.value.exit_code == 1
        assert caught.value.line == len(text.splitlines())


def test_every_code_has_words():
    assert all(told and told[0].islower() and not told.endswith(".") for told in CODES.values())


def test_values_of_a_chip_stand_above_or_below_its_id():
    usages, common = parse_details(USAGES, "f"), parse_details(COMMON, "f")
    assert (usages.npu_id, usages.board["Chip Count"], [c.chip_id for c in usages.chips]) == (3, "1", [0])
    assert (usages.count("HBM Capacity(MB)"), usages.number("Aicore Usage Rate(%)", 0)) == (65536, 17)
    assert [(c.chip_id, c.name) for c in common.chips] == [(0, None), (1, None), (None, "mcu")]
    assert (common.number("Temperature(C)", 0), common.number("Temperature(C)", 1)) == (45, None)
    assert common.chips[2].values["NPU Real-time Power(W)"] == "42.8"
    assert usages.count("nothing of that name") is None
    packed = USAGES.replace("\n\n", "\n") + USAGES.split("\n\n")[1].replace(": 0\n", ": 1\n")
    assert [c.chip_id for c in parse_details(packed, "f").chips] == [0, 1], "empty lines lost in a paste"


def test_health_and_ecc_and_spod():
    health = parse_details("Health Status : Alarm\nError Code : 0x80E01801 0x80C98008\nError Information : NA\n", "f")
    assert health.text("Error Code") == "0x80E01801 0x80C98008" and health.text("Error Information") is None
    ecc = parse_details(ECC.format(double=2, isolated=1), "ecc.txt")
    assert ecc.count("HBM Double Bit Error Count", 0) == 2
    assert ecc.find("HBM Double Bit Error Count")[1] == ("ecc.txt", 6)
    table = "+---+\n| npu-smi 25.3.rc1   Version: 25.3.rc1 |\n| Super Pod ID : 3 | Pod ID : 1 |\n+---+\n"
    spod = parse_details(table, "f")
    assert (spod.count("Super Pod ID"), spod.count("Pod ID")) == (3, 1)


def test_details_that_do_not_fit_are_refused_with_their_line():
    with pytest.raises(UserError, match=r"f:4  what is this\n.*'name : value'"):
        parse_details("NPU ID : 0\nChip Count : 1\n\nwhat is this\nChip ID : 0\n", "f")
    with pytest.raises(UserError, match="one card in one file"):
        parse_details("NPU ID : 0\n\nChip ID : 0\n\nNPU ID : 1\n", "f")
    with pytest.raises(UserError, match=r"f:1  many\n.*Temperature\(C\) is a number"):
        parse_details("Temperature(C) : many\n", "f").number("Temperature(C)")
    with pytest.raises(UserError, match="Nothing in it"):
        parse_details("\n", "f")
    with pytest.raises(DeviceUnavailable, match="does not support the query"):
        parse_details("NPU ID : 0\nThis device does not support querying ecc.\n", "f")


def test_the_map_says_which_id_is_which():
    entries = parse_map(MAP_A3, "f")
    assert [(e.npu_id, e.chip_id, e.logic_id, e.phy_id, e.name) for e in entries] == [
        (0, 0, 0, 0, "Ascend910"), (0, 1, 1, 1, "Ascend910"), (0, 2, None, None, "Mcu")]  # fmt: skip
    named = parse_map("NPU ID   Chip ID   Chip Logic ID   Chip Name\n4   0   1   Ascend 910A\n", "f")
    assert named[0].name == "Ascend 910A"
    with pytest.raises(UserError, match=r"f:2 .*\n.*4 values"):
        parse_map("NPU ID   Chip ID   Chip Logic ID   Chip Name\n4  0\n", "f")
    with pytest.raises(UserError, match="no map"):
        parse_map("", "f")


KINDS = {"info": parse_info, "board": parse_details, "common": parse_details, "ecc": parse_details,
         "health": parse_details, "map": parse_map}  # fmt: skip


def test_every_sample_is_read_or_refused_with_a_reason(shared):
    read = {}
    for path in sorted((shared / "data/samples/npu_smi").glob("*.txt")):
        kind = path.name.split("_")[0]
        try:
            read[path.name] = KINDS.get(kind, parse_info)(path.read_text(), path.name)
        except DeviceUnavailable as refused:
            assert kind == "error" and refused.code in (-8005, -8020), path.name
    assert sum(name.startswith("info") for name in read) == 6
    a3 = read["info_24.1.rc3.7_a3_16die.txt"]
    assert [d.phy_id for d in a3.devices] == list(range(16)) and a3.idle == tuple(range(8))
    assert {d.memory_total_mib for d in a3.devices} == {65536}
    assert read["info_23.0.5_warning_elided.txt"].devices[0].health == "Warning"
    duo = read["info_310p3_25.2.0_300iduo.txt"].devices
    assert [(d.memory_kind, d.memory_total_mib) for d in duo] == [("DDR", 44280), ("DDR", 43693)]
    assert len(read["map_m_910a.txt"]) == 8


SEEDS = [info_a2(processes={0: [(4711, "python", 12)]}), info_a3(), INFO_310P, INFO_950, USAGES, COMMON, ECC, MAP_A3]


def fuzz(data):
    text = data.draw(st.sampled_from(SEEDS))
    lines = text.splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(lines) - 1))
        line = lines[at]
        cut = data.draw(st.integers(0, len(line)))
        lines[at] = data.draw(st.sampled_from([
            line[:cut], line[cut:], "", line + line, line.replace("|", "", 1), line.replace("/", ""),
            line[:cut] + data.draw(st.text(max_size=12)) + line[cut:], "| " + data.draw(st.text(max_size=40)) + " |",
        ]))  # fmt: skip
    mangled = "\n".join(lines)
    for parse in (parse_info, parse_details, parse_map):
        try:
            parse(mangled, "f")
        except UserError as error:
            assert str(error).startswith("f") and len(str(error)) < 3000


@given(st.data())
@settings(max_examples=150, **QUIET)
def test_mangled_outputs_end_in_a_result_or_a_reason(data):
    fuzz(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=2000, **QUIET)
def test_mangled_outputs_end_in_a_result_or_a_reason_at_length(data):
    fuzz(data)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("utf-8", "replace")))
@settings(max_examples=150, **QUIET)
def test_any_text_ends_in_a_result_or_a_reason(text):
    for parse in (parse_info, parse_details, parse_map):
        try:
            parse(text, "f")
        except UserError as error:
            assert str(error)


def test_the_parsers_import_no_mindspore_and_no_numpy(repo):
    for path in Path(repo / "msparallel/devices").glob("*.py"):
        text = path.read_text()
        assert "import mindspore" not in text and "import numpy" not in text, path.name
