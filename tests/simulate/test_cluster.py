"""Ranks meet, or it is said why they never would."""

from __future__ import annotations

import numpy as np
import pytest
from handmade import tensor
from handmade_ranks import RankLines, cluster_of, run

from msparallel.errors import RunError
from msparallel.simulate.cluster import Deadlock, KernelError
from msparallel.simulate.program import check_programs

pytestmark = pytest.mark.pure
SEND = {"sr_tag": 3, "dest_rank": 1, "group": "pair"}
RECEIVE = {"sr_tag": 3, "src_rank": 0, "group": "pair"}


def reduced(*ranks: int, op: str = "AllReduce"):
    def build(lines: RankLines) -> int:
        return lines.collective(op, lines.x, list(ranks))

    return build


def sends(**changes):
    return lambda lines: lines.op("Send", lines.x, **{**SEND, **changes})


def receives(**changes):
    return lambda lines: lines.op("Receive", lines.x, scope="Default/net-Net/border-Cell", **{**RECEIVE, **changes})


def test_sums_over_groups(tmp_path):
    cluster = cluster_of(tmp_path, *[reduced(0, 1)] * 2, *[reduced(2, 3)] * 2)
    assert run(cluster) == [12, 12, 28, 28]


def test_gathers_in_the_order_of_the_group(tmp_path):
    def build(lines: RankLines) -> int:
        whole = lines.collective("AllGather", lines.x, [1, 0], type=tensor(8))
        first = {"constant": [0]}, {"constant": [4]}, {"constant": [1]}, *[{"constant": 0}] * 5
        return lines.op("StridedSlice", whole, *first)

    assert run(cluster_of(tmp_path, build, build)) == [8, 8]


def test_scatters_a_sum(tmp_path):
    def build(lines: RankLines) -> int:
        return lines.collective("ReduceScatter", lines.x, [0, 1], type=tensor(2))

    assert run(cluster_of(tmp_path, build, build)) == [6, 6]


def test_exchanges_pieces(tmp_path):
    def build(lines: RankLines) -> int:
        return lines.collective("AlltoAll", lines.x, [0, 1], split_count=2, split_dim=0, concat_dim=0)

    assert run(cluster_of(tmp_path, build, build)) == [6, 6]


def test_a_message_goes_from_stage_to_stage(tmp_path):
    assert run(cluster_of(tmp_path, sends(), receives())) == [4, 4]


def test_swapped_collectives_hang(tmp_path):
    def first(lines: RankLines) -> int:
        return lines.collective("AllGather", lines.collective("AllReduce", lines.x, [0, 1]), [0, 1], type=tensor(8))

    def second(lines: RankLines) -> int:
        whole = lines.collective("AllGather", lines.x, [0, 1], type=tensor(8))
        return lines.collective("AllReduce", whole, [0, 1], type=tensor(8))

    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, first, second))
    told = str(caught.value)
    assert "ranks 0 and 1 meet with different operations" in told
    assert "AllReduce (sum) float32 [4]" in told and "AllGather float32 [4]" in told and "AllReduce_cell" in told


@pytest.mark.parametrize(
    ("second", "word"),
    [
        (lambda lines: lines.collective("AllReduce", lines.x, [0, 1], op="max"), "AllReduce (max)"),
        (lambda lines: lines.collective("AllReduce", _half(lines), [0, 1], type=tensor(2)), "float32 [2]"),
        (
            lambda lines: lines.collective(
                "AllReduce", _cast(lines), [0, 1], type=["Float16", [4]]
            ),
            "float16 [4]",
        ),
    ],
    ids=["operation", "shape", "dtype"],
)  # fmt: skip
def test_members_that_do_not_agree_hang(tmp_path, second, word):
    with pytest.raises(Deadlock, match="different operations") as caught:
        run(cluster_of(tmp_path, reduced(0, 1), second))
    assert word in str(caught.value)


def _half(lines: RankLines) -> int:
    part = {"constant": [0]}, {"constant": [2]}, {"constant": [1]}, *[{"constant": 0}] * 5
    return lines.op("StridedSlice", lines.x, *part, type=tensor(2))


def _cast(lines: RankLines) -> int:
    return lines.op("Cast", lines.x, {"constant": 42}, type=["Float16", [4]])


def test_a_member_that_never_comes(tmp_path):
    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, reduced(0, 1), lambda lines: lines.op("Neg", lines.x)))
    (wait,) = caught.value.waits
    assert (wait.rank, wait.op, wait.group, wait.missing) == (0, "AllReduce", (0, 1), (1,))
    assert "rank 1 has ended its step without it" in str(caught.value)


def test_a_circle_of_groups(tmp_path):
    def first_then(one: list[int], other: list[int]):
        return lambda lines: lines.collective("AllReduce", lines.collective("AllReduce", lines.x, one), other)

    circle = [first_then([0, 1], [0, 2]), first_then([1, 2], [0, 1]), first_then([0, 2], [1, 2])]
    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, *circle))
    assert {(wait.rank, wait.missing) for wait in caught.value.waits} == {(0, (1,)), (1, (2,)), (2, (0,))}
    assert caught.value.to_json()["waits"][0]["group"] == (0, 1)


def test_a_receive_without_a_send(tmp_path):
    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, lambda lines: lines.op("Neg", lines.x), receives()))
    (wait,) = caught.value.waits
    assert (wait.rank, wait.op, wait.missing, wait.where) == (1, "Receive", (0,), "net.border")


def test_a_send_without_a_receive(tmp_path):
    with pytest.raises(Deadlock, match="rank 0 sends what nobody receives"):
        run(cluster_of(tmp_path, sends(), lambda lines: lines.op("Neg", lines.x)))


@pytest.mark.parametrize(
    "receive", [receives(sr_tag=4), lambda lines: lines.op("Receive", lines.x, type=tensor(2), **RECEIVE)],
    ids=["tag", "shape"],
)  # fmt: skip
def test_a_message_that_is_not_the_one_waited_for(tmp_path, receive):
    with pytest.raises(Deadlock, match=r"the next message of rank 0 is Send float32 \[4\].* with tag 3"):
        run(cluster_of(tmp_path, sends(), receive))


def test_both_receive_before_they_send(tmp_path):
    def build(source: int):
        def write(lines: RankLines) -> int:
            got = lines.op("Receive", lines.x, sr_tag=0, src_rank=source)
            return lines.op("Send", got, sr_tag=0, dest_rank=source)

        return write

    with pytest.raises(Deadlock) as caught:
        run(cluster_of(tmp_path, build(1), build(0)))
    assert {(wait.rank, wait.missing) for wait in caught.value.waits} == {(0, (1,)), (1, (0,))}


def test_a_piece_that_does_not_come_out_even(tmp_path):
    def build(lines: RankLines) -> int:
        return lines.collective("ReduceScatter", lines.x, [0, 1, 2], type=tensor(1))

    with pytest.raises(Deadlock, match="dim 0 has 4 values, which 3 ranks cannot share evenly"):
        run(cluster_of(tmp_path, *[build] * 3))


def test_nan_names_rank_and_operator(tmp_path):
    with pytest.raises(KernelError, match=r"rank 0, Log \(Default/Log-op\d+\) gives NaN at \[0\]"):
        run(cluster_of(tmp_path, lambda lines: lines.op("Log", lines.op("Neg", lines.x))))


def test_a_result_of_another_shape_names_rank_and_operator(tmp_path):
    with pytest.raises(KernelError, match=r"rank 0, Neg .* has float32 \[4\], the graph float32 \[5\]"):
        run(cluster_of(tmp_path, lambda lines: lines.op("Neg", lines.x, type=tensor(5))))


def test_an_input_of_another_shape_is_refused(tmp_path):
    cluster = cluster_of(tmp_path, lambda lines: lines.op("Neg", lines.x))
    with pytest.raises(KernelError, match=r"rank 0: input x has float32 \[3\], the graph float32 \[4\]"):
        cluster.step({0: [[np.zeros(3, np.float32)]]})


def test_operators_without_a_kernel_are_named_before_anything_runs(tmp_path):
    cluster = cluster_of(tmp_path, lambda lines: lines.op("Teleport", lines.x, speed=9), reduced(0))
    with pytest.raises(RunError, match=r"nothing was run") as caught:
        check_programs(cluster.programs.values())
    assert "Teleport: {'speed': 9}" in str(caught.value)


def test_a_group_without_its_caller_is_refused(tmp_path):
    cluster = cluster_of(tmp_path, reduced(1, 2), reduced(1, 2), reduced(1, 2))
    with pytest.raises(RunError, match=r"rank 0 calls AllReduce .* in the group \[1, 2\], which it is not in"):
        check_programs(cluster.programs.values())
