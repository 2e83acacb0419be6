"""Where ranks meet: collectives by group and order, messages by pair and order.

In: what each rank hands in. Out: what each gets, once all members of the group have come; or `Mismatch`, where members
come with operations that do not belong together. Nothing is guessed: on a cluster such members would wait for each
other for ever, or take each other's bytes for their own.

>>> meeting = Rendezvous()
>>> meeting.hand_in(Arrival(rank=0, op="AllReduce", group=(0, 1), value=x, attributes={"op": "sum"}, where="mlp"))
>>> meeting.hand_in(Arrival(rank=1, op="AllReduce", group=(0, 1), value=y, attributes={"op": "sum"}, where="mlp"))
>>> meeting.take(1)  # x + y
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

Group = tuple[int, ...]
REDUCTIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **{"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
}


class Mismatch(Exception):
    """Ranks of one group that come with different operations; the text says who, where and what."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One rank at one collective operator.

    Attributes:
        op: MindSpore's primitive.
        group: global ranks in the group's order; of Send and Receive (sender, receiver).
        value: what the rank hands in; None for Receive.
        attributes: of the primitive.
        where: the operator in words.
        shape, dtype: of what a Receive expects.
    """

    rank: int
    op: str
    group: Group
    value: np.ndarray | None
    attributes: Mapping[str, Any]
    where: str
    shape: tuple[int, ...] = ()
    dtype: str = ""

    def words(self) -> str:
        """The operator and what it carries."""
        return f"{self.op}{self._how()} {self._type()} of group {list(self.group)} ({self.where})"

    def _type(self) -> str:
        dtype, shape = (self.dtype, self.shape) if self.value is None else (str(self.value.dtype), self.value.shape)
        return f"{dtype.lower()} {list(shape)}"

    def _how(self) -> str:
        return f" ({self.attributes['op']})" if "op" in self.attributes else ""


def _all_reduce(arrivals: Sequence[Arrival], parts: list[np.ndarray]) -> list[np.ndarray]:
    total = reduce(REDUCTIONS[arrivals[0].attributes["op"]], parts)
    return [total] * len(parts)


def _all_gather(arrivals: Sequence[Arrival], parts: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate(parts)] * len(parts)


def _reduce_scatter(arrivals: Sequence[Arrival], parts: list[np.ndarray]) -> list[np.ndarray]:
    total = reduce(REDUCTIONS[arrivals[0].attributes["op"]], parts)
    return _even_split(total, len(parts), 0, arrivals[0])


def _all_to_all(arrivals: Sequence[Arrival], parts: list[np.ndarray]) -> list[np.ndarray]:
    how = arrivals[0].attributes
    if how["split_count"] != len(parts):
        raise Mismatch(f"{arrivals[0].words()} splits into {how['split_count']}, but its group has {len(parts)} ranks")
    pieces = [_even_split(part, len(parts), how["split_dim"], arrivals[0]) for part in parts]
    return [np.concatenate([piece[place] for piece in pieces], how["concat_dim"]) for place in range(len(parts))]


def _broadcast(arrivals: Sequence[Arrival], parts: list[np.ndarray]) -> list[np.ndarray]:
    return [parts[arrivals[0].group.index(arrivals[0].attributes["root_rank"])]] * len(parts)


def _even_split(value: np.ndarray, parts: int, dim: int, arrival: Arrival) -> list[np.ndarray]:
    if value.shape[dim] % parts:
        raise Mismatch(
            f"{arrival.words()}: dim {dim} has {value.shape[dim]} values, which {parts} ranks cannot share evenly"
        )
    return np.split(value, parts, dim)


OPERATIONS: Mapping[str, Callable[[Sequence[Arrival], list[np.ndarray]], list[np.ndarray]] | None] = {
    "AllReduce": _all_reduce,
    "AllGather": _all_gather,
    "ReduceScatter": _reduce_scatter,
    "AlltoAll": _all_to_all,
    "Broadcast": _broadcast,
    "Send": None,
    "Receive": None,
}
"""Collectives that can run; Send and Receive are the mailboxes' own."""
_SAME = ("op", "split_count", "split_dim", "concat_dim", "root_rank")
"""Attributes in which all members must agree."""


@dataclass(slots=True)
class Rendezvous:
    """The state of all meetings of a step."""

    waiting: dict[Group, dict[int, Arrival]] = field(default_factory=dict)
    mail: dict[Group, deque[Arrival]] = field(default_factory=dict)
    receivers: dict[int, Arrival] = field(default_factory=dict)
    results: dict[int, np.ndarray] = field(default_factory=dict)

    def hand_in(self, arrival: Arrival) -> None:
        """A rank comes to a collective. A Send does not wait; every other operation does, until `take` gives.

        Raises Mismatch where it does not fit the others.
        """
        if arrival.op == "Send":
            self.mail.setdefault(arrival.group, deque()).append(arrival)
            receiver = self.receivers.get(arrival.group[1])
            if receiver is not None and receiver.group == arrival.group:
                self._deliver(receiver)
        elif arrival.op == "Receive":
            self.receivers[arrival.rank] = arrival
            if self.mail.get(arrival.group):
                self._deliver(arrival)
        else:
            self._meet(arrival)

    def take(self, rank: int) -> np.ndarray | None:
        """What a waiting rank gets; None while others are missing."""
        return self.results.pop(rank, None)

    def waits(self) -> list[Arrival]:
        """Ranks that wait, in order."""
        there = [arrival for members in self.waiting.values() for arrival in members.values()]
        return sorted([*there, *self.receivers.values()], key=lambda arrival: arrival.rank)

    def missing(self, arrival: Arrival) -> list[int]:
        """Ranks that a waiting rank waits for."""
        if arrival.op == "Receive":
            return [arrival.group[0]]
        return [rank for rank in arrival.group if rank not in self.waiting[arrival.group]]

    def unread(self) -> list[Arrival]:
        """Messages that were sent and not received."""
        return [arrival for box in self.mail.values() for arrival in box]

    def _meet(self, arrival: Arrival) -> None:
        members = self.waiting.setdefault(arrival.group, {})
        members[arrival.rank] = arrival
        if len(members) < len(arrival.group):
            return
        del self.waiting[arrival.group]
        arrivals = [members[rank] for rank in arrival.group]
        _check_alike(arrivals)
        operation = OPERATIONS[arrival.op]
        assert operation is not None, "Send and Receive do not meet in a group"
        parts = [member.value for member in arrivals]
        self.results.update(zip(arrival.group, operation(arrivals, parts), strict=True))

    def _deliver(self, receiver: Arrival) -> None:
        message = self.mail[receiver.group].popleft()
        assert message.value is not None, "a Send hands in a value"
        wanted, given = receiver.attributes.get("sr_tag"), message.attributes.get("sr_tag")
        same_type = message.value.shape == receiver.shape and str(message.value.dtype) == receiver.dtype.lower()
        if wanted != given or not same_type:
            raise Mismatch(
                f"rank {receiver.rank} waits in {receiver.words()} with tag {wanted}, but the next message of rank "
                f"{message.rank} is {message.words()} with tag {given}. Messages of a pair are received in the order "
                "in which they were sent"
            )
        del self.receivers[receiver.rank]
        self.results[receiver.rank] = message.value


def _check_alike(arrivals: Sequence[Arrival]) -> None:
    first = arrivals[0]
    for other in arrivals[1:]:
        alike = (
            first.op == other.op
            and all(first.attributes.get(name) == other.attributes.get(name) for name in _SAME)
            and first.value.shape == other.value.shape
            and first.value.dtype == other.value.dtype
        )
        if not alike:
            raise Mismatch(
                f"ranks {first.rank} and {other.rank} meet with different operations. Rank {first.rank}: "
                f"{first.words()}; rank {other.rank}: {other.words()}. On devices neither would end, or each would "
                "read the other's bytes as its own"
            )
