"""Pipelines that MindSpore compiled, against what their schedules are known to take.

Only the matrix products of layers are charged, one second each, so that stages are alike: embedding, head, loss and
optimizer, which only some stages have, take nothing, and neither do transfers. With p stages, v groups of layers on
each, m micro-batches, and tf and tb seconds for all layers of a stage, a step takes

    (m + (p - 1) / v) (tf + tb)          of which (p - 1) / (v m + p - 1) is bubble

Source: Narayanan et al., "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
section 2.2, for 1F1B with and without interleaving and for GPipe with v = 1. MindSpore has GPipe with v > 1 only; there
the same follows: each of the two passes is v m + p - 1 chunks long.
"""

from __future__ import annotations

from itertools import groupby

import pytest
from compiled import plan_of

from msparallel.compile.ranks import temporary_folder
from msparallel.mesh import Mesh
from msparallel.simulate.cost import DeviceCost, Message
from msparallel.simulate.program import RankProgram, compiled_programs
from msparallel.simulate.timeline import Timeline, simulate_step

pytestmark = pytest.mark.cpu


class LayerProducts:
    """A second for each matrix product of a layer, nothing for anything else."""

    def operator(self, execution, operator) -> float:
        return 1.0 if operator.op == "MatMul" and "layers-CellList" in operator.node.scope else 0.0

    def message(self, op, ranks, size) -> Message:
        return Message(0.0)


def compiled(*words: str, ranks: range | None = None) -> tuple[list[RankProgram], Mesh]:
    plan = plan_of("llama2_7b_dp2_tp2_pp2", "cluster.devices_per_node=null", *words)
    with temporary_folder() as folder:
        return compiled_programs(plan, ranks or range(plan.mesh.size), folder, progress=False), plan.mesh


def pipeline(stages: int, groups: int, count: int, schedule: str = "1f1b") -> list[RankProgram]:
    """One device a stage, one layer a group, `count` micro-batches."""
    words = [f"parallel.pipeline_stages={stages}", f"model.num_layers={stages * groups}"]
    words += ["parallel.data_parallel=1", "parallel.model_parallel=1", f"train.global_batch_size={count}"]
    words += [f"parallel.virtual_stages={groups}", f"parallel.pipeline_schedule={schedule}", "parallel.recompute=none"]
    return compiled(*words)[0]


def walked(programs: list[RankProgram], mesh: Mesh, cost=None) -> Timeline:
    graphs = {p.rank: [(graph.execution, graph.executions) for graph in p.graphs] for p in programs}
    return simulate_step(graphs, mesh=mesh, cost=cost or LayerProducts())


def seconds_of(program: RankProgram, count: int) -> tuple[float, float]:
    """Of all layers of a stage for one micro-batch, forward and backward."""
    charged = [
        operator.node.scope.startswith("Gradients")
        for graph in program.graphs
        for operator in graph.execution.operators
        if LayerProducts().operator(graph.execution, operator)
    ]
    return charged.count(False) / count, charged.count(True) / count


def passes(timeline: Timeline, rank: int) -> list[tuple[str, int | None]]:
    """Passes over micro-batches as a stage runs them: ("F", 0), ("F", 1), ("B", 0) ..."""
    charged = [span for span in timeline.spans if span.rank == rank and span.op == "MatMul"]
    charged.sort(key=lambda span: span.start_s)
    told = [("B" if span.path.startswith("gradient") else "F", span.micro) for span in charged]
    return [one for one, _ in groupby(told)]


@pytest.mark.parametrize(
    ("stages", "groups", "count", "schedule"),
    [
        (2, 1, 2, "1f1b"),
        (2, 1, 4, "1f1b"),
        (2, 2, 4, "1f1b"),
        (2, 2, 4, "gpipe"),
        pytest.param(4, 1, 4, "1f1b", marks=pytest.mark.slow),
        pytest.param(4, 1, 8, "1f1b", marks=pytest.mark.slow),
        pytest.param(2, 2, 2, "1f1b", marks=pytest.mark.slow),
        pytest.param(4, 2, 4, "1f1b", marks=pytest.mark.slow),
        pytest.param(4, 2, 8, "1f1b", marks=pytest.mark.slow),
        pytest.param(4, 2, 8, "gpipe", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_pipeline_takes_the_closed_form(stages, groups, count, schedule):
    programs = pipeline(stages, groups, count, schedule)
    ((forward, backward),) = {seconds_of(program, count) for program in programs}  # stages are alike
    assert forward == groups * 7 and backward == 2 * forward
    timeline = walked(programs, Mesh(pp=stages))
    assert timeline.step_time_s == pytest.approx((count + (stages - 1) / groups) * (forward + backward), rel=0.01)
    for times in timeline.ranks:
        assert times.bubble == pytest.approx((stages - 1) / (groups * count + stages - 1), rel=0.01)
        assert times.exposed_s == {}
    if groups == 1:
        for stage in range(stages):
            assert passes(timeline, stage) == one_forward_one_backward(stages - stage, count)


def one_forward_one_backward(first: int, count: int) -> list[tuple[str, int]]:
    """Passes of a stage that begins with `first` micro-batches."""
    first = min(first, count)
    order = [("F", number) for number in range(first)]
    for number in range(count):
        order.append(("B", number))
        if first + number < count:
            order.append(("F", first + number))
    return order


@pytest.mark.slow
def test_one_rank_of_each_stage_stands_for_all():
    """dp2 x tp2 x pp2: replicas and parts of a matrix do the same, so the others change nothing."""
    programs, mesh = compiled("model.num_layers=2", "train.global_batch_size=8")
    cost = DeviceCost(plan_of("llama2_7b_dp2_tp2_pp2").hardware, devices_per_node=8)
    whole = walked(programs, mesh, cost)
    some = walked([program for program in programs if program.rank in (0, 4)], mesh, cost)
    assert some.step_time_s == pytest.approx(whole.step_time_s)
    for times in some.ranks:
        same = next(other for other in whole.ranks if other.rank == times.rank)
        assert times.busy_s == pytest.approx(same.busy_s) and times.bubble == pytest.approx(same.bubble)
        assert times.exposed_s == pytest.approx(same.exposed_s)
    assert {axes for axes in whole.exposed_s} >= {("tp",)} and whole.busiest_link.name == "HCCS"
