"""`plan` at the terminal and as JSON: fields, exit codes, width, colours, what is never imported."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
STAGE = {"stage", "layers", "weights_gib", "gradients_gib", "optimizer_gib", "activations_gib", "other_gib",
         "total_gib"}  # fmt: skip
CANDIDATE = {"data_parallel", "model_parallel", "pipeline_stages", "step_time_s", "total_gib"}


def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "msparallel", "plan", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120)


def document(*words: str) -> dict:
    done = run(*words, "--json")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def to_type(text: str) -> list[str]:
    """Words of the command at the end of what a search prints, as a shell reads them."""
    return shlex.split(text.rpartition("msparallel plan ")[2].replace("\\\n", ""))


def test_json_has_the_agreed_fields_and_terms_add_up() -> None:
    found = document("llama2_70b_dp2_tp8_pp4")
    assert found["fits"] is True and found["world_size"] == 64
    assert [stage["layers"] for stage in found["stages"]] == [20, 21, 20, 19]
    for stage in found["stages"]:
        assert set(stage) >= STAGE
        terms = sum(stage[f"{name}_gib"] for name in ("weights", "gradients", "optimizer", "activations", "other"))
        assert terms == pytest.approx(stage["total_gib"])
        assert stage["low_gib"] <= stage["total_gib"] <= stage["high_gib"] <= found["limit_gib"]
    time = found["time"]
    parts = [*time["compute_s"].values(), *time["exposed_s"].values(), time["recompute_s"], time["bubble_s"],
             time["optimizer_s"]]  # fmt: skip
    assert sum(parts) == pytest.approx(found["step_time_s"])
    assert 0 < found["mfu"] < 1 and found["bubble"] == pytest.approx(time["bubble_s"] / found["step_time_s"])
    tokens = 64 * 4096 / found["step_time_s"] / 64
    assert found["tokens_per_s_per_device"] == pytest.approx(tokens)
    assert found["candidates"] == found["rejected"] == []
    lost = [reason["seconds"] for reason in found["reasons"]]
    assert lost == sorted(lost, reverse=True) and 0 < lost[0] < found["step_time_s"]
    assert [(axis["name"], axis["crosses"]) for axis in found["placement"]] == [
        ("tp", False), ("dp", True), ("pp", True)]  # fmt: skip


def test_search_gives_candidates_that_load_and_reasons_for_the_others() -> None:
    found = document("llama2_13b_dp4_tp4_pp2", "--search", "--top", "3")
    assert len(found["candidates"]) == 3
    steps = [one["step_time_s"] for one in found["candidates"]]
    assert steps == sorted(steps) and steps[0] <= found["step_time_s"]
    for one in found["candidates"]:
        assert set(one) >= CANDIDATE and one["high_gib"] <= found["limit_gib"]
        plan = resolve(load_recipe("llama2_13b_dp4_tp4_pp2", one["overrides"]))
        assert plan.mesh.dp == one["data_parallel"] and plan.mesh.size == 32
        assert plan.global_batch_size == one["global_batch_size"] == 64
    counts = found["search"]
    assert counts["combinations"] > counts["legal"] > counts["fit"] >= counts["timed"] > 0
    assert found["rejected"] and all(one["reason"] and one["rule"] for one in found["rejected"])


def test_search_for_a_thousand_devices_says_which_batch_would_do() -> None:
    found = document("llama2_70b_dp2_tp8_pp4", "--devices", "1000")
    assert found["candidates"] == [] and found["search"]["legal"] == 0
    assert found["changes"][0] == {"change": "--global-batch 125", "mesh": found["changes"][0]["mesh"]}
    again = document("llama2_70b_dp2_tp8_pp4", "--devices", "1000", "--global-batch", "125")
    assert again["candidates"] and again["search"]["global_batch_size"] == 125


def test_text_shows_stages_devices_pipeline_time_and_verdict() -> None:
    done = run("llama2_70b_dp2_tp8_pp4", COLUMNS="100", NO_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout
    assert "pp4 x dp2 x tp8 (64) on 8 nodes x 8 (Ascend 910B)" in text
    assert "server 1   pp0 dp1 tp [8 9 10 11 12 13 14 15]" in text
    assert "dp 2    ranks 0, 8: crosses servers" in text
    rows = [line for line in text.splitlines() if line.startswith("  stage ") and "0" in line]
    assert len([row for row in rows if "A" in row and "." in row]) == 4  # the picture, with bubbles
    bars = [line for line in text.splitlines() if "wwg" in line or "wwwg" in line]
    assert len(bars) == 4 and all(line.rstrip().endswith("|") for line in bars)
    assert text.rstrip().splitlines()[-1].startswith("Fits: stage ")
    assert [line[:5] for line in text.splitlines() if line.startswith("  1. ") or line.startswith("  3. ")] == [
        "  1. ", "  3. "]  # fmt: skip
    assert "an estimate" in text and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("words", [("llama2_70b_dp2_tp8_pp4",), ("qwen3_30b_a3b_dp8_pp2_ep8", "--search"),
                                   ("llama2_70b_dp2_tp8_pp4", "--devices", "8")])  # fmt: skip
def test_no_line_is_wider_than_the_terminal(width: int, words: tuple[str, ...]) -> None:
    done = run(*words, COLUMNS=str(width))
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= width


def test_what_does_not_fit_says_the_smallest_change() -> None:
    words = ("llama2_7b_dp2_tp2_pp2", "train.micro_batch_size=8", "train.global_batch_size=64")
    text = run(*words).stdout
    assert "Does NOT fit: stage 0 needs" in text
    last = text.rstrip().splitlines()[-1]
    assert last.lstrip().startswith("It fits with ") or "It fits with " in text
    found = document(*words)
    assert found["fits"] is False
    typed = found["changes"][0]["change"].split()
    given = {word.partition("=")[0] for word in typed}
    kept = [word for word in words[1:] if word.partition("=")[0] not in given]
    assert document(words[0], *kept, *typed)["fits"] is True


def test_what_fits_nowhere_says_how_many_devices_would_do() -> None:
    text = run("llama2_70b_dp2_tp8_pp4", "--devices", "8").stdout
    assert "Nothing fits on 8 devices." in text and "--devices " in text
    assert "No room" in text


def test_other_hardware() -> None:
    there = document("llama2_13b_dp4_tp4_pp2", "--hardware", "atlas_900_a2")
    here = document("llama2_13b_dp4_tp4_pp2")
    assert there["hardware"] == "atlas_900_a2" and there["step_time_s"] < here["step_time_s"]
    assert document("llama2_13b_dp4_tp4_pp2", "--hardware", "h100")["hardware"] == "h100"
    found = document("llama2_13b_dp4_tp4_pp2", "--search", "--top", "1", "--hardware", "atlas_900_a2")
    assert "cluster.hardware=atlas_900_a2" in found["overrides"]


def test_the_algorithm_between_servers() -> None:
    ring, chosen = (document("llama2_7b_dp8_zero1", "cluster.nodes=8", "cluster.devices_per_node=1", *words)
                    for words in ((), ("--hccl-algo", "level1:NHR")))  # fmt: skip
    assert chosen["hardware"].endswith("with HCCL_ALGO=level1:NHR") and chosen["step_time_s"] < ring["step_time_s"]
    text = run("llama2_13b_dp8_tp4_pp2", "--search", "--top", "1", "--hccl-algo", "level0:NA;level1:NHR").stdout
    assert "--hccl-algo 'level0:NA;level1:NHR'" in " ".join(text.replace("\\\n", " ").split())
    refused = run("gpt2_124m_dp8", "--hccl-algo", "tree")
    assert refused.returncode == 2 and "Use level0:NA;level1:NHR" in refused.stderr


def test_a_recipe_that_serves_is_told_its_memory_and_what_would_still_fit() -> None:
    found = document("qwen3_8b_serve_tp2")
    serving = found["serving"]
    assert found["fits"] is serving["fits"] is True and found["stages"] == []
    assert serving["token_cache_bytes"] == 2 * 36 * 4 * 128 * 2  # of 8 heads a device has 4
    tokens = serving["batch"] * serving["length"] + 128  # and the spare block
    assert serving["cache_gib"] * 2**30 == tokens * serving["token_cache_bytes"]
    assert serving["largest_batch"] > serving["batch"] and serving["longest_context"] > serving["length"]
    text = run("qwen3_8b_serve_tp2", COLUMNS="80").stdout
    assert f"up to {serving['longest_context']:,} tokens each." in text and "wwk" in text
    assert text.rstrip().splitlines()[-1].startswith("Fits: a device needs") and max(map(len, text.splitlines())) <= 80
    over = document("qwen3_8b_serve_tp1", f"serve.max_concurrency={2 * serving['largest_batch']}")
    assert over["fits"] is False


def test_a_recipe_that_trains_and_serves_is_told_both() -> None:
    words = ("qwen3_8b_dp2_tp4", "serve.weights=random", "serve.max_length=8192")
    found = document(*words)
    assert len(found["stages"]) == 1 and found["serving"]["length"] == 8192
    assert "Memory of a device that serves" in run(*words).stdout


def test_what_was_typed_stays_in_what_a_candidate_says_to_type() -> None:
    words = ("llama2_7b_dp2_tp2_pp2", "train.seq_length=2048", "parallel.recompute=full")
    found = document(*words, "--search", "--top", "2")
    for one in found["candidates"]:
        assert "train.seq_length=2048" in one["overrides"]
        again = document(words[0], *one["overrides"])
        assert again["step_time_s"] == pytest.approx(one["step_time_s"])
    last = to_type(run(*words, "--search").stdout)
    assert last[0] == words[0]
    assert document(*last)["step_time_s"] == pytest.approx(found["candidates"][0]["step_time_s"])


@pytest.mark.parametrize("columns", ["60", "100", "1000"])
def test_the_command_can_be_copied_whatever_was_typed(tmp_path: Path, columns: str) -> None:
    folder = tmp_path / "a  folder; with $(all) 'signs'"
    folder.mkdir()
    recipe = folder / "mine.yaml"
    recipe.write_text((ROOT / "recipes/llama2_13b_dp4_tp4_pp2.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    words = (str(recipe), "train.output_dir=an  output; dir", "--devices", "24")
    text = run(*words, COLUMNS=columns).stdout
    typed = to_type(text)
    assert typed[0] == str(recipe) and typed[1] == "train.output_dir=an  output; dir"
    assert any(word.startswith("parallel.stage_layers=[") for word in typed)
    found = document(*words, "--top", "1")["candidates"][0]
    script = "plan() { printf '%s\\n' \"$@\"; }\n" + "plan " + text.rpartition("msparallel plan ")[2]
    seen = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert seen.stdout.splitlines() == typed == [str(recipe), *found["overrides"]]


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    text = (ROOT / "msparallel/hardware/profiles/atlas_800t_a2.yaml").read_text(encoding="utf-8")
    own.write_text(text.replace("bandwidth_gb_s: 25.0", "bandwidth_gb_s: 50.0"), encoding="utf-8")
    words = ("llama2_13b_dp4_tp4_pp2", "--hardware", str(own))
    assert document(*words)["step_time_s"] < document(words[0])["step_time_s"]
    assert to_type(run(*words, "--search").stdout)[-2:] == ["--hardware", str(own)]
    own.write_text(text.replace("memory_gib: 64.0", "memory_gib: 64000000000"), encoding="utf-8")
    done = run(*words)
    line = 1 + text[: text.index("memory_gib")].count("\n")
    assert done.returncode == 2 and f"mine.yaml:{line}  memory_gib" in done.stderr and "GiB" in done.stderr
    own.write_text("\n".join(row for row in text.splitlines() if "tile:" not in row), encoding="utf-8")
    done = run(*words)
    assert done.returncode == 2 and "matrix.tile: is missing" in done.stderr and "Traceback" not in done.stderr
    other = tmp_path / "mine.profile"
    other.write_text(text, encoding="utf-8")
    assert document("llama2_13b_dp4_tp4_pp2", "--hardware", str(other))["hardware"] == "mine"


@pytest.mark.parametrize(("per_node", "devices"), [(4, 4), (4, 24), (16, 8), (16, 32), (16, 48), (12, 24), (10, 80)])
def test_a_machine_with_other_nodes_than_the_recipes(tmp_path: Path, per_node: int, devices: int) -> None:
    """What is said to type comes out as it was found, though a recipe for nodes of 8 cannot say nodes of 16."""
    own = tmp_path / "mine.yaml"
    text = (ROOT / "msparallel/hardware/profiles/atlas_800t_a2.yaml").read_text(encoding="utf-8")
    own.write_text(text.replace("devices_per_node: 8", f"devices_per_node: {per_node}").replace(
        "joins: 8,", f"joins: {per_node},"), encoding="utf-8")  # fmt: skip
    options = ("--hardware", str(own))
    space = ("--devices", str(devices), "--global-batch", "480")
    found = document("llama2_7b_dp2_tp2_pp2", *space, "--top", "1", *options)
    (first,) = found["candidates"]
    assert found["search"]["devices_per_node"] == min(per_node, devices)
    again = document("llama2_7b_dp2_tp2_pp2", *first["overrides"], *options)
    assert again["step_time_s"] == pytest.approx(first["step_time_s"], rel=1e-12)
    assert again["placement"] == first["placement"] and again["fits"]


@pytest.mark.parametrize("name", ["quickstart", "gpt_tiny_dp2_cpu", "moe_tiny_cpu", "gpt2_124m_auto_load"])
def test_small_recipes_are_searched_too(name: str) -> None:
    assert document(name, "--search")["candidates"]


def test_nothing_is_proposed_beyond_the_most_devices() -> None:
    """Replicas on processors: a batch of 8 cannot be dealt out to the 4096 workers that MindSpore takes at most."""
    found = document("quickstart", "--devices", "4096", "--global-batch", "8")
    assert found["search"]["legal"] == 0 and not found["candidates"]
    assert [change["change"] for change in found["changes"]] == ["--global-batch 4096"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("llama2_70b_dp2_tp8_pp4", "--devices", "100"), "Try --devices 96 or 104."),
        (("llama2_70b_dp2_tp8_pp4", "--devices", "8192"), "device_num goes up to 4096"),
        (("llama2_70b_dp2_tp8_pp4", "--devices", "0"), "--devices"),
        (("llama2_70b_dp2_tp8_pp4", "--global-batch", "0"), "--global-batch"),
        (("llama2_70b_dp2_tp8_pp4", "--global-batch", "99999999999999999999"), "--global-batch"),
        (("llama2_70b_dp2_tp8_pp4", "--hardware", "atlas_900_a4"), "there is no such profile"),
        (("llama2_70b_dp2_tp8_pp4", "parallel.model_parallel=16"), "key and value heads"),
        (("llama2_70b_dp2_tp8_pp5",), "no shipped recipe"),
        (("qwen3_8b_serve_tp1", "--search"), "plan training"),
        (("llama2_70b_dp2_tp8_pp4", "--hardware", "nowhere.yaml"), "cannot be read: No such file"),
        (("quickstart", "--hardware", "b200"), "a machine of target CUDA, but the recipe is for cpu"),
    ],
)
def test_bad_input_is_told_without_a_traceback(words: tuple[str, ...], told: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and told in done.stderr and "Traceback" not in done.stderr


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\n"
        "from msparallel.cli.main import commands\n"
        "commands.main(['plan', 'llama2_70b_dp2_tp8_pp4', '--search', '--json'], standalone_mode=False)\n"
        "heavy = ('mindspore', 'torch', 'mindformers', 'matplotlib', 'tokenizers', 'numpy')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    assert done.stderr.strip() == "[]"
