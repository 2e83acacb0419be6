"""Estimates against published runs: figures over known errors, and model state and peaks of runs with their source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from measured_rows import B200, LLAMA, PEAKS, STATIC, static_row, written

from msparallel.planner.measured.evaluate import Figures, evaluate, figures, source_name
from msparallel.planner.measured.families import half_of

pytestmark = pytest.mark.pure

@pytest.mark.parametrize("name", STATIC)
def test_model_state_is_what_runs_report(name: str, tmp_path: Path) -> None:
    found = evaluate(written(tmp_path / "c.csv", static_row(name)))
    assert not found.skipped
    assert abs(found.rows[0].error) < 0.005, found.rows[0].stages


@pytest.mark.parametrize(("changes", "value"), PEAKS)
def test_peaks_are_what_runs_report(changes: dict[str, str], value: str, tmp_path: Path) -> None:
    found = evaluate(written(tmp_path / "c.csv", {**LLAMA, **B200, **changes, "value": value}))
    assert not found.skipped
    assert abs(found.rows[0].error) < 0.01
    assert found.peaks_in_band == {"n": 1, "not_above_high": 1} and (found.rows[0].high or 0) > found.rows[0].estimate


def test_figures_over_known_errors() -> None:
    found = figures([0.01, -0.05, 0.02, -0.02, 0.1, -0.03, 0.0, 0.04, 0.06, 0.2])
    assert found.n == 10 and found.p90_abs_err == 0.1
    assert found.median_abs_err == pytest.approx(0.035) and found.mean_abs_err == pytest.approx(0.053)
    assert found.optimistic_beyond_2pct == 0.2, "2 % exactly is not beyond"
    assert figures([]) == Figures(n=0)


def test_a_stage_counts_and_the_worst_one_is_the_rows_error(tmp_path: Path) -> None:
    name = "llama2_tp1_pp8_patch_gloo_ptd"
    row = static_row(name)
    values = row["value_by_rank"].split()
    row["value_by_rank"] = " ".join(["30.000", *values[1:]])
    found = evaluate(written(tmp_path / "c.csv", row)).rows[0]
    assert len(found.stages) == 8 and found.error == pytest.approx(found.stages[0][1] / 30 - 1)


def test_lower_bounds_are_checked_and_in_no_figure(tmp_path: Path) -> None:
    row = static_row("llama2_tp1_pp8_patch_gloo_ptd")
    low = {**row, "component": "peak", "trust": "iteration1-peak"}
    high = {**low, "value_by_rank": " ".join(["60.0"] * 8)}
    found = evaluate(written(tmp_path / "c.csv", low, high))
    assert found.figures("peak_memory").n == 0 and len(found.rows) == 2
    assert found.lower_bounds == {"n": 2, "below_beyond_2pct": 1}


def test_json_has_the_agreed_fields(tmp_path: Path) -> None:
    rows = [static_row(name) for name in STATIC]
    bad, peak = {**rows[0], "heads": "many"}, {**LLAMA, **B200, **PEAKS[1][0], "value": "39"}
    found = evaluate(written(tmp_path / "c.csv", *rows, bad, peak)).to_json()
    assert json.loads(json.dumps(found)) == found
    assert set(found["metrics"]) == {"model_state", "peak_memory", "step_time"}
    assert set(found["metrics"]["model_state"]) == {
        "n", "median_abs_err", "mean_abs_err", "p90_abs_err", "optimistic_beyond_2pct"
    }  # fmt: skip
    assert found["metrics"]["model_state"]["n"] == len(STATIC) and found["metrics"]["step_time"]["n"] == 0
    assert found["metrics"]["step_time"]["median_abs_err"] is None
    assert found["skipped"] == [{"row": len(STATIC) + 2, "reason": "column heads: 'many' is no whole number"}]
    assert set(found["by_source"]) == {"MindSpeed-LLM 1.0.0", "MindSpeed-LLM 2.0.0", "SimuMax"}
    assert found["by_hardware"]["b200"]["peak_memory"]["n"] == 1
    assert found["model_state_within_3pct"]["dense"] == {"n": len(STATIC) - 1, "within_3pct": len(STATIC) - 1}
    assert found["model_state_within_3pct"]["plain"]["n"] == len(STATIC) - 2
    assert sum(of["model_state"]["n"] for of in found["by_half"].values() if "model_state" in of) == len(STATIC)


def test_step_time_rows_become_seconds(tmp_path: Path) -> None:
    row = {**LLAMA, "component": "", "value_by_rank": "", "measured_metric": "tokens_per_s_per_device", "value": "1600"}
    large = {**row, "micro_batch": "8", "recompute": "none"}
    both = evaluate(written(tmp_path / "c.csv", row, large))
    assert both.runs_that_fit == {"n": 2, "said_to_fit": 1}
    found = both.rows[0]
    assert found.measured == pytest.approx(32 * 4096 / 8 / 1600) and found.estimate > 0
    assert found.error == pytest.approx(found.estimate / found.measured - 1)


def test_halves_and_sources_have_stable_names(tmp_path: Path) -> None:
    assert {half_of(name) for name in ("baichuan", "deepseek", "llama2", "phi")} == {"first"}
    assert {half_of(name) for name in ("qwen2", "chatglm", "gemma", "internlm", "yi")} == {"second"}
    case = evaluate(written(tmp_path / "c.csv", static_row("llama2_tp2_pp4_vpp2_legacy"))).rows[0].case
    assert source_name(case) == "MindSpeed-LLM 2.0.0"
