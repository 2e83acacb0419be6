"""The whole proof: every rank compiled and executed, and the result compared with one process.

In: a recipe's Plan. Out: `Simulation`: losses of both, how far gradients and weights are apart, or the deadlock.

>>> simulation = simulate(plan, steps=3)
>>> simulation.max_rel_loss_error
1.2e-07
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.compile.ranks import temporary_folder
from msparallel.plan import Plan
from msparallel.simulate.data import random_batches, recipe_batches
from msparallel.simulate.execution import Comparison, execute
from msparallel.simulate.program import check_programs, compiled_programs
from msparallel.simulate.shrink import Changes, alone, shrunk, whole
from msparallel.simulate.single import SingleRequest
from msparallel.simulate.timed import Timed, timed
from msparallel.simulate.truth import read_truth, training_alone, wait
from msparallel.train.rank_inputs import Arrays, rank_inputs


@dataclass(frozen=True, kw_only=True)
class Simulation(Comparison):
    """Attributes:
    plan: of what was executed.
    changes: what was changed to make the recipe small.
    random_tokens: whether tokens were drawn; otherwise they are the recipe's text.
    timed: a step of what was executed, on the recipe's machine; None where it would hang.
    seconds: that the parts of the simulation took, by name.
    """

    plan: Plan
    changes: Changes
    random_tokens: bool
    timed: Timed | None
    seconds: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """The document of `simulate --json`."""
        return {
            "same": self.same,
            "source": self.plan.recipe.path,
            "world_size": self.plan.world_size,
            "shrunk_to": self.changes,
            **self.errors_json(),
            **(self.timed.to_json() if self.timed else {}),
            "seconds": dict(self.seconds),
        }


def simulate(plan: Plan, *, steps: int, full: bool = False, progress: bool = True) -> Simulation:
    """Execute `steps` training steps of all ranks, and of one process.

    Args:
        full: keep the model's sizes and read the recipe's own text.

    Raises:
        UserError: a recipe that breaks rules when made small; data that cannot be opened.
        RunError: a compilation that failed, an operator that cannot be executed.
    """
    small, changes = (whole if full else shrunk)(plan, steps)
    clock = {}
    single = alone(small)
    request = SingleRequest(source=single.recipe.path, overrides=list(single.recipe.overrides), random_tokens=not full)
    with (
        temporary_folder() as folder,
        training_alone("msparallel.simulate.single", request, folder / "single") as process,
    ):
        started = time.monotonic()
        programs = compiled_programs(small, range(small.world_size), folder, progress)
        check_programs(programs)
        clock["compile"] = time.monotonic() - started
        wait(process, folder / "single", progress)
        clock["single"] = time.monotonic() - started
        batches = recipe_batches(small) if full else random_batches(small)

        def inputs(step: int) -> dict[int, list[Arrays]]:
            batch = batches(step)
            return {rank: rank_inputs(small, rank, batch) for rank in range(small.world_size)}

        begun = time.monotonic()
        found = execute(
            programs,
            read_truth(folder / "single"),
            mesh=small.mesh,
            inputs=inputs,
            beta1=small.recipe.optimizer.beta1,
            progress=progress,
        )
        clock["execute"] = time.monotonic() - begun
        return Simulation(
            **vars(found),
            plan=small,
            changes=changes,
            random_tokens=not full,
            timed=None if found.deadlock else timed(small, programs),
            seconds=clock,
        )
