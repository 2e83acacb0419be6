"""Fills the table of docs/09_simulate*.md: every strategy of tests/simulate/matrix.py on the virtual cluster.

Run `PYTHONPATH=.:tests/simulate python docs/make_simulate_table.py` with MindSpore installed: two cores take an hour or
two, and a case that is in docs/simulate_table.json from the same revision is not run again. With --table the pages are
written from that file alone.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import date
from importlib.metadata import version
from pathlib import Path
from subprocess import run
from typing import Any

from matrix import CASES, factor_cases

from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.simulate.simulate import simulate

DOCS = Path(__file__).parent
RESULTS = DOCS / "simulate_table.json"
PAGES = ("09_simulate.md", "09_simulate.zh-CN.md")
BEGIN, END = "<!-- table of simulate: begin -->", "<!-- table of simulate: end -->"
STEPS = 5
HEADS = {
    "09_simulate.md": ("strategy", "loss", "gradients", "weights", "zero gradients"),
    "09_simulate.zh-CN.md": ("策略", "损失", "梯度", "权重", "梯度为零的张量"),
}
NOTES = {
    "09_simulate.md": "{passed} of {count} compute the same; revision {revision}, MindSpore {mindspore}, {date}.",
    "09_simulate.zh-CN.md": "{count} 种中 {passed} 种与单设备一致；版本 {revision}，MindSpore {mindspore}，{date}。",
}


def measured(name: str) -> dict[str, Any]:
    """One case."""
    recipe, *words = CASES[name]
    started = time.monotonic()
    found = simulate(resolve(load_recipe(recipe, words)), steps=STEPS, progress=False)
    return {
        "same": found.same,
        "loss": found.max_rel_loss_error,
        "gradients": found.gradients.max_relative if found.gradients else None,
        "weights": found.parameters.max_absolute if found.parameters else None,
        "zero": list(found.gradients.zero) if found.gradients else [],
        "deadlock": str(found.deadlock) if found.deadlock else None,
        "seconds": round(time.monotonic() - started, 1),
    }


def revision() -> str:
    return run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=DOCS
    ).stdout.strip()


def measure() -> None:
    """Run what the file does not have from this revision, and write it after each case."""
    known = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    head = {"revision": revision(), "mindspore": version("mindspore")}
    if {key: known.get(key) for key in head} != head:
        known = {**head, "cases": {}}
    for number, name in enumerate(CASES, 1):
        if name not in known["cases"]:
            known["cases"][name] = measured(name)
            known["date"] = date.today().isoformat()
            RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            print(f"{number}/{len(CASES)} {name}: {known['cases'][name]}", file=sys.stderr, flush=True)


def row(name: str, found: dict[str, Any]) -> str:
    if found["deadlock"]:
        return f"| {name} | {found['deadlock'].splitlines()[0]} | | | |"
    zero = f"{len(found['zero'])}: `{'`, `'.join(found['zero'][:2])}`{' ...' if len(found['zero']) > 2 else ''}"
    numbers = " | ".join(f"{found[key]:.1e}" for key in ("loss", "gradients", "weights"))
    return f"| {name}{'' if found['same'] else ' **differs**'} | {numbers} | {zero if found['zero'] else ''} |"


def group(name: str) -> str:
    """Cases of one factorisation are one row: the worst of them."""
    return "-".join(name.split("-")[:3]) if name in factor_cases() else name


def rows(cases: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each factorisation with the worst of its switches, and one for each other case."""
    groups: dict[str, list[str]] = {}
    for name in cases:
        groups.setdefault(group(name), []).append(name)
    lines = []
    for title, names in groups.items():
        found = [cases[name] for name in names]
        worst = {
            "same": all(one["same"] for one in found),
            **{key: max((one[key] or 0.0) for one in found) for key in ("loss", "gradients", "weights")},
            "zero": sorted({tensor for one in found for tensor in one["zero"]}),
            "deadlock": next((one["deadlock"] for one in found if one["deadlock"]), None),
        }
        lines.append(row(f"{title} ({len(names)})" if len(names) > 1 else title, worst))
    return lines


def write_pages() -> None:
    known = json.loads(RESULTS.read_text(encoding="utf-8"))
    passed = sum(found["same"] for found in known["cases"].values())
    for page in PAGES:
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN)
        _, _, after = rest.partition(END)
        told = NOTES[page].format(passed=passed, count=len(known["cases"]), **known)
        table = [f"| {' | '.join(HEADS[page])} |", "|---|---|---|---|---|", *rows(known["cases"])]
        path.write_text(f"{before}{BEGIN}\n{told}\n\n" + "\n".join(table) + f"\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    if "--table" not in sys.argv[1:]:
        measure()
    write_pages()
