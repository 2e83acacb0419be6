"""Every rule: measurements that it speaks of, and such that it keeps silent about; the order of gains; the page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from msparallel.hardware import load_hardware
from msparallel.profiling.finding import Finding, in_order
from msparallel.profiling.hccl_test import bus_factor
from msparallel.profiling.link_rules import expected_gb_s
from msparallel.profiling.measured import (
    Counters,
    DataPipeline,
    Evidence,
    Gap,
    HcclTest,
    Iteration,
    Link,
    Measured,
    Memory,
    Operator,
    Power,
    RankOperators,
    SizeRow,
    StepPart,
)
from msparallel.profiling.profile import judge
from msparallel.profiling.recipe_changes import Recipes
from msparallel.profiling.view import view_of

pytestmark = pytest.mark.pure
HERE = Evidence("a.csv", 2, "row")
A2 = load_hardware("atlas_800t_a2")


def found(measured: Measured, **settings) -> dict[str, Finding]:
    """Findings by rule."""
    given = {"plan": None, "hardware": None, **settings}
    return {one.rule: one for one in judge(view_of(measured, **given)).findings}


def steps(*computing: float, free: float = 1.0, waits: float = 5.0, bubble: float = 0.0, prepares: float = 0.5,
          **fields) -> tuple[StepPart, ...]:  # fmt: skip
    """A step for each rank, in milliseconds; the others wait for the longest."""
    longest = max(computing)
    return tuple(StepPart(rank=rank, step="1", computing_us=took * 1e3, free_us=free * 1e3, bubble_us=bubble * 1e3,
                          exposed_us=(waits + bubble + longest - took) * 1e3, overlapped_us=2e3,
                          preparing_us=prepares * 1e3, stage_us=None, place=HERE, **fields)
                 for rank, took in enumerate(computing))  # fmt: skip


def operator(kind: str = "MatMulV3", core: str = "cube", us: float = 1000.0, **fields) -> Operator:
    return Operator(type=kind, core=core, count=3, total_us=us, longest_us=us, longest=HERE, **fields)


def ran(*operators: Operator, gaps: tuple[Gap, ...] = (), rank: int = 0) -> RankOperators:
    return RankOperators(rank=rank, operators=operators, gaps=gaps, steps=1, span_us=0, gaps_us=0, file="k.csv")


def test_slow_is_who_waits_least():
    one = found(Measured(steps=steps(80, 80, 92, 80)))["slow_rank_computes"]
    assert one.rank == 2 and one.gain == pytest.approx(12 / 98) and "15% more" in one.root_cause
    assert "slow_rank_computes" not in found(Measured(steps=steps(80, 80, 83.9, 80)))  # 4.9 %
    pair = found(Measured(steps=steps(80, 92)))["slow_rank_computes"]
    assert pair.rank == 1


def test_whether_all_operators_of_a_slow_rank_are_slower():
    def of(factor: float, more: float = 0.0, count: int = 3) -> tuple[Operator, ...]:
        return (operator("MatMulV3", us=900 * factor), operator("Softmax", "vector", us=500 * factor),
                replace(operator("Gather", "vector", us=300 + more), count=count))  # fmt: skip

    usual = [ran(*of(1.0), rank=rank) for rank in (0, 1, 3)]
    parts = steps(80, 80, 92, 80)
    alike = found(Measured(steps=parts, operators=(*usual, ran(*of(1.15), rank=2))))["slow_rank_computes"]
    assert "All its operators are slower alike, by 12%: its device" in alike.root_cause
    few = found(Measured(steps=parts, operators=(*usual, ran(*of(1.0, 600.0, 9), rank=2))))["slow_rank_computes"]
    assert "What takes longer: Gather 600 us a step, launched 9 instead of 3 times: its work" in few.root_cause


def test_a_rank_that_waits_like_the_others_is_no_cause():
    parts = steps(80, 80, 92, 80, waits=40)
    parts = (*parts[:2], replace(parts[2], exposed_us=52_000), parts[3])
    rules = found(Measured(steps=parts))
    assert rules["rank_computes_more"].severity == "info" and "slow_rank_computes" not in rules


def test_all_ranks_alike_have_no_slow_one():
    assert found(Measured(steps=steps(*[80] * 16))) == {}


def test_waiting_less_what_a_slow_rank_explains():
    rules = found(Measured(steps=steps(80, 80, 80, waits=20)))
    assert rules["waits_for_messages"].gain == pytest.approx(20 / 101)
    slow = found(Measured(steps=steps(80, 80, 92, 80, waits=1)))
    assert "waits_for_messages" not in slow and "slow_rank_computes" in slow


def test_bubble_and_free_devices():
    rules = found(Measured(steps=steps(80, 80, 80, bubble=10, free=20)))
    assert rules["bubble"].gain == pytest.approx(10 / 115) and rules["devices_are_free"].gain == pytest.approx(20 / 115)
    gap = Gap(rank=1, gap_us=9000, start_us=5, before="Cast", after="MatMul", place=HERE)
    told = found(Measured(steps=steps(80, 80, 80, free=20), operators=(ran(operator(), gaps=(gap,)),)))
    assert "9 ms on rank 1, stands between Cast and MatMul" in told["devices_are_free"].root_cause
    assert not {"bubble", "devices_are_free"} & found(Measured(steps=steps(80, 80, bubble=2, free=5))).keys()


def pipeline(empty: float, rank: int = 0) -> DataPipeline:
    return DataPipeline(rank=rank, empty_pct=empty, bottleneck="Map(id=2)", batch_ms=1.0, place=HERE)


def test_devices_that_wait_for_data():
    rules = found(Measured(steps=steps(80, 80, free=20, prepares=15), pipelines=(pipeline(88),)))
    hungry = rules["waits_for_data"]
    assert "devices_are_free" not in rules  # what is left of it is 5 %
    assert "empty 88% of the time; Map(id=2) holds the others up" in hungry.root_cause
    assert hungry.gain == pytest.approx(15 / 105)
    assert "waits_for_data" not in found(Measured(steps=steps(80, 80), pipelines=(pipeline(40),)))
    rows = tuple(Iteration(rank=0, iteration=str(n), time_us=100, data_us=wait, forward_backward_us=None, place=HERE)
                 for n, wait in enumerate((20.0, 10.0)))  # fmt: skip
    assert found(Measured(iterations=rows))["waits_for_data"].gain == pytest.approx(0.15)
    get_next = ran(operator("GetNext", "cpu", us=9000))
    assert "GetNext takes 9 ms" in found(Measured(steps=steps(80, 80), operators=(get_next,)))[
        "waits_for_data"].root_cause  # fmt: skip


def test_parts_that_do_not_add_up():
    (part,) = steps(80)
    rules = found(Measured(steps=(replace(part, stage_us=200_000),)))
    assert rules["parts_are_not_the_step"].severity == "warning"
    rules = found(Measured(steps=(replace(part, communication_us=50_000),)))
    assert "Communication is 50,000 us" in rules["halves_are_not_the_whole"].root_cause


def test_operators_on_the_ai_cpu_and_idle_matrix_units():
    low = operator(us=9000, cube_share=0.4)
    cpu = operator("Unique", "cpu", us=2000)
    rules = found(Measured(steps=steps(80, 80), operators=(ran(low, cpu),)))
    assert rules["operators_on_ai_cpu"].gain == pytest.approx(2 / 86) and "Unique (3 x, 2 ms)" in rules[
        "operators_on_ai_cpu"].root_cause  # fmt: skip
    assert rules["low_cube_use"].gain == pytest.approx(9 * 0.6 / 86)
    little = found(Measured(steps=steps(80, 80), operators=(ran(operator("Unique", "cpu", us=100)),)))
    assert little["operators_on_ai_cpu"].severity == "info"
    good = found(Measured(steps=steps(80, 80), operators=(ran(operator(us=9000, cube_share=0.85)),)))
    assert "low_cube_use" not in good and "operators_on_ai_cpu" not in good


def links(count: int, gb_s: float, transport: str = "RDMA", mb: float = 40.0) -> tuple[Link, ...]:
    return tuple(Link(source=rank, target=rank + 8, transport=transport, mb=mb, ms=mb / gb_s, message_mb=mb, place=HERE)
                 for rank in range(count))  # fmt: skip


def test_links_are_compared_with_their_own_kind_and_size():
    slow = replace(links(1, 5.0)[0], source=20)
    small = links(3, 0.4, mb=1.5)  # slow because they are small: the median of their own size
    rules = found(Measured(links=(*links(6, 17.0), slow, *small, *links(4, 20, "HCCS"))))
    assert rules["slow_link"].ranks == (20, 8) and rules["slow_link"].gain is None
    assert "slow_link" not in found(Measured(links=(*links(6, 17.0), *links(1, 5.0, mb=0.5))))
    assert "slow_link" not in found(Measured(links=(*links(2, 17.0), slow)))  # two others are no middle


def test_a_whole_network_below_its_hardware():
    rules = found(Measured(links=links(6, 6.0)), hardware=A2)
    assert "RDMA reaches 6 GB/s" in rules["links_below_hardware"].root_cause
    assert "links_below_hardware" not in found(Measured(links=links(6, 16.0)), hardware=A2)
    assert "links_below_hardware" not in found(Measured(links=links(6, 1.0, mb=4.0)), hardware=A2)
    assert expected_gb_s(A2, "RDMA") == 17.5 and expected_gb_s(A2, "LOCAL") is None
    assert expected_gb_s(None, "RDMA") is None
    assert expected_gb_s(load_hardware("atlas_900_a3"), "HCCS") == pytest.approx(196 * 0.7)


def hccl(*rows: tuple[int, float, str], operation: str | None = "all_reduce", ranks: int | None = 8) -> HcclTest:
    return HcclTest(file="t.txt", operation=operation, ranks=ranks, rows=tuple(
        SizeRow(bytes=size, time_us=took, printed_gb_s=None, result=result, line=place)
        for place, (size, took, result) in enumerate(rows, 3)))  # fmt: skip


def test_hccl_tests():
    rules = found(Measured(hccl_tests=(hccl((1000, 1, "failed"), (2000, 1, "NULL")),)))
    assert rules["hccl_test_failed"].severity == "error" and rules["hccl_test_unchecked"].severity == "info"
    rules = found(Measured(hccl_tests=(hccl((1 << 20, 100, "success"), (1 << 21, 900, "success")),)))
    assert "2,097,152 bytes" in rules["hccl_test_breaks_in"].root_cause
    slow, fast = ((1 << 28, took, "success") for took in (80_000.0, 4_000.0))
    small = ((1 << 26, 20_000.0, "success"))
    rules = found(Measured(hccl_tests=(hccl(slow),)), hardware=A2)
    assert "3.36 GB/s" in rules["hccl_test_below_hardware"].root_cause
    for test, machine in ((hccl(fast), A2), (hccl(slow), None), (hccl(slow, ranks=None), A2), (hccl(small), A2)):
        assert "hccl_test_below_hardware" not in found(Measured(hccl_tests=(test,)), hardware=machine)
    assert bus_factor("reduce_scatter", 4) == 0.75


def port(captures: int = 2, seconds: float | None = None, **changes: float) -> Counters:
    return Counters(device="d/device 0", changes=changes, seconds=seconds, captures=captures, place=HERE)


def test_ports():
    rules = found(Measured(counters=(port(roce_new_pkt_rty_num=5, mac_rx_bad_pkt_num=2, mac_rx_pfc_pkt_num=9),)))
    assert {one.severity for one in rules.values()} == {"warning"}
    assert set(rules) == {"retransmissions", "bad_packets", "port_paused"}
    once = found(Measured(counters=(port(1, roce_new_pkt_rty_num=5),)))
    assert once["retransmissions"].severity == "info" and "second capture" in once["retransmissions"].root_cause
    quiet = port(mac_rx_pfc_pkt_num=9, mac_rx_total_pkt_num=1e6, roce_new_pkt_rty_num=0)
    assert found(Measured(counters=(quiet,))) == {}
    use = found(Measured(counters=(port(seconds=2.0, mac_tx_total_oct_num=10e9),)), hardware=A2)["port_use"]
    assert "5 GB/s on average" in use.root_cause and "20% of the 25 GB/s" in use.root_cause


def test_clocks():
    hot = Power(device=3, samples=20, busy=10, low=5, high_mhz=1800, low_mhz=1350, hottest_c=104, place=HERE)
    one = found(Measured(power=(hot,)))["clock_falls"]
    assert one.gain == pytest.approx(0.5 * 0.25) and one.remedy.startswith("Cooling")
    assert found(Measured(power=(replace(hot, hottest_c=60),)))["clock_falls"].remedy.startswith("Not hot")
    assert "clock_falls" not in found(Measured(power=(replace(hot, low=0),)))


def test_memory():
    peak = Memory(rank=1, component="MindSpore", allocated_mb=63_000, reserved_mb=64_500, at_us=1,
                  largest=((9000.0, "logits"),), place=HERE)  # fmt: skip
    rules = found(Measured(memory=(peak,)), hardware=A2)
    assert rules["memory_nearly_full"].rank == 1 and "logits 9,000 MiB" in rules["memory_nearly_full"].root_cause
    pieces = found(Measured(memory=(replace(peak, allocated_mb=30_000, reserved_mb=45_000),)), hardware=A2)
    assert set(pieces) == {"memory_in_pieces"} and "33%" in pieces["memory_in_pieces"].root_cause
    assert found(Measured(memory=(replace(peak, allocated_mb=40_000, reserved_mb=44_000),)), hardware=A2) == {}
    recipes = Recipes("llama2_7b_dp2_tp2_pp2", ())
    spare = replace(peak, allocated_mb=20_000, reserved_mb=22_000)
    rules = found(Measured(memory=(spare,)), plan=recipes.plan(), recipes=recipes)
    assert rules["memory_to_spare"].changes == ("parallel.recompute=none",)
    assert rules["memory_to_spare"].gain == rules["memory_to_spare"].planned > 0


def test_what_is_suggested_passes_the_rules_and_nothing_else_is(repo):
    recipes = Recipes("llama2_7b_dp2_tp2_pp2", ("train.micro_batch_size=2",))
    changes, planned = recipes.best([("parallel.model_parallel=3",), ("train.micro_batch_size=1",)])
    assert changes in ((), ("train.micro_batch_size=1",)) and (planned is None) == (changes == ())
    assert recipes.changed(("parallel.data_parallel=4",)) is None  # other devices, another job
    assert recipes.changed(("train.global_batch_size=32",)) is None


def test_order_of_findings():
    one = Finding(rule="a", severity="info", root_cause="", remedy="", gain=0.3)
    order = in_order([replace(one, rule="b", gain=None), one, replace(one, rule="c", gain=0.5),
                      replace(one, rule="d", severity="error", gain=None),
                      replace(one, rule="e", severity="warning", gain=None)])  # fmt: skip
    assert [each.rule for each in order] == ["d", "c", "a", "e", "b"]


def rule_names(repo) -> set[str]:
    text = "".join(path.read_text() for path in (repo / "msparallel" / "profiling").glob("*.py"))
    return set(re.findall(r'rule="(\w+)"', text)) | {"parts_are_not_the_step", "halves_are_not_the_whole"}


@pytest.mark.parametrize("page", ["22_profile.md", "22_profile.zh-CN.md"])
def test_every_rule_has_its_heading(repo, page):
    titles = re.findall(r"^### (\w+)$", (repo / "docs" / page).read_text(encoding="utf-8"), re.M)
    assert sorted(titles) == sorted(rule_names(repo))


def test_every_rule_has_its_test(repo):
    tests = "".join(path.read_text() for path in (repo / "tests" / "profiling").glob("test_*.py"))
    assert {name for name in rule_names(repo) if name not in tests} == set()
