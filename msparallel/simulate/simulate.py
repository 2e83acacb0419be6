"""The whole proof: every rank compiled and executed, and the result compared with one process.

In: a recipe's Plan. Out: `Simulation`: losses of both, how far gradients and weights are apart, or the deadlock.

>>> simulation = simulate(plan, steps=3)
>>> simulation.max_rel_loss_error
1.2e-07
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tqdm import tqdm

from msparallel.compile.ranks import (
    POLL_S,
    last_words,
    raise_failure,
    start_process,
    temporary_folder,
)
from msparallel.compile.request import write_json
from msparallel.errors import RunError
from msparallel.launch.processes import kill
from msparallel.plan import Plan
from msparallel.simulate.cluster import Cluster, Deadlock
from msparallel.simulate.compare import Arrays, Difference, cut, difference, joined
from msparallel.simulate.data import random_batches, recipe_batches
from msparallel.simulate.program import RankProgram, check_programs, compiled_programs
from msparallel.simulate.shrink import Changes, alone, shrunk, whole
from msparallel.simulate.single import FINAL, GRADIENTS, INITIAL, LOSSES_FILE, SingleRequest
from msparallel.simulate.timed import Timed, timed
from msparallel.train.checkpoint import Slice
from msparallel.train.rank_inputs import rank_inputs
from msparallel.train.slices import parameter_slices


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How far a cluster may be from one device and still compute the same in float32.

    Attributes:
        loss: of each step, relative.
        gradient: of each tensor in the first step, norm of the difference over the norm.
        parameter: of each value after the last step.
    """

    loss: float = 1e-5
    gradient: float = 1e-5
    parameter: float = 1e-4


LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Attributes:
    plan: of what was executed.
    changes: what was changed to make the recipe small.
    random_tokens: whether tokens were drawn; otherwise they are the recipe's text.
    losses: of every step, on one device and on the cluster.
    gradients: of the first step, as the optimizer got them.
    parameters: after the last step.
    replicas_apart: largest difference between copies of one slice on several ranks.
    timed: a step of what was executed, on the recipe's machine; None where it would hang.
    seconds: that the parts of the simulation took, by name.
    """

    plan: Plan
    changes: Changes
    random_tokens: bool
    single_losses: tuple[float, ...]
    cluster_losses: tuple[float, ...]
    gradients: Difference | None
    parameters: Difference | None
    replicas_apart: float
    deadlock: Deadlock | None
    timed: Timed | None
    seconds: Mapping[str, float]

    @property
    def max_rel_loss_error(self) -> float:
        pairs = zip(self.single_losses, self.cluster_losses, strict=False)
        return max((abs(there - here) / abs(here) for here, there in pairs), default=0.0)

    @property
    def same(self) -> bool:
        """Whether the cluster went through every step and is within LIMITS of one device."""
        if self.deadlock or self.gradients is None or self.parameters is None:
            return False
        return (
            self.max_rel_loss_error <= LIMITS.loss
            and self.gradients.max_relative <= LIMITS.gradient
            and self.parameters.max_absolute <= LIMITS.parameter
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `simulate --json`."""
        return {
            "same": self.same,
            "source": self.plan.recipe.path,
            "world_size": self.plan.world_size,
            "shrunk_to": self.changes,
            "losses": {"single": list(self.single_losses), "cluster": list(self.cluster_losses)},
            "max_rel_loss_error": self.max_rel_loss_error,
            "max_rel_gradient_error": self.gradients.max_relative if self.gradients else None,
            "max_abs_parameter_error": self.parameters.max_absolute if self.parameters else None,
            "zero_gradients": list(self.gradients.zero) if self.gradients else [],
            "replicas_apart": self.replicas_apart,
            "deadlock": self.deadlock.to_json() if self.deadlock else None,
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
    with (
        temporary_folder() as folder,
        _single_process(small, random_tokens=not full, folder=folder / "single") as truth,
    ):
        started = time.monotonic()
        programs = compiled_programs(small, range(small.world_size), folder, progress)
        check_programs(programs)
        clock["compile"] = time.monotonic() - started
        _wait(truth, folder / "single", progress)
        clock["single"] = time.monotonic() - started
        return _executed(small, changes, programs, folder / "single", steps, full, clock, progress)


@contextmanager
def _single_process(plan: Plan, *, random_tokens: bool, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The comparison, trained beside the compilations."""
    single = alone(plan)
    request = SingleRequest(
        source=single.recipe.path,
        overrides=list(single.recipe.overrides),
        random_tokens=random_tokens,
        folder=str(folder),
    )
    folder.mkdir()
    write_json(folder / "request.json", asdict(request))
    process = start_process("msparallel.simulate.single", str(folder / "request.json"), log=folder / "log.txt")
    try:
        yield process
    finally:
        kill(process)


def _wait(process: subprocess.Popen[bytes], folder: Path, progress: bool) -> None:
    with tqdm(
        desc="Training alone", bar_format="{desc} {postfix}", leave=False, disable=None if progress else True
    ) as bar:
        while process.poll() is None:
            bar.set_postfix_str(last_words(folder))
            time.sleep(POLL_S)
    if process.returncode:
        raise_failure("The single process", process.returncode, folder, folder / "log.txt")


def _executed(
    plan: Plan,
    changes: Changes,
    programs: list[RankProgram],
    single: Path,
    steps: int,
    full: bool,
    clock: dict[str, float],
    progress: bool,
) -> Simulation:
    told = json.loads((single / LOSSES_FILE).read_text(encoding="utf-8"))
    initial = load_file(single / INITIAL)
    slices = {program.rank: _slices(program, plan, initial) for program in programs}
    cluster = Cluster(programs, {p.rank: _first_values(p, initial, slices[p.rank]) for p in programs})
    batches = recipe_batches(plan) if full else random_batches(plan)
    last = plan.mesh.rank(pp=plan.mesh.pp - 1)
    losses: list[float] = []
    gradients = parameters = deadlock = None
    apart = 0.0
    started = time.monotonic()
    for step in tqdm(range(steps), desc="Executing", unit="step", leave=False, disable=None if progress else True):
        batch = batches(step)
        try:
            results = cluster.step({rank: rank_inputs(plan, rank, batch) for rank in slices})
        except Deadlock as error:
            deadlock = error
            break
        losses.append(results[last].loss)
        if step == 0:
            found, apart = joined(_gradients(cluster, plan), slices)
            gradients = difference(load_file(single / GRADIENTS), found)
    if deadlock is None:
        found, weights_apart = joined(cluster.values, slices)
        parameters, apart = difference(load_file(single / FINAL), found), max(apart, weights_apart)
    clock["execute"] = time.monotonic() - started
    return Simulation(
        plan=plan,
        changes=changes,
        random_tokens=not full,
        single_losses=tuple(told["losses"]),
        cluster_losses=tuple(losses),
        gradients=gradients,
        parameters=parameters,
        replicas_apart=apart,
        deadlock=deadlock,
        timed=None if deadlock else timed(plan, programs),
        seconds=clock,
    )


def _slices(program: RankProgram, plan: Plan, initial: Arrays) -> dict[str, Slice]:
    """Which part of every weight a rank holds. Raises RunError where MindSpore's layout and graph disagree."""
    shapes = {name: _shape(p) for name, p in program.kept().items() if name in initial}
    found = parameter_slices(program.layouts(), shapes, mesh=plan.mesh, rank=program.rank)
    for name, shape in shapes.items():
        part = found.setdefault(name, _all_of(initial[name].shape))
        lengths = tuple(stop - start for start, stop in part.bounds)
        if part.shape != initial[name].shape or lengths != shape:
            raise RunError(
                f"rank {program.rank}: {name} is {list(shape)} in the graph, but its layout cuts {list(lengths)} of "
                f"{list(part.shape)}, and the whole is {list(initial[name].shape)}."
            )
    return found


def _all_of(shape: tuple[int, ...]) -> Slice:
    return Slice(shape=shape, bounds=tuple((0, length) for length in shape), cut_by=((),) * len(shape))


def _first_values(program: RankProgram, initial: Arrays, slices: Mapping[str, Slice]) -> dict[str, np.ndarray]:
    """Weights as they begin; sums of gradients, moments and counters at zero."""
    values = {name: np.zeros(_shape(p), p.type.dtype.lower()) for name, p in program.kept().items()}
    return values | cut(initial, slices)


def _shape(parameter: Any) -> tuple[int, ...]:
    return parameter.type.shape


def _gradients(cluster: Cluster, plan: Plan) -> dict[int, dict[str, np.ndarray]]:
    """After the first step: the first moment is (1 - beta1) times the gradient."""
    factor = np.float32(1 / (1 - plan.recipe.optimizer.beta1))
    mark = "adam_m."
    return {
        rank: {name.removeprefix(mark): v * factor for name, v in kept.items() if name.startswith(mark)}
        for rank, kept in cluster.values.items()
    }
