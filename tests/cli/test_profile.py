"""`profile` at the terminal and as JSON: width, exit codes, messages, what is never imported; the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from profiling.made_cluster import EXAMPLE, PLAIN, Cluster
from report.test_page import HOSTILE, Page

from msparallel.cli.main import main
from msparallel.mesh import Mesh

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
RECIPE = ("--recipe", "llama2_7b_dp2_tp2_pp2")


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    return EXAMPLE.write(tmp_path_factory.mktemp("example"))


@pytest.fixture
def run(capsys):
    """Runs `msparallel profile WORDS`: (exit code, stdout, stderr)."""

    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["profile", *map(str, words)])
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return call


def test_the_shipped_example_is_the_made_one(repo, example):
    """docs/examples/profile is written by tests/profiling/made_cluster.py and nothing else."""
    shipped = repo / "docs" / "examples" / "profile"
    names = {path.relative_to(example): path.read_bytes() for path in example.rglob("*") if path.is_file()}
    found = {path.relative_to(shipped): path.read_bytes() for path in shipped.rglob("*") if path.is_file()}
    assert found.pop(Path("README.md"))
    assert found == names, "write it again: EXAMPLE.write(Path('docs/examples/profile'))"


@pytest.mark.parametrize("width", [60, 100])
def test_text_is_no_wider_than_the_terminal(run, example, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    code, out, err = run(example, *RECIPE)
    assert code == 0 and err == ""
    assert max(map(len, out.splitlines())) <= width
    for part in ("Estimate and measurement", "Wires between two ranks", "Operators", "What to change", "at most"):
        assert part in out


def test_estimates_and_measurements_have_their_own_columns(run, example):
    _, out, _ = run(example, *RECIPE, "--json")
    found = json.loads(out)
    step = found["compared"][-1]
    assert step["part"] == "step" and step["measured_s"] == pytest.approx(found["step_us"] / 1e6)
    parts = [row["measured_s"] for row in found["compared"][:-1]]
    assert sum(parts) == pytest.approx(step["measured_s"])
    estimated = [row["estimated_s"] for row in found["compared"][:-1] if row["estimated_s"] is not None]
    assert sum(estimated) == pytest.approx(step["estimated_s"])


def test_json_has_the_agreed_fields_in_order_of_gain(run, example):
    code, out, err = run(example, *RECIPE, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    for finding in found["findings"]:
        assert set(finding) >= {"rule", "severity", "root_cause", "rank", "evidence", "remedy"}
        assert finding["severity"] in ("info", "warning", "error") and finding["evidence"]
        for place in finding["evidence"]:
            assert (example / place["file"]).is_file() and place["line"] >= 1 and place["text"]
    gains = [finding["gain_pct_at_most"] or 0 for finding in found["findings"]]
    assert gains == sorted(gains, reverse=True)
    assert {rank["rank"] for rank in found["ranks"]} == set(range(8))
    spreads = {group["group"]: group["computing_spread"] for group in found["groups"]}
    assert spreads["stage 0"] < 0.05 < spreads["stage 1"]
    slow = next(finding for finding in found["findings"] if finding["rule"] == "slow_rank_computes")
    assert slow["rank"] == 5
    for rank in found["ranks"]:
        parts = rank["computing_us"] + rank["waits_us"] + rank["bubble_us"] + rank["free_us"]
        assert parts == pytest.approx(rank["step_us"])


def test_without_a_recipe_there_is_no_estimate(run, example):
    code, out, _ = run(example)
    assert code == 0 and "Estimate" not in out and "Nothing tells pipeline stages here" in out


@pytest.mark.parametrize(("words", "told"), [
    (("absent",), "there is no such folder or file"),
    (("{}", "parallel.recompute=full"), "changes a recipe, and --recipe names none"),
    (("{}", "--hardware", "atlas_1"), "there is no such profile. Profiles are atlas_800_a1"),
    (("{}", "--recipe", "quickstart"), "the profile has rank 7, the recipe 1 devices"),
    (("{}", *RECIPE, "parallel.data_parallel=3"), "devices_per_node"),
])  # fmt: skip
def test_bad_input_is_exit_code_2(run, example, words, told):
    code, _, err = run(*(str(word).format(example) for word in words))
    assert code == 2 and told in err


def test_hardware_alone_tells_what_wires_should_reach(run, example):
    _, out, _ = run(example, "--hardware", "atlas_800t_a2", "--json")
    kinds = {kind["transport"]: kind for kind in json.loads(out)["link_kinds"]}
    assert kinds["RDMA"]["expected_gb_s"] == 17.5  # 25 GB/s x 0.7
    assert kinds["HCCS"]["expected_gb_s"] == pytest.approx(196 / 7 * 0.7)


def test_hostile_names_stay_text(run, tmp_path):
    root = tmp_path / "\x1b[31m"
    Cluster(Mesh(dp=2), operators=PLAIN).write(root)
    file = root / "rank_0" / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv"
    lines = file.read_text().replace("Unique99,Unique,", f'"{HOSTILE.replace(chr(34), "")}","{chr(27)}]0;x",')
    file.write_text(lines)
    target = tmp_path / "p.html"
    code, out, _ = run(root, "--report", target)
    assert code == 0 and "\x1b" not in out
    text = target.read_text(encoding="utf-8")
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2 and "img" not in [tag for tag, _ in page.tags]
    assert "\x1b" not in text


def test_the_page_says_what_the_text_says(run, example, tmp_path):
    target = tmp_path / "p.html"
    code, out, err = run(example, *RECIPE, "--json", "--report", target)
    assert code == 0 and str(target) in err
    found, page = json.loads(out), Page(target.read_text(encoding="utf-8")).document
    assert [one["rule"] for one in page["findings"]] == [one["rule"] for one in found["findings"]]
    assert len(page["ranks"]) == 8 and [rank["rank"] for rank in page["ranks"] if rank["named"]] == [1, 3, 5]
    for rank in page["ranks"]:
        assert sum(part["us"] for part in rank["parts"]) == pytest.approx(rank["step"]["us"])
    wires = {wire["transport"]: wire for wire in page["wires"]}
    assert len(wires["RDMA"]["cells"]) == wires["RDMA"]["links"] == 8
    target.write_text("mine")
    code, _, err = run(example, "--report", target)
    assert code == 2 and "another file is there" in err and target.read_text() == "mine"


def test_a_failed_test_is_exit_code_1(run, tmp_path):
    (tmp_path / "all_reduce_test_8p.txt").write_text(
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n8192 | 7 | 1 | failed\n")
    code, out, _ = run(tmp_path)
    assert code == 1 and "hccl_test_failed (error)" in out


def test_it_starts_without_mindspore_and_numpy():
    code = ("import sys\nimport msparallel.cli.profile, msparallel.profiling.profile, msparallel.report.profile_data\n"
            "print([name for name in ('mindspore', 'numpy', 'matplotlib') if name in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
