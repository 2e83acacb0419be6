"""A Supervised as the terminal shows it: every attempt in a line, then the result or why it was given up."""

from __future__ import annotations

import time

from msparallel.errors import printable
from msparallel.plan import Plan
from msparallel.supervise.supervise import Attempt, Supervised, ended_text
from msparallel.train.run import RunResult, run_dir


def closing_text(plan: Plan, found: Supervised) -> str:
    """What happened, attempt by attempt; what came out."""
    many = len(found.attempts) != 1
    lines = [f"{plan.recipe.name}: {len(found.attempts)} attempt{'s' * many}"]
    lines += [f"  {_line(one)}" for one in found.attempts]
    if found.gave_up is not None:
        lines += ["", f"Given up: {found.gave_up}", "", f"Log             {run_dir(plan) / 'log.jsonl'}"]
        return printable("\n".join(lines))
    assert found.result is not None, "what was not given up has a result"
    result = RunResult(**found.result)
    lines.append("")
    if result.eval_losses:
        first, last = result.eval_losses[0], result.eval_losses[-1]
        lines.append(
            f"Evaluation loss {first['loss']:.3f} (step {first['step']}) -> {last['loss']:.3f} (step {last['step']})"
        )
    lines += [
        f"Log             {run_dir(plan) / 'log.jsonl'}",
        f"Checkpoint      {result.checkpoint}",
    ]
    if any(one.incident for one in found.attempts):
        lines.append(f"Incidents       {run_dir(plan) / 'incidents'}")
    return printable("\n".join(lines))


def _line(one: Attempt) -> str:
    clock = time.strftime("%H:%M:%S", time.localtime(one.started))
    took = f"{one.ended - one.started:,.0f} s"
    folder = f" [{one.incident.rsplit('/', 1)[-1]}]" if one.incident else ""
    return f"{one.attempt:3}  {clock}  {took:>8}  steps {one.from_step}-{one.to_step}  {ended_text(one)}{folder}"
