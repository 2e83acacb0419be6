"""Orders and scalings that others have measured come out of the formulas.

Sources: the ladder is MindSpore Transformers' performance guide, "Llama2-13B Extreme Performance Optimization"
(mindspore-ai/docs, advanced_development/performance_optimization.md); Llama 2 70B is its model card (branch r1.3.0,
docs/model_cards/llama2.md).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from msparallel.hardware import load_hardware
from msparallel.mesh import Mesh
from msparallel.model.presets import PRESETS
from msparallel.planner.layer_time import layer_time
from msparallel.planner.stack import MINDFORMERS_HALF
from msparallel.planner.step_time import step_time
from msparallel.planner.workload import Workload

pytestmark = pytest.mark.pure
DEVICES = 8

TUNED = Workload(
    shape=PRESETS["llama2_13b"],
    mesh=Mesh(pp=2, dp=8),
    devices_per_node=DEVICES,
    stage_layers=(20, 20),
    micro_batch_size=1,
    micro_batch_num=128,
    seq_length=4096,
    dtype="bfloat16",
    stack=MINDFORMERS_HALF,
    vocab_parallel=True,
    recompute="full",
    optimizer_shard="level1",
)


def tokens_per_s(work: Workload, hardware: str) -> float:
    """On each device."""
    tokens = work.global_batch_size * work.seq_length
    return tokens / work.mesh.size / step_time(work, load_hardware(hardware)).step_s


def ladder(hardware: str) -> list[tuple[int, Workload]]:
    """What was measured, tokens a second and device, and what was run.

    The third step computes again all of a layer but the products of queries, keys and values. That is a share of its
    forward pass, told here as so many whole layers. The last two compute 13 and 5, then 4 and 0 layers again; the
    activations that they recompute in the others are left out.
    """
    layer, h, f = layer_time(TUNED, load_hardware(hardware)), 5120, 13824
    queries = layer.forward.products_s * 3 * h / (4 * h + 3 * f)
    most = round(20 * (1 - queries / layer.again.compute_s))
    return [
        (1860, replace(TUNED, mesh=Mesh(dp=8), stage_layers=(40,), micro_batch_size=4, micro_batch_num=1)),
        (2136, TUNED),
        (2189, replace(TUNED, recomputed_layers=(most, most))),
        (2210, replace(TUNED, recomputed_layers=(most, 0))),
        (2353, replace(TUNED, recomputed_layers=(13, 5))),
        (2562, replace(TUNED, recomputed_layers=(4, 0))),
    ]


@pytest.mark.parametrize("hardware", ["atlas_900_a2", "atlas_800t_a2"])
def test_the_ladder_of_llama2_13b_comes_out_in_its_order(hardware):
    """The guide does not say on which of the two it was."""
    steps = ladder(hardware)
    found = [tokens_per_s(work, hardware) for _, work in steps]
    assert all(slower < faster for (slower, faster) in pairwise(found))
    gains = [value / found[1] for value in found[1:]]
    wanted = [measured / steps[1][0] for measured, _ in steps[1:]]
    assert gains == pytest.approx(wanted, rel=0.08)


def test_twice_the_devices_train_llama2_70b_twice_as_fast():
    """404 tokens a second and device on 32, 405 on 64."""
    work = Workload(
        shape=PRESETS["llama2_70b"],
        mesh=Mesh(pp=8, tp=4),
        devices_per_node=DEVICES,
        stage_layers=(10,) * 8,
        micro_batch_size=1,
        micro_batch_num=256,
        seq_length=4096,
        dtype="bfloat16",
        stack=MINDFORMERS_HALF,
        sequence_parallel=True,
        vocab_parallel=True,
        recompute="selective",
        recomputed_layers=(8, 4, 4, 1, 1, 1, 1, 1),
        optimizer_shard="level1",
    )
    few = tokens_per_s(work, "atlas_900_a2")
    many = tokens_per_s(replace(work, mesh=Mesh(pp=8, dp=2, tp=4)), "atlas_900_a2")
    assert many / few == pytest.approx(405 / 404, rel=0.03)
    assert few == pytest.approx(404, rel=0.15)
