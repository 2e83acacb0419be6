"""Bytes of weights, gradients and optimizer state on a rank of each stage, on paper.

In: a Workload. Out: a State for each pipeline stage. Per layer and table it is computed once for the degrees that
matter and then remembered, so that a search can ask for it thousands of times.

>>> state = stage_states(workload_of(resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))))[1]
>>> state.weights_bytes == state_bytes(plan, rank=4).weights_bytes
True

With P parameters on a rank before anything is shared out (`planner/shards.py` says what tp and ep cut), d copies of
them, and the stack's bytes w, g, o a parameter (`planner/stack.py`):

    megatron    w P + g P + o P / d with level1; level2 shares gradients too, level3 everything
    fsdp        (w + g + o) P / d
    mindspore   parameter by parameter: cut over the copies or left whole; sums of gradients whole below level2

d = dp cp; of a routed expert dp cp tp / ep, or dp cp / ep where tp cuts experts (Megatron-LM's expert data-parallel
group). The embedding lives on the first stage and the head on the last, which has a copy of its own where both are one
table.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from msparallel.model.shape import ModelShape
from msparallel.planner.shards import CutBy, layer_parameters, norm_parameters, optimizer_pieces
from msparallel.planner.stack import Stack
from msparallel.planner.workload import ShardLevel, Workload
from msparallel.recipe.rules.mode import feasible_group

SERVER = 8
"""Devices of a server, over which MindSpore's groups must lie alike (`recipe/rules/mode.py`)."""


class State(NamedTuple):
    """Bytes from step to step of one rank, and of its weights before the optimizer shard cut them.

    Attributes:
        parameters: on the rank, before the optimizer shard.
    """

    weights_bytes: float = 0
    gradients_bytes: float = 0
    optimizer_bytes: float = 0
    parameters: int = 0

    @property
    def bytes(self) -> float:
        """Weights, gradients and optimizer state together."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def plus(self, other: State, times: int = 1) -> State:
        """Both together, the other one `times`."""
        return State(
            self.weights_bytes + times * other.weights_bytes,
            self.gradients_bytes + times * other.gradients_bytes,
            self.optimizer_bytes + times * other.optimizer_bytes,
            self.parameters + times * other.parameters,
        )


class _Sharing(NamedTuple):
    """All that decides how a parameter is cut."""

    stack: Stack
    stage_ranks: int
    first_rank: int
    dp: int
    cp: int
    tp: int
    ep: int
    vocab_parallel: bool
    level: ShardLevel
    size: int
    threshold_kib: int
    accumulates: bool


def stage_states(work: Workload) -> tuple[State, ...]:
    """State of each stage, of the rank that holds most of it."""
    return _states(work.shape, _sharing_of(work), work.stage_layers, work.mesh.pp)


def first_table_bytes(work: Workload) -> float:
    """Weights of the first stage's tables on a rank."""
    return _first_state(work.shape, _sharing_of(work)).weights_bytes


def _sharing_of(work: Workload) -> _Sharing:
    mesh = work.mesh
    return _Sharing(
        work.stack, mesh.dp * mesh.cp * mesh.tp, 0, mesh.dp, mesh.cp, mesh.tp, work.expert_parallel,
        work.vocab_parallel, work.optimizer_shard, work.optimizer_shard_size, work.optimizer_shard_threshold_kib,
        work.micro_batch_num > 1 or mesh.pp > 1,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _states(shape: ModelShape, sharing: _Sharing, stage_layers: tuple[int, ...], stages: int) -> tuple[State, ...]:
    found = []
    for stage in range(stages):
        here = sharing._replace(first_rank=stage * sharing.stage_ranks % SERVER)
        state = State().plus(layer_state(shape, here), sum(stage_layers[stage::stages]))
        if stage == 0:
            state = state.plus(_first_state(shape, here))
        if stage == stages - 1:
            state = state.plus(_last_state(shape, here, own_table=not shape.tie_embeddings or stages > 1))
        found.append(state)
    return tuple(found)


@lru_cache(maxsize=65536)
def layer_state(shape: ModelShape, sharing: _Sharing) -> State:
    """Of one layer."""
    return _total(sharing, tuple((whole, axes) for _, whole, axes in layer_parameters(shape)))


@lru_cache(maxsize=4096)
def _first_state(shape: ModelShape, sharing: _Sharing) -> State:
    tables = [_table(shape, sharing)]
    if shape.position == "learned":
        tables.append(((shape.max_positions, shape.hidden_size), (None, None)))
    return _total(sharing, tuple(tables))


@lru_cache(maxsize=4096)
def _last_state(shape: ModelShape, sharing: _Sharing, *, own_table: bool) -> State:
    held = [(whole, axes) for _, whole, axes in norm_parameters(shape, "norm")]
    return _total(sharing, (*held, _table(shape, sharing)) if own_table else tuple(held))


def _table(shape: ModelShape, sharing: _Sharing) -> tuple[tuple[int, ...], CutBy]:
    return (shape.padded_vocab_size, shape.hidden_size), ("tp" if sharing.vocab_parallel else None, None)


def _total(sharing: _Sharing, parameters: tuple[tuple[tuple[int, ...], CutBy], ...]) -> State:
    one = _mindspore if sharing.stack.framework == "mindspore" else _to_the_byte
    total = State()
    for whole, axes in parameters:
        total = total.plus(one(sharing, whole, axes))
    return total


def _mindspore(sharing: _Sharing, whole: tuple[int, ...], axes: CutBy) -> State:
    stack, degree, rows_cut = sharing.stack, 1, 1
    for place, axis in enumerate(axes):
        if axis is not None:
            degree = sharing.tp if axis == "tp" else sharing.ep
            rows_cut = degree if place == 0 else 1
    gathered = math.prod(whole) // degree
    copies = sharing.stage_ranks // degree
    pieces = 1
    if sharing.level != "none":
        pieces = optimizer_pieces(
            whole, rows_cut=rows_cut, copies=copies, size=sharing.size, threshold_kib=sharing.threshold_kib
        )
    if pieces > 1 and not _all_feasible(sharing.first_rank, sharing.stage_ranks, degree, pieces):
        pieces = 1
    held = gathered // pieces
    whole_sums = sharing.accumulates and sharing.level not in ("level2", "level3")
    return State(
        weights_bytes=held * stack.weight_bytes,
        gradients_bytes=(gathered if whole_sums else held) * stack.gradient_bytes,
        optimizer_bytes=held * stack.optimizer_bytes,
        parameters=gathered,
    )


@lru_cache(maxsize=4096)
def _all_feasible(first: int, ranks: int, degree: int, pieces: int) -> bool:
    """Whether all groups of a stage that share a parameter out are such as MindSpore can make."""
    for rank in range(ranks):
        copy = rank // degree
        if copy % pieces == 0 and not feasible_group([first + rank + place * degree for place in range(pieces)]):
            return False
    return True


def _to_the_byte(sharing: _Sharing, whole: tuple[int, ...], axes: CutBy) -> State:
    stack = sharing.stack
    held, copies = math.prod(whole), sharing.dp * sharing.cp
    if "ep" in axes:
        over_tp = sharing.tp if stack.experts_cut_by_tp else 1
        held = -(-held // (sharing.ep * over_tp))
        copies = max(1, sharing.dp * sharing.cp * sharing.tp // (sharing.ep * over_tp))
    elif "tp" in axes:
        held = -(-held // sharing.tp)
    weights, gradients = held * stack.weight_bytes, held * stack.gradient_bytes
    optimizer = held * stack.optimizer_bytes
    level = "level3" if stack.framework == "fsdp" and sharing.level != "none" else sharing.level
    return State(
        weights_bytes=weights / copies if level == "level3" else weights,
        gradients_bytes=gradients / copies if level in ("level2", "level3") else gradients,
        optimizer_bytes=optimizer / copies if level != "none" else optimizer,
        parameters=held,
    )
