"""Most memory that a rank of each pipeline stage holds at once, by term, on paper.

In: a Workload. Out: a StageMemory for each stage. Weights, gradients and moments are
`planner/state.py`'s, kept tensors of a layer `planner/activations.py`'s.

>>> memory = stage_memories(workload_of(resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))))
>>> [round(stage.total_bytes / 2**30, 1) for stage in memory]
[44.7, 37.7]

A step's peak is the state, what micro-batches under way keep, and the largest of four moments:

- a layer's backward pass: gradients of its widest tensors, tokens gathered for its products, the layer itself where it
  is computed again, and the gradient of its largest matrix;
- the loss, on the last stage: logits in as many copies as the stack makes of them;
- the head's backward pass: the logits' gradient in 16 bits and the head's;
- the update: copies of all gradients while their norm is taken. What is beyond the kept activations counts.

Beside them stand for the whole step: 16-bit or gathered weights, masks and tables of positions, buffers that the stack
keeps. Of all this only the state is exact; the band around the total is

    low    total - 10 % of what is not state
    high   total + 10 % of it, for fragments and for tensors that nobody lists, + 1 % of the state

which covers most of what published peaks deviate by (`msparallel plan-evaluate`). Buffers of collectives lie outside
what frameworks count; the hardware profile's usable memory leaves room for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from msparallel.planner.activations import Sizes, expert_rows, groups_in_flight, kept_bytes, sizes_of
from msparallel.planner.shards import layer_parameters
from msparallel.planner.state import State, first_table_bytes, stage_states
from msparallel.planner.workload import Workload

UNCERTAIN_SHARE = 0.1
"""Of activations and temporary tensors, up and down."""
STATE_UNCERTAIN_SHARE = 0.01
GIB = 2**30
HALF_BYTES = 2
"""Of a number in 16 bits."""


_FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
"""Matrix -> the one that a stack with fused matrices has it in."""


@dataclass(frozen=True, kw_only=True)
class StageMemory:
    """Most that a rank of a stage holds at once, by term, in bytes.

    Attributes:
        activations_bytes: what layers keep for the backward pass, of all micro-batches that are under way.
        other_bytes: what is alive beside that at the peak: logits, a layer being computed again, gathered weights,
            buffers of collectives.
        low_bytes, high_bytes: the band around `total_bytes`; `fits` asks for the high end.
    """

    stage: int
    layers: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    other_bytes: int
    low_bytes: int
    high_bytes: int

    @property
    def state_bytes(self) -> int:
        """What stays from step to step."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def total_bytes(self) -> int:
        return self.state_bytes + self.activations_bytes + self.other_bytes


class _Matrices(NamedTuple):
    """Numbers in the matrices of a layer on a rank: of all, and of the largest product's."""

    all: float
    largest: float


def stage_memories(work: Workload) -> tuple[StageMemory, ...]:
    """Every stage's, first to last. Nothing of the hardware counts: all devices hold alike."""
    step = _Step(work)
    return tuple(step.memory(stage, state) for stage, state in enumerate(stage_states(work)))


def fullest_stage(work: Workload) -> StageMemory:
    """`fullest_of` all stages, without asking those that cannot be it: of the stages between first and last that have
    as many layers and the same state, the first has most micro-batches under way, and nothing else differs."""
    step, states = _Step(work), stage_states(work)
    last, asked, found = len(states) - 1, set[tuple[int, State]](), None
    for stage, state in enumerate(states):
        if 0 < stage < last and work.recomputed_layers is None:
            alike = (work.layers_of_stage(stage), state)
            if alike in asked:
                continue
            asked.add(alike)
        memory = step.memory(stage, state)
        if found is None or memory.high_bytes > found.high_bytes:
            found = memory
    assert found is not None, "a pipeline has a stage"
    return found


def fullest_of(memory: Iterable[StageMemory]) -> StageMemory:
    """The stage that needs most at the high end of its band."""
    return max(memory, key=lambda stage: stage.high_bytes)


def static_bytes(work: Workload) -> tuple[int, ...]:
    """What each stage's ranks hold between steps: the state, and buffers and tables that stay."""
    step = _Step(work)
    return tuple(round(state.bytes + step.kept_buffers(stage)) for stage, state in enumerate(stage_states(work)))


class _Step:
    """A workload, and what its stages have in common. Bytes, unless a name says otherwise."""

    def __init__(self, work: Workload) -> None:
        self.work, self.stack, self.shape = work, work.stack, work.shape
        self.sizes = sizes = sizes_of(work)
        self.item, self.tokens = sizes.item, sizes.tokens
        self.kept_whole = kept_bytes(sizes, "none")
        self.kept_less = kept_bytes(sizes, work.recompute)
        self.matrices = layer_matrices(sizes)
        over_tp = work.mesh.tp if work.vocab_parallel else 1
        self.table_numbers = self.shape.padded_vocab_size * self.shape.hidden_size / over_tp
        # Logits are cut along the vocabulary or, where the head is whole, along tokens.
        self.logit_numbers = (sizes.tokens / over_tp if work.vocab_parallel else sizes.stream_tokens) * (
            self.shape.padded_vocab_size
        )
        self.hidden = sizes.stream_tokens * self.shape.hidden_size * sizes.item
        self.gathered = sizes.tokens * self.shape.hidden_size * sizes.item
        self.tables = self.tables_of_positions()
        self.backward = self.layer_backward()

    def memory(self, stage: int, state: State) -> StageMemory:
        work, stack = self.work, self.stack
        layers, groups, again = work.layers_of_stage(stage), groups_in_flight(work, stage), self.recomputed(stage)
        kept = again * self.kept_less + (layers - again) * self.kept_whole
        activations = groups * (kept / work.virtual_stages + self.tables)
        if stage == work.mesh.pp - 1 and work.mesh.pp > 1 and work.schedule == "gpipe":
            activations += (work.micro_batch_num - 1) * self.waiting_loss()
        other = self.kept_buffers(stage) + self.weights_at_work(stage, groups, state)
        peak = self.backward + (self.replay() if again else 0)
        if stage == work.mesh.pp - 1:
            peak = max(peak, self.loss(), self.head_backward())
        other += max(peak, self.update(stage, state) - activations - other) + stack.workspace_bytes
        other += (activations + other) * stack.reserved_share
        weights, gradients, optimizer = map(round, state[:3])
        activations, other = round(activations), round(other)
        held, loose = weights + gradients + optimizer, UNCERTAIN_SHARE * (activations + other)
        total = held + activations + other
        return StageMemory(
            stage=stage,
            layers=layers,
            weights_bytes=weights,
            gradients_bytes=gradients,
            optimizer_bytes=optimizer,
            activations_bytes=activations,
            other_bytes=other,
            low_bytes=round(total - loose),
            high_bytes=round(total + loose + STATE_UNCERTAIN_SHARE * held),
        )

    def recomputed(self, stage: int) -> int:
        """Layers of a stage that are computed again."""
        work = self.work
        if work.recompute == "none":
            return 0
        layers = work.layers_of_stage(stage)
        return layers if work.recomputed_layers is None else min(layers, work.recomputed_layers[stage])

    def tables_of_positions(self) -> float:
        """A mask of a byte for each pair of positions, cosine and sine: in our blocks each group of layers has its
        own."""
        sizes = self.sizes
        if sizes.stack.fused_blocks:
            return 0
        queries = sizes.tokens * (sizes.cp if sizes.algo == "ulysses" else 1)
        rotary = 2 * 4 * sizes.tokens * self.shape.head_dim if self.shape.position == "rope" else 0
        return queries * sizes.seq + rotary

    def kept_buffers(self, stage: int) -> float:
        """What stays from step to step beside the state (`Stack` says what each is)."""
        work, stack, mesh = self.work, self.stack, self.work.mesh
        total = float(work.table_bytes + work.layer_table_bytes * work.layers_of_stage(stage))
        if stack.framework == "megatron" and mesh.pp > 1:
            received = work.virtual_stages - (1 if stage == 0 else 0)
            total += 2 * received * self.hidden
        buffer = stack.framework == "megatron" and not stack.transformer_engine
        if buffer and work.sequence_parallel and mesh.tp > 1:
            total += self.gathered
        return total

    def weights_at_work(self, stage: int, groups: int, state: State) -> float:
        """Copies of weights that stand beside the state while micro-batches run."""
        work, stack, layer = self.work, self.stack, self.matrices.all
        if stack.transformer_engine:
            return layer * self.item
        if stack.framework == "fsdp":
            # Gathered weights and whole gradients: of this layer and the next, in a pipeline of all of them.
            return (state.parameters if work.mesh.pp > 1 else 2 * layer) * (HALF_BYTES + 4)
        if not stack.casts_weights:
            return 0
        first, last = stage == 0, stage == work.mesh.pp - 1
        layers, casts = work.layers_of_stage(stage), self.item == HALF_BYTES
        item = HALF_BYTES if casts or work.optimizer_shard == "none" else 4
        if work.optimizer_shard != "none":
            # Gathered once a step, and in 16 bits if products are; the table of the embedding in float32.
            if work.optimizer_shard == "level3":
                return (layer + self.table_numbers * last) * item
            return layers * layer * item + self.table_numbers * (item * last + 4 * first)
        if not casts:
            return 0
        once = 0 if work.recompute == "full" else groups / work.virtual_stages * layers * layer
        return (once + self.table_numbers * last) * item

    def layer_backward(self) -> float:
        """Gradients of a layer's widest tensors and of its largest matrix, and tokens gathered for its products."""
        work, stack, sizes, shape = self.work, self.stack, self.sizes, self.shape
        halves = 2 if stack.fused_blocks else 1
        if shape.num_experts:
            width = shape.expert_ffn_size / (sizes.tp if stack.experts_cut_by_tp else 1)
            total = expert_rows(sizes) * (halves * width + 2 * shape.hidden_size) * sizes.item
        else:
            total = sizes.tokens * halves * shape.ffn_size / sizes.tp * sizes.item
        total += self.hidden
        whole = stack.framework == "fsdp"
        if sizes.tp > 1 and not (work.overlap_tensor and whole):
            total += self.gathered * (2 if whole else 1)
        if stack.framework == "megatron" and not stack.transformer_engine:
            total += self.matrices.largest * sizes.item
        return total

    def replay(self) -> float:
        """A layer that is computed again, with the casts of its weights where nothing keeps those."""
        casts = self.stack.casts_weights and self.item == HALF_BYTES and self.work.optimizer_shard == "none"
        again = casts and self.work.recompute == "full"
        return self.kept_whole - self.kept_less + (self.matrices.all * self.item if again else 0)

    def loss(self) -> float:
        """Logits, and what the last norm reads and writes."""
        norm = self.hidden * (1 if self.stack.fused_blocks else 4 / self.item)
        return self.logit_numbers * self.stack.loss_bytes + norm + self.gathered

    def waiting_loss(self) -> float:
        """What the loss of a micro-batch keeps while others go forward: probabilities, its labels' places (in our
        blocks), what the last norm reads and writes."""
        kept = 4 * (1 if self.stack.fused_blocks else 2)
        return self.logit_numbers * kept + self.loss() - self.logit_numbers * self.stack.loss_bytes

    def head_backward(self) -> float:
        """Gradients of logits, of the head and of what it reads."""
        hidden = self.gathered * (2 if self.work.sequence_parallel else 1)
        return (self.logit_numbers + self.table_numbers) * self.item + hidden

    def update(self, stage: int, state: State) -> float:
        """MindSpore's engine copies all gradients, and squares them for their norm, at once, but for the embedding,
        which comes last; others make one float32 copy of the largest parameter."""
        if self.stack.framework == "mindspore":
            return 2 * state.weights_bytes - (first_table_bytes(self.work) if stage == 0 else 0)
        return 4 * max(self.matrices.largest, self.table_numbers)


@lru_cache(maxsize=65536)
def layer_matrices(sizes: Sizes) -> _Matrices:
    """What a layer's matrices hold on a rank before any optimizer shard."""
    fused = sizes.stack.fused_blocks
    products: dict[str, float] = {}
    for name, whole, cut in layer_parameters(sizes.shape):
        if len(whole) < 2:
            continue
        numbers = float(math.prod(whole))
        if "tp" in cut:
            numbers /= sizes.tp
        if "ep" in cut:
            numbers /= sizes.ep * (sizes.tp if sizes.stack.experts_cut_by_tp else 1)
        product = _FUSED.get(name.split(".")[-2] if name.endswith("weight") else name.split(".")[-1], name)
        product = product if fused else name
        products[product] = products.get(product, 0.0) + numbers
    return _Matrices(sum(products.values()), max(products.values()))
