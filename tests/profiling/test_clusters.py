"""Clusters with a known fault are judged right: the slow rank, not those that wait for it; the slow link."""

from __future__ import annotations

import random
import shutil

import pytest
from profiling.made_cluster import PLAIN, Cluster

from msparallel.errors import UserError
from msparallel.hardware import load_hardware
from msparallel.mesh import Mesh
from msparallel.profiling.profile import Profile, profile
from msparallel.profiling.recipe_changes import Recipes
from msparallel.profiling.step_rules import axis_times

pytestmark = pytest.mark.pure
SLOW = ("slow_rank_computes", "slow_rank_is_free", "slow_rank_waits_for_data", "slow_rank_in_collectives")


def named(found: Profile) -> list[tuple[str, int | None]]:
    """Slow ranks and links that were found."""
    return [(one.rule, one.rank) for one in found.findings if one.rule in (*SLOW, "slow_link")]


def one(found: Profile, rule: str):
    (finding,) = [finding for finding in found.findings if finding.rule == rule]
    return finding


def test_nothing_is_found_where_nothing_is_wrong(tmp_path):
    found = profile(Cluster().write(tmp_path))
    assert found.findings == () and len(found.view.times) == 64 and not found.failed


@pytest.mark.parametrize("rank", [0, 11, 63])
def test_a_rank_that_computes_longer(tmp_path, rank):
    found = profile(Cluster(slow=(rank,)).write(tmp_path))
    assert named(found) == [("slow_rank_computes", rank)]
    finding = one(found, "slow_rank_computes")
    assert finding.gain == pytest.approx(120 / 1030, abs=0.01)
    assert "15% more" in finding.root_cause and "entered 12 of 12 collectives last" in finding.root_cause
    assert finding.evidence[0].file == f"rank_{rank}/ASCEND_PROFILER_OUTPUT/step_trace_time.csv"


def test_a_rank_whose_host_is_late(tmp_path):
    found = profile(Cluster(late=37, operators=PLAIN).write(tmp_path))
    assert named(found) == [("slow_rank_is_free", 37)]
    finding = one(found, "slow_rank_is_free")
    assert "between Unique99 and MatMul0" in finding.root_cause  # what stands before the longest gap
    assert finding.gain == pytest.approx(120 / 1030, abs=0.01)


def test_a_rank_that_waits_for_data(tmp_path):
    found = profile(Cluster(starved=5).write(tmp_path))
    assert named(found) == [("slow_rank_waits_for_data", 5)]
    finding = one(found, "slow_rank_waits_for_data")
    assert "empty 88% of the time" in finding.root_cause
    assert [place.file.rpartition("/")[2] for place in finding.evidence if "minddata" in place.file]


def test_a_slow_link_among_many(tmp_path):
    found = profile(Cluster(link=(3, 11)).write(tmp_path), hardware=load_hardware("atlas_800t_a2"))
    assert named(found) == [("slow_link", 3)]
    finding = one(found, "slow_link")
    assert finding.ranks == (3, 11) and "5.98 GB/s" in finding.root_cause and "messages of 40 MB" in finding.root_cause
    assert "should reach 17.5" in finding.root_cause
    assert 0 < finding.gain < 0.02  # 40 MB at 6 instead of 17.5 GB/s are 4.4 ms of a second


def test_small_messages_make_no_link_slow(tmp_path):
    found = profile(Cluster().write(tmp_path))
    assert len(found.view.measured.links) == 64 * 14
    assert {link.transport for link in found.view.measured.links} == {"HCCS", "RDMA"}


def test_two_slow_ranks_and_a_link_at_once(tmp_path):
    found = profile(Cluster(slow=(9,), late=40, link=(0, 8)).write(tmp_path))
    assert set(named(found)) == {("slow_rank_computes", 9), ("slow_rank_is_free", 40), ("slow_link", 0)}


def test_the_recipe_tells_stages_and_axes(tmp_path):
    recipes = Recipes("llama2_70b_dp2_tp8_pp4", ())
    cluster = Cluster(Mesh(pp=4, dp=2, tp=8), slow=(20,), bubble_ms=100)
    found = profile(cluster.write(tmp_path), recipes=recipes)
    assert {time.group for time in found.view.times} == {"stage 0", "stage 1", "stage 2", "stage 3"}
    assert named(found) == [("slow_rank_computes", 20)]
    bubble = one(found, "bubble")
    assert "4 stages have 32 micro-batches" in bubble.root_cause
    for finding in found.findings:
        if finding.changes:  # what is suggested passes every rule, fits, and is faster on paper
            assert recipes.changed(finding.changes).time.step_s < recipes.changed(()).time.step_s
    assert set(axis_times(found.view)) == {"tp", "dp"}
    assert bubble.gain == pytest.approx(100 / 1130, abs=0.01)


def test_uneven_stages(tmp_path):
    root = Cluster().write(tmp_path)
    for rank in range(16, 32):
        file = root / f"rank_{rank}" / "ASCEND_PROFILER_OUTPUT" / "step_trace_time.csv"
        rows = file.read_text().splitlines()
        for at in range(1, len(rows)):
            cells = rows[at].split(",")
            cells[2] = str(float(cells[2]) * 1.2)
            cells[7] = str(float(cells[7]) + float(cells[2]) / 6)
            rows[at] = ",".join(cells)
        file.write_text("\n".join(rows) + "\n")
    found = profile(root, recipes=Recipes("llama2_70b_dp2_tp8_pp4", ()))
    finding = one(found, "uneven_stages")
    assert finding.ranks == tuple(range(16, 32)) and named(found) == []
    assert "Stage 1 computes" in finding.root_cause


def test_a_slow_node_is_told_as_one(tmp_path):
    flat = ("parallel.pipeline_stages=1", "parallel.data_parallel=8", "parallel.stage_layers=null")
    found = profile(Cluster(slow=(24, 25, 26, 27)).write(tmp_path), recipes=Recipes("llama2_70b_dp2_tp8_pp4", flat))
    assert {rank for _, rank in named(found)} == {24, 25, 26, 27}
    assert one(found, "slow_node").root_cause.startswith("All slow ranks are on node 3")


def test_who_is_late_without_a_step_trace(tmp_path):
    root = Cluster(slow=(11,)).write(tmp_path)
    for file in root.rglob("step_trace_time.csv"):
        file.unlink()
    found = profile(root)
    assert named(found) == [("slow_rank_in_collectives", 11)]


def test_ranks_beyond_the_recipe_are_another_job(tmp_path):
    with pytest.raises(UserError, match="the profile has rank 63, the recipe 8 devices"):
        profile(Cluster().write(tmp_path), recipes=Recipes("llama2_7b_dp2_tp2_pp2", ()))


def test_fewer_ranks_than_the_recipe_has_are_noted_and_no_stage_is_guessed(tmp_path):
    """Four ranks of a run without a pipeline, beside a recipe of eight in two stages: none of them is of stage 0. Only
    the last rank proves that numbers are the recipe's."""
    root = Cluster(Mesh(dp=2, tp=2), operators=PLAIN).write(tmp_path / "half")
    found = profile(root, recipes=Recipes("llama2_7b_dp2_tp2_pp2", ()))
    (note,) = [note for note in found.view.notes if "ranks" in note]
    assert "The profile has 4 ranks, the last of them 3; the recipe has 8 devices (pp2 x dp2 x tp2 (8))" in note
    assert set(found.view.groups) == {"all ranks"} and "no rank is counted to a stage" in note
    root = Cluster(Mesh(pp=2, dp=2, tp=2)).write(tmp_path / "some")
    for rank in (0, 2, 3, 5):
        shutil.rmtree(root / f"rank_{rank}")
    found = profile(root, recipes=Recipes("llama2_7b_dp2_tp2_pp2", ()))
    assert set(found.view.groups) == {"stage 0", "stage 1"}
    assert not any("ranks 0 to" in note for note in found.view.notes)
    shutil.rmtree(root / "rank_7")
    assert set(profile(root, recipes=Recipes("llama2_7b_dp2_tp2_pp2", ())).view.groups) == {"all ranks"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_random_clusters(tmp_path, seed):
    """Any mesh, any rank, any fault: that rank and no other is named."""
    draw = random.Random(seed)
    mesh = Mesh(pp=draw.choice((1, 2, 4)), dp=draw.choice((2, 4, 8)), tp=draw.choice((1, 2, 8)))
    fault, rank = draw.choice(("slow", "late", "starved", "none")), draw.randrange(mesh.size)
    settings = {"slow": {"slow": (rank,)}, "late": {"late": rank}, "starved": {"starved": rank}, "none": {}}[fault]
    cluster = Cluster(mesh, seed=seed, extra_ms=draw.uniform(60, 400), bubble_ms=draw.choice((0, 60)) * (mesh.pp > 1),
                      **settings)  # fmt: skip
    expected = {"slow": "slow_rank_computes", "late": "slow_rank_is_free", "starved": "slow_rank_waits_for_data"}
    assert named(profile(cluster.write(tmp_path))) == ([(expected[fault], rank)] if fault != "none" else []), cluster
