"""Which meshes the recipe's rules refuse, whatever else is set.

In: a Workload, a Space, a Mesh. Out: a Refusal for a mesh that no setting makes legal. What `recipe/rules/` says of a
whole recipe is said here of numbers alone, because a search asks it thousands of times; a test writes what is found as
recipes and asks the rules.

>>> refusal(work, Space(devices=16, devices_per_node=8, global_batch_size=64), Mesh(tp=16)).reason
'8 key and value heads cannot be split over 16 devices, at most over 8'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from msparallel.hardware import Hardware
from msparallel.mesh import Mesh
from msparallel.planner.search.space import Space
from msparallel.planner.workload import Workload
from msparallel.recipe.rules.finding import divisors
from msparallel.recipe.rules.mode import infeasible_group


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why no setting makes a mesh legal.

    Attributes:
        rule: of `recipe/rules/`.
        key, value: the setting of the recipe that breaks it.
        change: what would be legal, in words; empty where nothing is.
    """

    rule: str
    key: str
    value: int
    reason: str
    change: str = ""


def engine_cuts(hardware: Hardware, devices: int) -> bool:
    """Whether MindSpore's engine may cut a model over so many devices (rules `operator_modes_need_ascend` and
    `device_number_suits_mindspore`)."""
    return hardware.target != "CPU" and (devices in (2, 4) or (devices > 1 and devices % 8 == 0))


def refusal(work: Workload, space: Space, mesh: Mesh) -> Refusal | None:
    """The first rule that every setting of a mesh breaks."""
    shape = work.shape
    heads, kv, ffn = shape.num_heads, shape.num_kv_heads, shape.ffn_size
    if not space.engine and mesh.dp != mesh.size:
        return Refusal(rule="replica_modes_are_data_parallel", key="devices", value=mesh.size,
                       reason=f"MindSpore's engine cuts no model over {mesh.size} devices here; only replicas run",
                       change="Ascend devices, 2, 4 or a multiple of 8")  # fmt: skip
    common = math.gcd(heads, kv) if shape.num_experts else math.gcd(heads, kv, ffn)
    if heads % mesh.tp:
        return _uncut("heads_over_model_parallel", "model_parallel", mesh.tp, f"{heads} attention heads", common)
    if kv % mesh.tp:
        return _uncut("kv_heads_over_model_parallel", "model_parallel", mesh.tp, f"{kv} key and value heads", common)
    if common % mesh.tp:
        return _uncut("ffn_over_model_parallel", "model_parallel", mesh.tp, f"{ffn} feed-forward columns", common)
    if work.seq_length % mesh.cp:
        seq = work.seq_length
        return _uncut("sequence_over_context_parallel", "context_parallel", mesh.cp, f"{seq} tokens", seq)
    if mesh.pp > shape.num_layers:
        return Refusal(rule="layers_over_stages", key="pipeline_stages", value=mesh.pp,
                       reason=f"{shape.num_layers} layers are fewer than {mesh.pp} stages",
                       change=f"pipeline_stages of at most {shape.num_layers}")  # fmt: skip
    if mesh.pp > 1 and shape.tie_embeddings:
        return Refusal(rule="tied_embeddings_without_pipeline", key="pipeline_stages", value=mesh.pp,
                       reason="token embedding and LM head are one matrix and would lie on two stages",
                       change="pipeline_stages 1, or model.tie_embeddings=false")  # fmt: skip
    total, unit = space.global_batch_size, mesh.dp * (mesh.pp if mesh.pp > 1 else 1)
    if total % mesh.dp:
        nearest = max(unit, round(total / mesh.dp) * mesh.dp)
        return Refusal(rule="batch_comes_out", key="data_parallel", value=mesh.dp,
                       reason=f"a global batch of {total} cannot be dealt out to {mesh.dp} replicas",
                       change=f"--global-batch {nearest}")  # fmt: skip
    if mesh.pp > 1 and total // mesh.dp < mesh.pp:
        return Refusal(rule="micro_batches_fill_pipeline", key="pipeline_stages", value=mesh.pp,
                       reason=f"{total} / data_parallel {mesh.dp} = {total // mesh.dp} micro-batches cannot fill "
                       f"{mesh.pp} stages",
                       change=f"--global-batch {unit}")  # fmt: skip
    found = _infeasible(mesh) if space.engine else None
    if found:
        return Refusal(rule="groups_fit_servers", key="data_parallel", value=mesh.dp,
                       reason=f"MindSpore cannot form the groups over {' x '.join(found)}: of a server's 8 devices it "
                       "groups 1, 2, 4 or all")  # fmt: skip
    return None


def _uncut(rule: str, key: str, degree: int, what: str, common: int) -> Refusal:
    """What a degree does not divide; the degrees that this model allows divide `common`."""
    largest = max(divisors(common, degree))
    return Refusal(rule=rule, key=key, value=degree,
                   reason=f"{what} cannot be split over {degree} devices, at most over {largest}",
                   change=f"{key} {largest}")  # fmt: skip


def _infeasible(mesh: Mesh) -> tuple[str, ...]:
    if mesh.size % 8 or all(degree & (degree - 1) == 0 for degree in mesh.shape):
        return ()  # as the rule: powers of two always fit
    return _infeasible_axes(mesh.pp, mesh.dp, mesh.cp, mesh.tp)


@lru_cache(maxsize=4096)
def _infeasible_axes(pp: int, dp: int, cp: int, tp: int) -> tuple[str, ...]:
    found = infeasible_group(Mesh(pp=pp, dp=dp, cp=cp, tp=tp))
    return found[0] if found else ()
