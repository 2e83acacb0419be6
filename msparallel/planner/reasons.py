"""Why a step is not faster: what takes its time beside operations at the peak, largest first, and what would change it.

In: a Workload and its StepTime. Out: Reasons, each with seconds, its share of the step, and a hint in words of recipes.

>>> for reason in reasons(work, step_time(work, hardware))[:3]:
...     print(f"{reason.share:.0%} {reason.name}. {reason.hint}")
21% operators that only move memory. sequence_parallel cuts norms and residuals over tp.
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.planner.step_time import StepTime
from msparallel.planner.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Attributes:
    seconds: of the step that would go if the reason did.
    share: of the step.
    hint: what would make it smaller, one sentence.
    """

    name: str
    seconds: float
    share: float
    hint: str


def reasons(work: Workload, time: StepTime) -> list[Reason]:
    """All that take any time, largest first. What is left of the step is operations at the peak."""
    parts, peak = time.compute_parts_s, time.peak_parts_s
    seconds = {
        "products below the peak": parts["products"] - peak["products"],
        "attention below the peak": parts["attention"] - peak["attention"],
        "operators that only move memory": parts["memory"],
        "recomputation": time.recompute_s,
        **{f"waits for {axis}": waited for axis, waited in time.exposed_s.items()},
        "bubble": time.bubble_s,
        "optimizer": time.optimizer_s,
    }
    found = [
        Reason(name=name, seconds=lost, share=lost / time.step_s, hint=_hint(name, work))
        for name, lost in seconds.items()
        if lost > 0
    ]
    return sorted(found, key=lambda reason: -reason.seconds)


def _hint(name: str, work: Workload) -> str:
    mesh = work.mesh
    hints = {
        "products below the peak": _products_hint,
        "attention below the peak": _attention_hint,
        "operators that only move memory": _memory_hint,
        "recomputation": _recompute_hint,
        "waits for tp": _tensor_hint,
        "waits for dp": _data_hint,
        "bubble": _bubble_hint,
    }
    if name in hints:
        return hints[name](work)
    if name == "waits for cp":
        other = "all_gather" if work.context_parallel_algo == "ulysses" else "ulysses"
        return f"context_parallel {mesh.cp} sends keys and values in each layer; context_parallel_algo {other} others."
    if name == "waits for ep":
        return f"expert_parallel {work.expert_parallel} sends tokens to experts and back; a smaller one sends fewer."
    if name == "waits for pp":
        return f"{mesh.pp} pipeline_stages hand every micro-batch on; fewer stages do so less often."
    if work.optimizer_shard == "none" and mesh.dp * mesh.cp > 1:
        return "optimizer_shard lets each replica update a part of the weights."
    return "Each rank updates its part of the weights once a step; more micro-batches a step make it less of it."


def _products_hint(work: Workload) -> str:
    if work.mesh.tp > 1:
        return f"model_parallel {work.mesh.tp} cuts matrices thin; a smaller one or a larger micro_batch_size helps."
    return "A larger micro_batch_size makes larger products; what remains is what the unit reaches."


def _attention_hint(work: Workload) -> str:
    if not work.stack.skips_masked_keys:
        return "The kernel computes what the mask hides, twice what is needed; a shorter seq_length has less of it."
    return f"Attention grows with the square of seq_length, {work.seq_length}."


def _memory_hint(work: Workload) -> str:
    if work.mesh.tp > 1 and not work.sequence_parallel:
        return "sequence_parallel cuts norms and residuals over tp."
    return "Norms, activations, logits and sums of gradients; a larger micro_batch_size adds fewer sums."


def _recompute_hint(work: Workload) -> str:
    if work.recompute == "full":
        return "recompute selective computes attention again only, if memory allows."
    return "recompute none keeps attention's values, if memory allows."


def _tensor_hint(work: Workload) -> str:
    tp = work.mesh.tp
    if tp > work.devices_per_node:
        return f"model_parallel {tp} crosses servers of {work.devices_per_node} devices."
    return f"model_parallel {tp} sends with every layer; a smaller one sends less, pipeline_stages can take its place."


def _data_hint(work: Workload) -> str:
    if work.optimizer_shard in ("level2", "level3"):
        return f"optimizer_shard {work.optimizer_shard} sends with every micro-batch; level1 sends once a step."
    if not work.overlap_gradients:
        return "overlap_gradients reduces them while the backward pass goes on."
    return "More micro-batches a step reduce gradients less often for each token."


def _bubble_hint(work: Workload) -> str:
    mesh, count = work.mesh, work.micro_batch_num
    if count < 4 * mesh.pp:
        return f"{count} micro-batches for {mesh.pp} stages; with more of them, or fewer stages, it shrinks."
    if work.virtual_stages == 1:
        return "virtual_stages 2 would nearly halve it; stages of unequal work add to it."
    return "stages of unequal work add to it; stage_layers makes them alike."
