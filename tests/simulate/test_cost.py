"""Seconds of operators and collectives, against arithmetic on paper and public measurements."""

from __future__ import annotations

import pytest
from handmade_steps import execution_of

from msparallel.compile.graph import TensorType
from msparallel.hardware import Hardware, load_hardware
from msparallel.simulate.cost import DeviceCost, Product, attention_flops, moved_bytes, product

pytestmark = pytest.mark.pure
A2, A3, A1 = (load_hardware(name) for name in ("atlas_900_a2", "atlas_900_a3", "atlas_800_a1"))
MIB, GIB = 2**20, 2**30
HCCS_MOST = 102e9
"""Bytes a second that all wires of a 910B together carry, by its profile."""


def half(*shape: int) -> TensorType:
    return TensorType("BFloat16", shape)


def single(*shape: int) -> TensorType:
    return TensorType("Float32", shape)


def without_launch(machine: Hardware, **more) -> Hardware:
    return machine.model_copy(
        update={"launch": machine.launch.model_copy(update={"kernel_us": 0.0, "collective_us": 0.0}), **more}
    )


def device(machine: Hardware = A2, devices_per_node: int | None = None) -> DeviceCost:
    return DeviceCost(without_launch(machine), devices_per_node or machine.devices_per_node)


# Collectives


def speed(machine: Hardware, name: str) -> tuple[float, float]:
    """Seconds a step, bytes a second of one device."""
    link = next(link for link in machine.links if link.name == name)
    return link.latency_us * 1e-6, link.bandwidth_gb_s * 1e9 * link.efficiency


@pytest.mark.parametrize("members", [2, 3, 8, 32])
@pytest.mark.parametrize("size", [8, 64 * 1024, GIB])
@pytest.mark.parametrize(("op", "passes"), [("AllReduce", 2), ("AllGather", 1), ("ReduceScatter", 1)])
def test_a_ring_takes_the_alpha_beta_time(op, passes, size, members):
    """passes x (n - 1) steps, in each a latency and the n-th part of the message."""
    alpha, rate = speed(A2, "RoCE")
    one_a_server = tuple(range(0, 8 * members, 8))
    wanted = passes * (members - 1) * (alpha + size / members / rate)
    assert device().message(op, one_a_server, size).seconds == pytest.approx(wanted, rel=0.01)


def test_a_mesh_sends_to_all_at_once_over_the_wires_to_the_members():
    alpha, rate = speed(A2, "HCCS")
    for members in (2, 4, 8):
        message = device().message("AllReduce", tuple(range(members)), GIB)
        wires = min(rate / 7 * (members - 1), HCCS_MOST)
        assert message.seconds == pytest.approx(2 * (alpha + GIB * (members - 1) / members / wires), rel=0.01)
        assert message.sent == {"HCCS": round(2 * GIB * (members - 1) / members)}


def test_a_group_over_servers_works_level_by_level():
    """Two servers with eight members each: inside on all bytes, between on an eighth, each device through its port."""
    inside, between = speed(A2, "HCCS"), speed(A2, "RoCE")
    message = device().message("AllReduce", tuple(range(16)), GIB)
    wanted = 2 * (inside[0] + 7 / 8 * GIB / HCCS_MOST) + 2 * (between[0] + GIB / 8 / 2 / between[1])
    assert message.seconds == pytest.approx(wanted, rel=0.01)
    assert message.sent == {"HCCS": round(2 * GIB * 7 / 8), "RoCE": GIB // 8}
    assert message.busy_s["RoCE"] == pytest.approx(GIB / 8 / between[1], rel=0.01)


def test_unequal_shares_of_servers_are_one_ring_over_the_slow_link():
    alpha, rate = speed(A2, "RoCE")
    message = device().message("AllGather", (0, 1, 8), GIB)
    assert message.seconds == pytest.approx(2 * (alpha + GIB / 3 / rate), rel=0.01) and set(message.sent) == {"RoCE"}


def test_all_to_all_and_transfers():
    alpha, rate = speed(A2, "RoCE")
    exchange = device().message("AlltoAll", (0, 8, 16, 24), GIB)
    assert exchange.seconds == pytest.approx(3 * (alpha + GIB / 4 / rate), rel=0.01)
    send, receive = (device().message(op, (0, 8), 32 * MIB) for op in ("Send", "Receive"))
    assert send.seconds == receive.seconds == pytest.approx(alpha + 32 * MIB / rate, rel=0.01)
    assert send.sent == {"RoCE": 32 * MIB} and receive.sent == {"RoCE": 0}
    both = device().message("AlltoAll", tuple(range(16)), GIB)
    assert both.sent == {"HCCS": GIB * 7 // 16, "RoCE": GIB * 8 // 16}


def test_a_broadcast_scatters_and_gathers():
    cost = device()
    assert cost.message("Broadcast", (0, 8, 16), GIB) == cost.message("AllReduce", (0, 8, 16), GIB)


def test_nobody_to_speak_with_takes_nothing():
    assert DeviceCost(A2, 8).message("AllReduce", (3,), GIB).seconds == 0.0


def test_the_launch_of_a_collective_is_added():
    assert DeviceCost(A2, 8).message("AllReduce", (0, 8), 8).seconds - device().message(
        "AllReduce", (0, 8), 8
    ).seconds == pytest.approx(10e-6)


@pytest.mark.parametrize(
    ("machine", "devices", "ranks", "links"),
    [
        (A2, 8, (0, 7), ["HCCS"]),
        (A2, 4, (0, 3), ["HCCS"]),
        (A2, 4, (3, 4), ["RoCE"]),  # a job that uses four devices of each node
        (A3, 16, (0, 1), ["SIO"]),
        (A3, 16, (1, 2), ["UB"]),
        (A3, 16, tuple(range(16)), ["SIO", "UB"]),
        (A3, 16, (0, 16, 32), ["UB between nodes"]),
        (A3, 16, (0, 768), ["RoCE"]),
        (A3, 8, (0, 383), ["UB between nodes"]),
        (A3, 8, (0, 384), ["RoCE"]),
        (A1, 8, (0, 3), ["HCCS"]),
        (A1, 8, (3, 4), ["PCIe"]),
        (A1, 8, tuple(range(16)), ["HCCS", "PCIe", "RoCE"]),
    ],
)
def test_which_links_a_group_crosses(machine, devices, ranks, links):
    levels = device(machine, devices).levels(ranks)
    assert [link.name for link, _ in levels] == links
    whole = 1
    for _, parts in levels:
        whole *= parts
    assert whole == len(ranks)


# Operators


def test_products_measured_on_a_910b2():
    """TFLOP/s of square products in bfloat16 and float32: zzc0721/torch-performance-test-data#109."""
    measured = {
        "bfloat16": {1024: 99.86, 2048: 248.30, 4096: 315.36, 8192: 301.23, 10240: 300.94},
        "float32": {2048: 76.92, 4096: 84.53, 8192: 80.43, 10240: 79.69},
    }
    for dtype, rows in measured.items():
        for n, tflops in rows.items():
            one = Product(1, n, n, n, dtype)
            seconds = DeviceCost(A2, 8).product(one) + A2.launch.kernel_us * 1e-6
            assert one.flops / seconds / 1e12 == pytest.approx(tflops, rel=0.09), (dtype, n)


def test_lengths_are_padded_to_tiles():
    cost = device()
    assert cost.product(Product(1, 17, 4096, 4096, "bfloat16")) == cost.product(Product(1, 32, 4096, 4096, "bfloat16"))
    assert cost.product(Product(1, 16, 4096, 4096, "bfloat16")) < cost.product(Product(1, 17, 4096, 4096, "bfloat16"))


def test_a_thin_product_takes_what_its_bytes_take():
    matrix = execution_of("MatMul", [half(1, 8192), half(8192, 65536), False, False], half(1, 65536))
    seconds = device().operator(matrix, matrix.operators[0])
    assert seconds == pytest.approx(2 * 8192 * 65536 / (1600e9 * 0.6), rel=0.01)


def test_a_type_that_the_unit_does_not_multiply_is_counted_as_its_slowest():
    cost = device(A1)
    assert cost.product(Product(1, 64, 64, 64, "bfloat16")) == cost.product(Product(1, 64, 64, 64, "float32"))


@pytest.mark.parametrize(
    ("op", "inputs", "type_", "wanted"),
    [
        ("MatMul", [half(6, 5), half(5, 7), False, False], half(6, 7), (1, 6, 5, 7)),
        ("MatMul", [half(5, 6), half(7, 5), True, True], half(6, 7), (1, 6, 5, 7)),
        ("BatchMatMul", [half(2, 3, 6, 5), half(2, 3, 5, 7), False, False], half(2, 3, 6, 7), (6, 6, 5, 7)),
        ("BatchMatMul", [half(2, 3, 5, 6), half(2, 3, 5, 7), True, False], half(2, 3, 6, 7), (6, 6, 5, 7)),
        ("MatMulExt", [half(4, 6, 5), half(5, 7)], half(4, 6, 7), (1, 24, 5, 7)),
        ("Dense", [half(4, 6, 5), half(7, 5), half(7)], half(4, 6, 7), (1, 24, 5, 7)),
        ("GroupedMatmul", [(half(24, 5),), (half(4, 5, 7),)], (half(24, 7),), (4, 6, 5, 7)),
    ],
)
def test_lengths_of_a_product_from_its_types(op, inputs, type_, wanted):
    execution = execution_of(op, inputs, type_)
    found = product(execution, execution.operators[0])
    assert (found.count, found.m, found.k, found.n, found.dtype) == (*wanted, "bfloat16")


def attention(layout: int, shape: tuple[int, ...], *, mode: int = 0, reach=(2**31 - 1, 2**31 - 1), ends=None):
    """FlashAttentionScore as MindSpore's primitive takes it."""
    none = [None] * 5
    inputs = [half(*shape)] * 3 + none + [ends, ends, 4, 1.0, 0.1, *reach, 0, layout, mode]
    return execution_of("FlashAttentionScore", inputs, (single(1), single(1), half(1), half(*shape)))


def flops(execution) -> float:
    return attention_flops(execution, execution.operators[0])[0]


FULL = 4 * 2 * 4 * 128 * 128 * 8
"""Of 2 sequences of 128 tokens with 4 heads of width 8: two products, two flops a term."""


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (0, (2, 128, 32)),
        (1, (2, 4, 128, 8)),
        (2, (128, 2, 32)),
        (3, (2, 128, 4, 8)),
    ],
)
def test_flops_of_attention_in_every_layout(layout, shape):
    assert flops(attention(layout, shape)) == FULL


def test_attention_over_sequences_in_one_row():
    assert flops(attention(4, (256, 4, 8), ends=[128, 256])) == FULL


def test_keys_that_attention_may_skip_cost_nothing():
    assert flops(attention(1, (2, 4, 128, 8), mode=2)) == FULL / 2
    assert flops(attention(1, (2, 4, 128, 8), mode=4, reach=(2**31 - 1, 0))) == FULL / 2
    assert flops(attention(1, (2, 4, 128, 8), mode=4, reach=(15, 0))) == FULL * 16 / 128


def test_the_gradient_of_attention_is_five_products():
    shape = (2, 4, 128, 8)
    rest = [4, 1.0, 0.1, 2**31 - 1, 2**31 - 1, 0, 1, 0]
    inputs = [half(*shape)] * 4 + [None] * 4 + [single(1)] * 4 + [None] * 3 + rest
    execution = execution_of("FlashAttentionScoreGrad", inputs, (half(*shape),) * 3)
    assert flops(execution) == 2.5 * FULL
    matrix = A2.matrix
    seconds = device().operator(execution, execution.operators[0])
    rate = 353.9e12 * matrix.attention_backward_efficiency
    assert seconds == pytest.approx(2.5 * FULL / rate + matrix.fill_us * 1e-6)


W = single(1024, 1024)
BYTES = 4 * 1024 * 1024


@pytest.mark.parametrize(
    ("op", "inputs", "type_", "wanted"),
    [
        ("Add", [W, W], W, 3 * BYTES),
        ("Cast", [W, 43], half(1024, 1024), BYTES * 3 // 2),
        ("AddN", [(W, W, W)], W, 4 * BYTES),
        ("StridedSlice", [W, [0, 0], [4, 4], [1, 1]], single(4, 4), 2 * 64),
        ("Gather", [W, TensorType("Int32", (8,)), 0, 0], single(8, 1024), 2 * 8 * 4096),
        ("ZerosLikeExt", [W, None], W, BYTES),
        ("Assign", [W, W], W, 2 * BYTES),
        ("AssignAdd", [W, W], W, 3 * BYTES),
        ("AdamWeightDecay", [W, W, W, 0.1, 0.9, W], (W, W, W), 7 * BYTES),
    ],
)
def test_bytes_that_an_operator_moves(op, inputs, type_, wanted):
    execution = execution_of(op, inputs, type_)
    assert moved_bytes(execution, execution.operators[0]) == wanted
    seconds = DeviceCost(A2, 8).operator(execution, execution.operators[0])
    assert seconds == pytest.approx(wanted / (1600e9 * 0.6) + 2e-6)


def test_views_cost_nothing():
    execution = execution_of("Reshape", [W, [-1]], single(1024 * 1024))
    assert DeviceCost(A2, 8).operator(execution, execution.operators[0]) == 0.0
