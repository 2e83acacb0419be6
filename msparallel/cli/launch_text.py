"""What `launch` shows: the commands of all nodes, the table of the pre-flight, how far the job is, how it ended.

In: node lines, answers, progress, a result. Out: text and JSON.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence

from msparallel.cli.columns import table
from msparallel.errors import printable, short
from msparallel.launch.hosts import Layout
from msparallel.launch.nodes_print import NodeLine
from msparallel.launch.preflight_ask import Answer
from msparallel.launch.preflight_rules import GIB, Checked
from msparallel.plan import Plan
from msparallel.train.run import RunResult, evaluation_lines, run_dir

LINE_S = 30.0
"""Between two lines of progress where stderr is no terminal."""
_HEAD = ("node", "name", "Python", "MindSpore", "msparallel", "recipe", "folder", "master", "devices", "memory",
         "clock")  # fmt: skip
_COLUMN = {"host_name": 1, "python": 2, "mindspore": 3, "cann": 3, "msparallel": 4, "recipe": 5, "corpus": 5,
           "output_dir": 6, "run": 6, "disk": 6, "master": 7, "port": 7, "connect": 7, "devices": 8, "memory": 9,
           "clock": 10}  # fmt: skip
"""Rule of a problem -> the column that shows it."""


def print_text(plan: Plan, layout: Layout, lines: Sequence[NodeLine]) -> str:
    """One command for each node, in comments what it is."""
    text = [f"# {plan.recipe.name}: {plan.mesh} over {plan.nodes} x {plan.devices_per_node}"]
    for line in lines:
        where = f"{line.host} ({line.address})" if line.address and line.address != line.host else line.host
        text += ["", f"# node {line.node_rank}: {where}, ranks {_ranks(line.ranks)}", line.command]
    if layout.spares:
        text += ["", f"# spare: {', '.join(host.name for host in layout.spares)}"]
    return printable("\n".join(text))


def print_json(layout: Layout, lines: Sequence[NodeLine]) -> str:
    """The same as one document."""
    nodes = [
        {
            "node_rank": line.node_rank,
            "host": line.host,
            "address": line.address,
            "ranks": list(line.ranks),
            "argv": line.argv,
            "command": line.command,
        }
        for line in lines
    ]
    spares = [host.name for host in layout.spares]
    return json.dumps(
        {"master_addr": layout.master_addr, "master_port": layout.master_port, "nodes": nodes, "spares": spares},
        indent=2,
    )


def table_text(layout: Layout, answers: Sequence[Answer], checked: Checked, width: int) -> str:
    """A row for each node; a `!` behind what has a problem."""
    marked = {(one.key, _COLUMN.get(one.rule.removeprefix("preflight_"))) for one in checked.problems}
    marked |= {(one.key, _COLUMN.get(one.rule.removeprefix("preflight_"))) for one in checked.warnings}
    rows: list[Sequence[str]] = [_HEAD]
    for answer in answers:
        cells = _cells(answer, answers[0])
        name = answer.host.name
        rows.append([f"{cell} !" if (name, place) in marked else cell for place, cell in enumerate(cells)])
    nodes = f"{len(answers)} node{'s' * (len(answers) > 1)}"
    spares = f"; spare: {', '.join(host.name for host in layout.spares)}" if layout.spares else ""
    return "\n".join([f"Pre-flight of {nodes}, master {layout.master_addr}:{layout.master_port}{spares}",
                      *table(rows, width)])  # fmt: skip


def _cells(answer: Answer, first: Answer) -> list[str]:
    facts = answer.facts
    if facts is None:
        return [answer.host.name, "no answer", *[""] * (len(_HEAD) - 2)]
    master = "listens" if not answer.node_rank else "connects"
    folder = "written" if not answer.node_rank else "same"
    return [
        answer.host.name,
        short(facts.host_name, 30),
        short(facts.python, 12),
        short(facts.mindspore, 16) or "none",
        f"{short(facts.msparallel, 16)} {facts.source[:4]}",
        facts.recipe_sha256[:6] or "none",
        "in use" if facts.held else "no" if facts.output_problem or not facts.marker else folder,
        "no" if facts.master_problem else master,
        short(facts.devices, 30),
        "" if facts.memory_bytes is None else f"{facts.memory_bytes / GIB:.0f} GiB",
        f"{answer.clock_s - first.clock_s:+.1f} s" if first.facts else "",
    ]


class Follower:
    """Progress on stderr: a bar on a terminal, else a line every LINE_S seconds. NO_COLOR needs nothing: there is
    none."""

    def __init__(self, plan: Plan):
        assert plan.recipe.train is not None, "only recipes with a train section are trained"
        self._name, self._steps = plan.recipe.name, plan.recipe.train.steps
        self._told, self._line = 0.0, ""

    def __enter__(self) -> Follower:
        from tqdm import tqdm

        self._bar = tqdm(total=self._steps, desc=f"{self._name}: start", unit="step", disable=None, leave=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, phase: str, step: int | None, loss: float | None) -> None:
        """Where the rank is that knows the loss."""
        if self._bar.disable:
            if step is not None and time.monotonic() - self._told >= LINE_S:
                self._told = time.monotonic()
                told = f", loss {loss:.4f}" if loss is not None else f", {phase}"
                line = f"{self._name}: step {step:,} of {self._steps:,}{told}"
                if line != self._line:  # a rank that compiles for minutes says so once
                    print(line, file=sys.stderr, flush=True)
                self._line = line
            return
        self._bar.set_description(self._name if phase in ("step", "end") else f"{self._name}: {phase}", refresh=False)
        if loss is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
        if step is not None:
            if not self._bar.n:
                self._bar.initial = step  # a run that goes on: its speed is that of its own steps
            self._bar.n = step
        self._bar.refresh()


def closing_text(plan: Plan, result: RunResult, options: Sequence[str]) -> str:
    """What came out, where it is, how to go on; `options` are those of the command line."""
    assert plan.recipe.train is not None, "only recipes with a train section are trained"
    lines = []
    if result.finished_before:
        lines.append(f"{plan.recipe.name} was already trained to step {result.resumed_from}; nothing was done.")
    lines += evaluation_lines(result)
    if result.tokens_per_s:
        devices = f"{result.world_size} device{'s' * (result.world_size > 1)}"
        nodes = f"{plan.nodes} node{'s' * (plan.nodes > 1)}"
        lines.append(f"Speed           {result.tokens_per_s:,.0f} tokens/s on {devices} of {nodes}")
    kept = [override for override in plan.recipe.overrides if not override.startswith("train.steps=")]
    again = shlex.join(["msparallel", "launch", plan.recipe.path, *kept, *options])
    lines += [
        f"Log             {run_dir(plan) / 'log.jsonl'}",
        f"Checkpoint      {result.checkpoint}",
        "",
        "Next:",
        f"  {again} train.steps={2 * plan.recipe.train.steps}    goes on from the checkpoint",
    ]
    return printable("\n".join(lines))


def _ranks(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else f"{ranks[0]}"
