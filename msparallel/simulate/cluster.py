"""The virtual cluster: all ranks of a job in one process, each running its graph until it needs another rank.

In: every rank's program and first values. Out: what each rank's step returns, and its kept values brought forward.
A rank runs its operators one after the other in MindSpore's order; in a collective it waits until every member of the
group has come. When no rank can go on, the job would hang on a cluster: `Deadlock` says who waits where for whom.

>>> cluster = Cluster(programs, values)
>>> cluster.step(inputs)[0].loss
4.158883
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np

from msparallel.compile.collectives import participants
from msparallel.compile.expand import Operator, Output, Source
from msparallel.compile.graph import Constant, ConstantTensor, Parameter, TensorType, Type
from msparallel.compile.order import cell_path, is_collective
from msparallel.errors import RunError
from msparallel.simulate.kernels import KERNELS, RESULT_FIRST, WRITES, Call, UnsupportedCall, Value
from msparallel.simulate.program import ProgramGraph, RankProgram
from msparallel.simulate.rendezvous import Arrival, Mismatch, Rendezvous

Inputs = Sequence[np.ndarray]
"""What a rank feeds one execution of its graph."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A rank that cannot go on.

    Attributes:
        op, where: the operator it waits in; "" for a rank that has ended its step.
        group: ranks that should meet; of Send and Receive (sender, receiver).
        missing: ranks that have not come.
    """

    rank: int
    op: str
    where: str
    group: tuple[int, ...]
    missing: tuple[int, ...]


class Deadlock(RunError):
    """Ranks that would wait for each other for ever.

    Attributes:
        reason: in a sentence.
        waits: every rank that waits.
    """

    def __init__(self, reason: str, waits: Sequence[Wait]):
        self.reason, self.waits = reason, tuple(waits)
        lines = [
            f"  rank {w.rank} waits in {w.op} ({w.where}) of group {list(w.group)} for "
            f"rank{'s' * (len(w.missing) > 1)} {', '.join(map(str, w.missing))}"
            for w in self.waits[:16]
        ]
        more = [f"  ... and {len(self.waits) - 16} more"] if len(self.waits) > 16 else []
        super().__init__("\n".join([f"This job would hang: {reason}.", *lines, *more]))

    def to_json(self) -> dict[str, Any]:
        return {"reason": self.reason, "waits": [asdict(wait) for wait in self.waits]}


class KernelError(RunError):
    """An operator that cannot be computed as the graph has it; the text names rank and operator."""


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one rank's step returned first: the loss, where the rank knows it."""

    loss: float


class Cluster:
    """Attributes:
    values: rank -> kept value -> array as the rank holds it.
    """

    def __init__(self, programs: Sequence[RankProgram], values: Mapping[int, Mapping[str, np.ndarray]]):
        self.programs = {program.rank: program for program in programs}
        self.values = {rank: dict(values[rank]) for rank in self.programs}

    def step(self, inputs: Mapping[int, Sequence[Inputs]]) -> dict[int, StepResult]:
        """Run one step of every rank.

        Args:
            inputs: rank -> what it feeds its first graph, once for every execution.

        Raises:
            Deadlock: a step that would never end on a cluster.
            KernelError: an operator that cannot be computed, or gives what it should not.
        """
        return self._together({rank: self._rank_step(self.programs[rank], inputs[rank]) for rank in self.programs})

    def run(self, graph: int, inputs: Mapping[int, Inputs]) -> dict[int, Value]:
        """Run one graph of every rank once.

        Args:
            graph: its number among those of a rank's program.
            inputs: rank -> what it feeds it.

        Returns what each rank's graph returns. Raises Deadlock and KernelError, as `step`.
        """
        running = {
            rank: _Run(rank, program.graphs[graph], self.values[rank], inputs[rank]).run()
            for rank, program in self.programs.items()
        }
        return self._together(running)

    def _together(self, running: Mapping[int, Generator[Arrival, np.ndarray | None, _Result]]) -> dict[int, _Result]:
        """Go on with every rank until all have ended."""
        meeting = Rendezvous()
        results: dict[int, _Result] = {}
        given: dict[int, np.ndarray | None] = dict.fromkeys(running)
        ready = list(running)
        try:
            # What is not a number is looked for after each operator, and named.
            with np.errstate(all="ignore"):
                while ready:
                    for rank in ready:
                        _run_until_it_waits(rank, running[rank], given[rank], meeting, results)
                    given = {rank: meeting.take(rank) for rank in running if rank not in results}
                    ready = [rank for rank, value in given.items() if value is not None]
        except Mismatch as error:
            raise Deadlock(str(error), _waits(meeting)) from None
        if len(results) < len(running):
            raise Deadlock(_why(meeting, results), _waits(meeting))
        if unread := meeting.unread():
            first = unread[0]
            raise Deadlock(
                f"rank {first.rank} sends what nobody receives: {first.words()}",
                [Wait(rank=a.rank, op=a.op, where=a.where, group=a.group, missing=a.group[1:]) for a in unread],
            )
        return results

    def _rank_step(
        self, program: RankProgram, inputs: Sequence[Inputs]
    ) -> Generator[Arrival, np.ndarray | None, StepResult]:
        kept = self.values[program.rank]
        first, *later = program.graphs
        losses = []
        result: Value = None
        for fed in inputs:
            result = yield from _Run(program.rank, first, kept, fed).run()
            losses.append(result[0] if isinstance(result, tuple) else result)
        for graph in later:  # takes the sum of losses
            total = np.asarray(sum(losses[1:], losses[0]), np.float32)
            result = yield from _Run(program.rank, graph, kept, [total]).run()
        assert isinstance(result, tuple), "a step returns the loss, and more"
        return StepResult(loss=float(np.ravel(result[0])[0]))


def _run_until_it_waits(
    rank: int,
    running: Generator[Arrival, np.ndarray | None, _Result],
    value: np.ndarray | None,
    meeting: Rendezvous,
    results: dict[int, _Result],
) -> None:
    try:
        while True:
            arrival = running.send(value)
            meeting.hand_in(arrival)
            value = arrival.value if arrival.op == "Send" else meeting.take(rank)
            if value is None:
                return
    except StopIteration as end:
        results[rank] = end.value


class _Run:
    """One execution of one graph on one rank."""

    def __init__(self, rank: int, graph: ProgramGraph, kept: dict[str, np.ndarray], inputs: Inputs):
        self.rank, self.graph, self.kept = rank, graph, kept
        free = [p for p in graph.execution.parameters if not p.weight]
        self.fed = {p.number: value for p, value in zip(free, inputs, strict=True)}
        for parameter in free:
            _check_type(self.fed[parameter.number], parameter.type, lambda p=parameter: f"rank {rank}: input {p.name}")
        self.computed: dict[int, Value] = {}

    def run(self) -> Generator[Arrival, np.ndarray | None, Value]:
        operators, computed = self.graph.execution.operators, self.computed
        for index in self.graph.order:
            operator = operators[index]
            inputs = tuple([self.value(source) for source in operator.inputs])
            if is_collective(operator.op):
                arrival = self.arrival(operator, inputs)
                given = yield arrival
                _check_type(given, operator.type, lambda o=operator: self.place(o))
                computed[index] = given
            else:
                computed[index] = self.compute(operator, inputs)
            for value in self.graph.released.get(index, ()):
                del computed[value]
        return self.value(self.graph.execution.result)

    def value(self, source: Source) -> Value:
        if isinstance(source, Output):
            whole = self.computed[source.index]
            return whole if source.item is None else whole[source.item]
        if isinstance(source, Parameter):
            return self.kept[source.name] if source.weight else self.fed[source.number]
        if isinstance(source, ConstantTensor):
            return self.graph.constants[source]
        if isinstance(source, Constant):
            return source.value
        return tuple([self.value(item) for item in source])

    def compute(self, operator: Operator, inputs: tuple[Value, ...]) -> Value:
        call = Call(operator.op, inputs, operator.node.attributes, operator.type)
        try:
            result = KERNELS[operator.op](call)
        except (UnsupportedCall, IndexError, OverflowError, ValueError) as error:
            raise KernelError(f"{self.place(operator)} cannot be computed: {error}.") from error
        items = result if isinstance(result, tuple) else (result,)
        if operator.op in RESULT_FIRST:
            result, *items = items
        _check_type(result, operator.type, lambda: self.place(operator))
        if operator.op in WRITES:
            for place, item in zip(WRITES[operator.op], items, strict=True):
                self.kept[self.target(operator.inputs[place])] = item
        return result

    def target(self, source: Source) -> str:
        """Kept value that an operator writes to."""
        while isinstance(source, Output):
            source = self.graph.execution.operators[source.index].inputs[0]
        assert isinstance(source, Parameter), "operators write to kept values only"
        return source.name

    def arrival(self, operator: Operator, inputs: tuple[Value, ...]) -> Arrival:
        receives = operator.op == "Receive"
        kind = operator.type
        return Arrival(
            rank=self.rank,
            op=operator.op,
            group=participants(operator, self.rank),
            value=None if receives else np.asarray(inputs[0]),
            attributes=operator.node.attributes,
            where=cell_path(operator.node.scope) or "the step",
            shape=kind.shape if isinstance(kind, TensorType) else (),
            dtype=kind.dtype if isinstance(kind, TensorType) else "",
        )

    def place(self, operator: Operator) -> str:
        return f"rank {self.rank}, {operator.op} ({operator.node.name})"


def _check_type(value: Value, wanted: Type, where: Callable[[], str]) -> None:
    """Raise KernelError for a value that is not what MindSpore inferred, or is no number."""
    if isinstance(wanted, tuple):
        items = value if isinstance(value, tuple) else (value,)
        if len(items) != len(wanted):
            raise KernelError(f"{where()} gives {len(items)} values, the graph has {len(wanted)}.")
        for item, type_ in zip(items, wanted, strict=True):
            _check_type(item, type_, where)
    elif isinstance(wanted, TensorType):
        given = np.asarray(value)
        if given.dtype != _dtype(wanted.dtype) or not _fits(given.shape, wanted.shape):
            raise KernelError(
                f"{where()} has {given.dtype} {list(given.shape)}, the graph {wanted.dtype.lower()} "
                f"{list(wanted.shape)}."
            )
        if given.dtype.kind == "f" and np.isnan(given).any():
            raise KernelError(f"{where()} gives NaN at {np.argwhere(np.isnan(given))[0].tolist()}.")


@cache
def _dtype(name: str) -> np.dtype:
    return np.dtype(name.lower())


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape is what the graph has; -1 is a length that only the data decides."""
    return shape == wanted or (
        len(shape) == len(wanted) and all(want in (-1, have) for have, want in zip(shape, wanted, strict=True))
    )


def _why(meeting: Rendezvous, results: Mapping[int, object]) -> str:
    """The first wait whose missing member has ended its step or waits elsewhere, in a sentence."""
    waits = meeting.waits()
    places = {arrival.rank: arrival for arrival in waits}
    first = waits[0]
    other = meeting.missing(first)[0]
    if other in places:
        return f"rank {first.rank} waits in {first.words()}, rank {other} in {places[other].words()}"
    return f"rank {first.rank} waits in {first.words()}, but rank {other} has ended its step without it"


def _waits(meeting: Rendezvous) -> list[Wait]:
    return [
        Wait(rank=a.rank, op=a.op, where=a.where, group=a.group, missing=tuple(meeting.missing(a)))
        for a in meeting.waits()
    ]
