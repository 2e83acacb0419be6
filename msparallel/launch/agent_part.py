"""A node's part of a run in a process that the agent can end: `python -m msparallel.launch.agent_part RECIPE ...`.

In: the agent's own command line. Out: on stdout, which nothing else is written to, one JSON object {result} or
{error, exit_code, kind, rank}. A recipe of one device is trained in this very process.

>>> outcome_from(b'{"result": null, "error": "Rank 1 was killed.", "exit_code": 1, "kind": "killed"}').kind
'killed'
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from msparallel.errors import RunError, UserError
from msparallel.launch import worker
from msparallel.launch.msrun import PortTaken, RankFailed, launch, logs_dir
from msparallel.launch.processes import die_with_parent
from msparallel.launch.status import read_states
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.run import reporting_rank


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a part ended.

    Attributes:
        result: fields of `run --json`, None where it failed.
        kind: empty where it did not fail; input: it is wrong; port: the scheduler's is taken; killed, failed: a rank;
            start: the ranks did not come to run, or ended without a word.
        rank: that failed, None where it is no single one's fault.
    """

    result: dict[str, Any] | None
    error: str = ""
    exit_code: int = 0
    kind: str = ""
    rank: int | None = None


def parser() -> argparse.ArgumentParser:
    """The command line of agent and part."""
    words = argparse.ArgumentParser(prog="python -m msparallel.launch.agent", allow_abbrev=False)
    words.add_argument("recipe", metavar="RECIPE")
    words.add_argument("overrides", metavar="SECTION.KEY=VALUE", nargs="*")
    words.add_argument("--node-rank", type=int, default=0)
    words.add_argument("--master-addr", default="127.0.0.1")
    words.add_argument("--master-port", type=int, required=True)
    return words


def outcome_from(data: bytes) -> Outcome | None:
    """What a part wrote, None where it was ended before it could, or while it did."""
    try:
        return Outcome(**json.loads(data))
    except (ValueError, TypeError):
        return None


def main(arguments: Sequence[str]) -> int:
    """Run the part; returns the exit code."""
    die_with_parent()
    out = os.dup(1)  # a pipe and no file, since a full disk must be told too
    os.dup2(2, 1)
    given = parser().parse_args(arguments)
    plan = resolve(load_recipe(given.recipe, given.overrides))
    logs = logs_dir(plan)
    try:
        if plan.world_size == 1:
            outcome = _alone(plan, [given.recipe, *given.overrides], logs)
        else:
            result = launch(
                plan,
                node_rank=given.node_rank,
                master_addr=given.master_addr,
                master_port=given.master_port,
                show=False,
            )
            outcome = Outcome(result=result.to_json())
    except KeyboardInterrupt:  # SIGTERM from the agent, which knows why
        return 130
    except PortTaken as error:
        outcome = _failure(error, "port")
    except RankFailed as error:
        outcome = _failure(error, "killed" if error.killed else "failed", error.rank)
    except UserError as error:
        outcome = _failure(error, "start" if isinstance(error, RunError) else "input")
    with os.fdopen(out, "w", encoding="utf-8") as pipe:
        json.dump(asdict(outcome), pipe)
    return outcome.exit_code


def _failure(error: UserError, kind: str, rank: int | None = None) -> Outcome:
    return Outcome(result=None, error=str(error), exit_code=error.exit_code, kind=kind, rank=rank)


def _alone(plan: Plan, words: list[str], logs: Path) -> Outcome:
    os.environ["RANK_ID"] = "0"
    if code := worker.main(words):
        text = read_states(logs, [0])[0].text
        return Outcome(result=None, error=text, exit_code=code, kind="input" if code == 2 else "failed", rank=0)
    assert reporting_rank(plan) == 0
    return Outcome(result=json.loads((logs / "result.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
