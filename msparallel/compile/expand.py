"""What one execution of a compiled graph runs: reused functions written out once for every call.

In: a CompiledGraph. Out: `Execution`, the flat list of operators in an order in which inputs come first. What only
directs the flow is resolved away: tuples, Depend, UpdateState, calls, partial calls, and branches (the optimizer behind
an overflow check is taken, as in a step without overflow). What it said about order stays, as `after`.

>>> execution = expand(read_graph(folder))
>>> sum(operator.op == "AllReduce" for operator in execution.operators)
40
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from msparallel.compile.graph import (
    CompiledGraph,
    Constant,
    ConstantTensor,
    Function,
    FunctionRef,
    Input,
    Node,
    Parameter,
    Ref,
    Type,
)


@dataclass(frozen=True, slots=True)
class Output:
    """Of the operator at `index`; `item` where it gives several values and one of them is meant."""

    index: int
    item: int | None = None


class UnreadableGraph(Exception):
    """A compiled graph whose execution does not follow from it; the text says which operator, why, and what does."""


Source: TypeAlias = "Output | Parameter | Constant | ConstantTensor | tuple[Source, ...]"
"""Where a value comes from."""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of an execution.

    Attributes:
        index: its place in the list.
        node: what it is; several operators share a node where a function is called more than once.
        inputs: where its values come from; nested as the operator takes them.
        after: operators that must have run before, beside those it takes values from.
        calls: the calls it stands in, outermost first, by number; empty in the step itself.
    """

    index: int
    node: Node
    inputs: tuple[Source, ...]
    after: tuple[int, ...]
    calls: tuple[int, ...] = ()

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def type(self) -> Type:
        return self.node.type


@dataclass(frozen=True, slots=True)
class Execution:
    """Attributes:
    parameters: inputs of the step and the values that MindSpore keeps.
    operators: in an order that respects values and `after`.
    result: what the step returns.
    skipped_branches: functions that an execution without overflow does not run.
    call_waits: call, as in Operator.calls -> operators that must have run before it begins: a call waits for all its
        arguments, whichever of its operators reads them.
    """

    parameters: tuple[Parameter, ...]
    operators: tuple[Operator, ...]
    result: Source
    skipped_branches: tuple[str, ...]
    call_waits: Mapping[tuple[int, ...], tuple[int, ...]]


def expand(graph: CompiledGraph) -> Execution:
    """Write every call out. Raises UnreadableGraph for what cannot be, such as a function that calls itself."""
    return _Expansion(graph).run()


@dataclass(slots=True)
class _Value:
    """What a node gave: a source, a callable or a tuple of values; and the operators behind which it exists."""

    source: Source | _Callable | tuple[_Value, ...]
    after: tuple[int, ...] = ()


@dataclass(slots=True)
class _Callable:
    """A function with the values around it and its first arguments, or two of them with a condition."""

    function: Function
    around: Mapping[int, _Value]
    bound: tuple[_Value, ...] = ()


@dataclass(slots=True)
class _Expansion:
    graph: CompiledGraph
    operators: list[Operator] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    calls: tuple[int, ...] = ()
    call_count: int = 0
    call_waits: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def run(self) -> Execution:
        top = self.graph.functions[0]
        arguments = {parameter.number: _Value(parameter) for parameter in top.parameters}
        result = self.run_function(_Callable(top, {}), [arguments[p.number] for p in top.parameters])
        return Execution(
            top.parameters,
            tuple(self.operators),
            _plain(result.source),
            tuple(dict.fromkeys(self.skipped)),
            self.call_waits,
        )

    def call(self, target: _Callable, arguments: Sequence[_Value], after: tuple[int, ...]) -> _Value:
        outside, self.calls = self.calls, (*self.calls, self.call_count)
        self.call_waits[self.calls] = after
        self.call_count += 1
        result = self.run_function(target, arguments)
        self.calls = outside
        return result

    def run_function(self, target: _Callable, arguments: Sequence[_Value]) -> _Value:
        function = target.function
        if function.number in self.running:
            raise UnreadableGraph(
                f"{function.name} calls itself. MindSpore makes that of a loop over a tensor in a construct; how often "
                "it runs is not in the graph. Loop over a Python number instead"
            )
        self.running.append(function.number)
        given = (*target.bound, *arguments)
        values = dict(target.around)
        values.update((p.number, value) for p, value in zip(function.parameters, given, strict=True))
        for node in function.nodes:
            values[node.number] = self.value(node, values)
        self.running.pop()
        return self.read(function.result, values)

    def read(self, item: Input, values: Mapping[int, _Value]) -> _Value:
        if isinstance(item, Ref):
            return values[item.number]
        if isinstance(item, FunctionRef):
            return _Value(_Callable(self.graph.functions[item.number], values))
        return _Value(item)

    def value(self, node: Node, values: Mapping[int, _Value]) -> _Value:
        inputs = [self.read(item, values) for item in node.inputs]
        first = inputs[0] if inputs else _Value(Constant(None))
        match node.op:
            case "Depend":
                return _Value(first.source, _joined(inputs[0].after, inputs[1]))
            case "UpdateState":
                return _Value(Constant(None), _joined(first.after, *inputs[1:]))
            case "MakeTuple" | "make_tuple" | "MakeList":
                # Each item keeps its own conditions.
                return _Value(tuple(inputs))
            case "TupleGetItem" | "tuple_getitem" | "list_getitem":
                return self.item(node, first, inputs[1])
            case "Partial":
                target = self.callable(node, first)
                return _Value(_Callable(target.function, target.around, (*target.bound, *inputs[1:])), first.after)
            case "Switch" | "switch":
                return self.branch(node, inputs)
            case "call":
                return self.call(self.callable(node, first), inputs[1:], _joined(first.after, *inputs[1:]))
        return self.operator(node, inputs)

    def operator(self, node: Node, inputs: Sequence[_Value]) -> _Value:
        index = len(self.operators)
        sources = tuple(_plain(value.source) for value in inputs)
        after = sorted({place for value in inputs for place in _all_after(value)} - set(_producers(sources)))
        self.operators.append(Operator(index, node, sources, tuple(after), self.calls))
        return _Value(Output(index))

    def item(self, node: Node, whole: _Value, place: _Value) -> _Value:
        if not isinstance(place.source, Constant):
            raise UnreadableGraph(
                f"{node.name} takes an item of a tuple at a place that is only known when it runs. Index tuples with a "
                "Python number"
            )
        number = place.source.value
        if isinstance(whole.source, tuple):
            item = whole.source[number]
            return _Value(item.source, tuple(sorted({*item.after, *whole.after})))
        if isinstance(whole.source, Output) and whole.source.item is None:
            return _Value(Output(whole.source.index, number), whole.after)
        if isinstance(whole.source, Constant):
            return _Value(Constant(whole.source.value[number]), whole.after)
        raise UnreadableGraph(f"{node.name} takes an item of what is no tuple ({type(whole.source).__name__})")

    def callable(self, node: Node, value: _Value) -> _Callable:
        if not isinstance(value.source, _Callable):
            raise UnreadableGraph(
                f"{node.name} calls what is only known when it runs ({type(value.source).__name__}). Choose a cell by "
                "a Python value, not by a tensor"
            )
        return value.source

    def branch(self, node: Node, inputs: Sequence[_Value]) -> _Value:
        """Of the two ways behind a condition the one that does more: a step whose gradients are finite."""
        condition, *ways = inputs
        chosen = max(ways, key=lambda way: self.size(self.callable(node, way).function))
        self.skipped += [self.callable(node, way).function.name for way in ways if way is not chosen]
        return _Value(chosen.source, _joined(chosen.after, condition))

    def size(self, function: Function) -> int:
        """Nodes of a function and of those it calls."""
        if function.number not in self.sizes:
            called = {i.number for n in function.nodes for i in n.inputs if isinstance(i, FunctionRef)}
            others = sum(self.size(self.graph.functions[number]) for number in called - {function.number})
            self.sizes[function.number] = len(function.nodes) + others
        return self.sizes[function.number]


def _plain(source: Source | _Callable | tuple[_Value, ...]) -> Source:
    """A source without conditions; a callable that is handed on as a value has no tensor in it."""
    if isinstance(source, _Callable):
        return Constant({"function": source.function.name})
    if isinstance(source, tuple):
        return tuple(_plain(item.source) for item in source)
    return source


def leaves(sources: Sequence[Source]) -> Iterator[Output | Parameter | Constant | ConstantTensor]:
    """Where nested values come from, in order."""
    for source in sources:
        if isinstance(source, tuple):
            yield from leaves(source)
        else:
            yield source


def _producers(sources: Sequence[Source]) -> list[int]:
    return [leaf.index for leaf in leaves(sources) if isinstance(leaf, Output)]


def _all_after(value: _Value) -> set[int]:
    found = set(value.after)
    if isinstance(value.source, tuple):
        for item in value.source:
            found |= _all_after(item)
    return found


def _joined(after: Sequence[int], *values: _Value) -> tuple[int, ...]:
    """Conditions, and that the values exist."""
    found = set(after)
    for value in values:
        found |= _all_after(value) | set(_producers([_plain(value.source)]))
    return tuple(sorted(found))
