"""Programs of all ranks executed, step by step, and compared with what one process computed.

In: every rank's program, the mesh, the truth, and what each rank is fed in a step. Out: `Comparison`: losses of both,
how far gradients and weights are apart, or the deadlock. Whose model it is plays no part here.

>>> comparison = execute(programs, truth, mesh=mesh, inputs=inputs, beta1=0.9)
>>> comparison.same, comparison.max_rel_loss_error
(True, 1.2e-07)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from msparallel.errors import RunError
from msparallel.mesh import Mesh
from msparallel.simulate.cluster import Cluster, Deadlock, Inputs
from msparallel.simulate.compare import Arrays, Difference, cut, difference, joined
from msparallel.simulate.program import RankProgram
from msparallel.simulate.truth import Truth
from msparallel.slice import Slice
from msparallel.train.slices import parameter_slices

FIRST_MOMENT = "adam_m."
"""What MindSpore's and MindFormers' AdamW put before a weight's name for its first moment."""


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
class Comparison:
    """Attributes:
    single_losses, cluster_losses: of every step, on one device and on the cluster.
    gradients: of the first step, as the optimizer got them.
    parameters: after the last step.
    replicas_apart: largest difference between copies of one slice on several ranks.
    """

    single_losses: tuple[float, ...]
    cluster_losses: tuple[float, ...]
    gradients: Difference | None
    parameters: Difference | None
    replicas_apart: float
    deadlock: Deadlock | None

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

    def errors_json(self) -> dict[str, Any]:
        """The part of `simulate --json` that compares."""
        return {
            "losses": {"single": list(self.single_losses), "cluster": list(self.cluster_losses)},
            "max_rel_loss_error": self.max_rel_loss_error,
            "max_rel_gradient_error": self.gradients.max_relative if self.gradients else None,
            "max_abs_parameter_error": self.parameters.max_absolute if self.parameters else None,
            "zero_gradients": list(self.gradients.zero) if self.gradients else [],
            "replicas_apart": self.replicas_apart,
            "deadlock": self.deadlock.to_json() if self.deadlock else None,
        }


def execute(
    programs: Sequence[RankProgram],
    truth: Truth,
    *,
    mesh: Mesh,
    inputs: Callable[[int], Mapping[int, Sequence[Inputs]]],
    beta1: float,
    added_losses: int = 1,
    progress: bool = True,
) -> Comparison:
    """Run as many steps as the truth has.

    Args:
        inputs: step -> rank -> what it feeds its first graph, once for every execution.
        beta1: of the optimizer; its first moment tells the gradient.
        added_losses: parts whose mean losses a step adds up; the loss that is compared is their mean.

    Raises:
        RunError: layouts that do not fit the weights, an operator that cannot be computed.
    """
    slices = {program.rank: weight_slices(program, mesh, truth.initial) for program in programs}
    cluster = Cluster(programs, {p.rank: first_values(p, truth, slices[p.rank]) for p in programs})
    last = mesh.rank(pp=mesh.pp - 1)
    losses: list[float] = []
    gradients = parameters = deadlock = None
    apart = 0.0
    steps = range(len(truth.losses))
    for step in tqdm(steps, desc="Executing", unit="step", leave=False, disable=None if progress else True):
        try:
            results = cluster.step(inputs(step))
        except Deadlock as error:
            deadlock = error
            break
        losses.append(results[last].loss / added_losses)
        if step == 0:
            found, apart = joined(_gradients(cluster, beta1), slices)
            gradients = difference(truth.gradients, found)
    if deadlock is None:
        found, weights_apart = joined(cluster.values, slices)
        parameters, apart = difference(truth.final, found), max(apart, weights_apart)
    return Comparison(
        single_losses=truth.losses,
        cluster_losses=tuple(losses),
        gradients=gradients,
        parameters=parameters,
        replicas_apart=apart,
        deadlock=deadlock,
    )


def weight_slices(program: RankProgram, mesh: Mesh, whole: Arrays) -> dict[str, Slice]:
    """Which part of every weight a rank holds. Raises RunError where MindSpore's layout and graph disagree."""
    shapes = {name: _shape(p) for name, p in program.kept().items() if name in whole}
    found = parameter_slices(program.layouts(), shapes, mesh=mesh, rank=program.rank)
    for name, shape in shapes.items():
        part = found.setdefault(name, _all_of(whole[name].shape))
        lengths = tuple(stop - start for start, stop in part.bounds)
        if part.shape != whole[name].shape or lengths != shape:
            raise RunError(
                f"rank {program.rank}: {name} is {list(shape)} in the graph, but its layout cuts {list(lengths)} of "
                f"{list(part.shape)}, and the whole is {list(whole[name].shape)}."
            )
    return found


def _all_of(shape: tuple[int, ...]) -> Slice:
    return Slice(shape=shape, bounds=tuple((0, length) for length in shape), cut_by=((),) * len(shape))


def first_values(program: RankProgram, truth: Truth, slices: Mapping[str, Slice]) -> dict[str, np.ndarray]:
    """Weights and state as they begin; sums of gradients, moments and counters at zero."""
    kept = program.kept()
    values = {name: np.zeros(_shape(p), p.type.dtype.lower()) for name, p in kept.items()}
    return values | {name: v for name, v in truth.state.items() if name in kept} | cut(truth.initial, slices)


def _shape(parameter: Any) -> tuple[int, ...]:
    return parameter.type.shape


def _gradients(cluster: Cluster, beta1: float) -> dict[int, dict[str, np.ndarray]]:
    """After the first step: the first moment is (1 - beta1) times the gradient."""
    factor = np.float32(1 / (1 - beta1))
    return {
        rank: {name[len(FIRST_MOMENT) :]: v * factor for name, v in kept.items() if name.startswith(FIRST_MOMENT)}
        for rank, kept in cluster.values.items()
    }
