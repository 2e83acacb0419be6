"""Pages about plans: their tables are what `plan-evaluate` finds now, and their arithmetic by hand is what `plan` says.

Quoted output is tests/test_docs.py's business.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import pytest
from test_docs import REPO, WRITE, name, quoted

from msparallel.plan import resolve
from msparallel.planner.estimate import estimate
from msparallel.planner.layer_time import layer_time
from msparallel.planner.measured.evaluate import evaluate
from msparallel.planner.memory import StageMemory
from msparallel.planner.workload import workload_of
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
PLAN = REPO / "docs" / "13_plan.md"
GIB = 2**30
NUMBER = re.compile(r"([a-z ]+?) (\d+\.\d+)")


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    file = REPO / "docs" / "make_measured_table.py"
    spec = importlib.util.spec_from_file_location("make_measured_table", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_are_what_the_command_finds(maker: ModuleType) -> None:
    found = evaluate(REPO / maker.CASES)
    for page in maker.PAGES:
        file, now = REPO / "docs" / page, maker.written(page, found)
        if WRITE:
            file.write_text(now, encoding="utf-8")
        assert file.read_text(encoding="utf-8") == now, f"{name(file)}: run python docs/make_measured_table.py"


def test_the_table_of_runs_has_its_sources() -> None:
    """And no empty value: a row that cannot be used is skipped by a rule, not by being absent."""
    found = evaluate(REPO / "docs" / "measured_cases.csv")
    assert len(found.rows) + len(found.skipped) == 384
    assert all("/" in row.case.source or "arXiv" in row.case.source for row in found.rows)


def by_hand(beginning: str) -> str:
    """What the one command prints whose shown output begins so."""
    (item,) = [item for item in quoted(PLAN) if item.command.startswith("python")
               and any(line.startswith(beginning) for line in item.output or [])]  # fmt: skip
    command = re.sub(r"^python -c \"(.*)\"$", r"\1", item.command, flags=re.S)
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True, cwd=REPO)
    return done.stdout


def numbers(text: str) -> dict[str, float]:
    """Word -> number behind it."""
    return {word.strip(): float(value) for word, value in NUMBER.findall(text)}


def stage_of(recipe: str) -> StageMemory:
    plan = resolve(load_recipe(recipe))
    return estimate(workload_of(plan), plan.hardware).memory[0]


def gib(stage: StageMemory, *terms: str) -> dict[str, float]:
    return {term: round(getattr(stage, f"{term}_bytes") / GIB, 2) for term in terms}


def test_memory_by_hand_is_the_first_stage() -> None:
    stage = stage_of("llama2_13b_dp4_tp4_pp2")
    assert numbers(by_hand("weights 1.")) == gib(stage, "weights", "gradients", "optimizer")
    assert numbers(by_hand("layer 2"))["activations"] == gib(stage, "activations")["activations"]
    assert numbers(by_hand("at work"))["other"] == gib(stage, "other")["other"]
    eight = by_hand("8.19 billion").splitlines()[1]
    assert numbers(eight) == gib(stage_of("qwen3_8b_dp2_tp4"), "weights", "gradients", "optimizer")


def test_time_by_hand_is_the_step() -> None:
    plan = resolve(load_recipe("llama2_13b_dp4_tp4_pp2"))
    work = workload_of(plan)
    layer = layer_time(work, plan.hardware)
    for line, passed in zip(by_hand("forward ").splitlines(), layer, strict=False):
        shown = numbers(line.split(" ", 1)[1])
        assert set(shown) == {"products", "attention", "memory", "tp"}
        for part, value in shown.items():
            assert value == pytest.approx(getattr(passed, f"{part}_s") * 1e3, abs=0.006), part
    step_s = estimate(work, plan.hardware).time.step_s
    assert numbers(by_hand("stages "))["step"] == pytest.approx(step_s, abs=0.015)
