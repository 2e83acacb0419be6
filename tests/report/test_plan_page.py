"""The page of a plan without a browser: what its document says, that hostile names are inert, where it is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from report.test_page import HOSTILE, Page

from msparallel.plan import Plan, resolve
from msparallel.planner.estimate import Estimate, estimate
from msparallel.planner.search.changes import smallest_changes
from msparallel.planner.search.overrides import space_of
from msparallel.planner.search.search import Search, search
from msparallel.planner.workload import workload_of
from msparallel.recipe.load import load_recipe
from msparallel.report.page import PLAN, page_html
from msparallel.report.plan_data import plan_data

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]


def planned(name: str = "llama2_70b_dp2_tp8_pp4", devices: int | None = None) -> tuple[Plan, Estimate, Search]:
    plan = resolve(load_recipe(name))
    work = workload_of(plan)
    found = search(work, plan.hardware, space_of(plan, devices=devices), top=3)
    return plan, estimate(work, plan.hardware), found


def test_the_recipe_and_every_candidate_are_in_it_whole():
    plan, as_it_is, found = planned()
    document = plan_data(plan, as_it_is, found)
    assert [one["name"] for one in document["plans"]] == ["the recipe", "1", "2", "3"]
    for one, told in zip((as_it_is, *found.candidates), document["plans"], strict=True):
        assert told["mesh_text"] == str(one.work.mesh) and told["fits"] == one.fits
        for stage, row in zip(one.memory, told["memory"]["rows"], strict=True):
            assert sum(part["bytes"] for part in row["parts"]) == row["total"]["bytes"] == stage.total_bytes
            assert row["high"]["bytes"] == stage.high_bytes
        assert sum(term["seconds"] for term in told["time"]) == pytest.approx(one.time.step_s)
        assert told["point"]["gib"] * 2**30 == max(stage.high_bytes for stage in one.memory)
        assert {axis["axis"]: axis["degree"] for axis in told["axes"]} == {
            name: degree for name, degree in told["mesh"].items() if degree > 1}  # fmt: skip


def test_the_pipeline_is_drawn_within_the_step():
    plan, as_it_is, found = planned()
    told = plan_data(plan, as_it_is, found)["plans"][0]["pipeline"]
    assert told["stages"] == 4 and len(told["tasks"]) == 4 * 8 * 2
    assert min(task[3] for task in told["tasks"]) == 0 and max(task[4] for task in told["tasks"]) == 1
    assert all(start < end for *_, start, end in told["tasks"])


def test_a_search_without_result_tells_what_would_help():
    plan, as_it_is, found = planned(devices=8)
    changes = smallest_changes(workload_of(plan), plan.hardware, space_of(plan, devices=8))
    document = plan_data(plan, as_it_is, found, changes)
    assert document["search"]["fits"] is False and len(document["plans"]) == 1
    assert document["changes"] and document["changes"][0].startswith("--devices ")
    assert document["rejected"] and all(row["reason"] for row in document["rejected"])


def test_one_device_has_neither_pipeline_nor_axes():
    plan = resolve(load_recipe("quickstart"))
    told = plan_data(plan, estimate(workload_of(plan), plan.hardware))
    assert told["search"] is None and told["plans"][0]["pipeline"] is None and told["plans"][0]["axes"] == []


def test_hostile_names_stay_text():
    plan, as_it_is, found = planned()
    recipe = replace(plan.recipe, path=HOSTILE, overrides=(HOSTILE,))
    text = page_html(PLAN, plan_data(replace(plan, recipe=recipe), as_it_is, found))
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 2 and "img" not in [tag for tag, _ in page.tags]
    assert "\x1b" not in text and page.document["title"].startswith("</script>")


def test_the_command_writes_it_and_nothing_else_over_another_file(tmp_path):
    target = tmp_path / "plan.html"
    command = [sys.executable, "-m", "msparallel", "plan", "llama2_7b_dp2_tp2_pp2", "--search", "--top", "2"]
    settings = {"cwd": ROOT, "env": {**os.environ, "PYTHONPATH": str(ROOT)}, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--json", "--report", str(target)], **settings)
    assert done.returncode == 0 and len(json.loads(done.stdout)["candidates"]) == 2 and str(target) in done.stderr
    assert len(Page(target.read_text(encoding="utf-8")).document["plans"]) == 3
    target.write_text("mine", encoding="utf-8")
    done = subprocess.run([*command, "--report", str(target)], **settings)
    assert done.returncode == 2 and "another file is there" in done.stderr and target.read_text() == "mine"
