"""EASY backfilling: the first in line has a reservation, others may start as long as they leave it alone.

In: who runs, until when at the latest; the first in line. Out: a Reservation: the moment by which there is room for it,
its nodes, and what of every node is left to those who would still run then. Only the first in line has one (Lifka, The
ANL/IBM SP scheduling system, 1995; Mu'alem and Feitelson, IEEE TPDS 12(6), 2001: "shadow time" and "extra nodes", here
per node, since a job takes whole shares of nodes).

Runs end by their estimates at the latest and what is started later keeps to the reservation, so the moment never moves
back while the first in line stays the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from msparallel.schedule.queue.job import Shape
from msparallel.schedule.queue.nodes import best_fit
from msparallel.schedule.queue.state import Decision, Piece, State


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Attributes:
    at_s: the first in line starts then at the latest.
    nodes: where.
    left: by node, devices that are free then beside it.
    """

    at_s: float
    nodes: tuple[int, ...]
    left: list[int]


def reservation(state: State, piece: Piece) -> Reservation:
    """For a firm piece that has no room now. There is always one: an empty cluster has room for every job."""
    count, share = piece.shape
    free = list(state.firm_nodes.free)
    roomy = sum(devices >= share for devices in free)
    at_s = state.now
    for run in state.firm.running:
        if roomy >= count and run.limit_s > at_s:
            break
        at_s = run.limit_s
        for node in run.nodes:
            roomy += free[node] < share <= free[node] + run.piece.shape[1]
            free[node] += run.piece.shape[1]
    nodes = best_fit(free, piece.shape)
    assert nodes is not None, "every job fits an empty cluster"
    for node in nodes:
        free[node] -= share
    return Reservation(at_s=at_s, nodes=nodes, left=free)


def backfilled(state: State) -> Iterator[Decision]:
    """Pieces behind the first in line that start now and leave its reservation alone: they end before it, or take
    only devices that are free beside it."""
    line = state.firm.waiting
    if len(line) < 2 or not state.firm_nodes.total:
        return
    held = reservation(state, line[0])
    no_room: set[Shape] = set()  # devices only become fewer while this runs, so what found no room finds none later
    no_room_beside: set[Shape] = set()
    shapes = len(state.firm.shapes)
    for piece in line[1:]:
        shape = piece.shape
        if shape in no_room:
            continue
        if state.limit_s(piece) <= held.at_s:
            nodes = state.firm_nodes.find(shape)
            if nodes is None:
                no_room.add(shape)
        elif shape in no_room_beside:
            continue
        else:
            nodes = _beside(state, held, shape)
            if nodes is None:
                no_room_beside.add(shape)
        if nodes is not None:
            yield state.on_firm(piece, nodes)
        if not state.firm_nodes.total or len(no_room) >= shapes:
            return


def _beside(state: State, held: Reservation, shape: Shape) -> tuple[int, ...] | None:
    """Room now that stays free when the first in line starts; taken off what is left."""
    if shape[0] * shape[1] > state.firm_nodes.total:
        return None
    nodes = best_fit(list(map(min, state.firm_nodes.free, held.left)), shape)
    for node in nodes or ():
        held.left[node] -= shape[1]
    return nodes
