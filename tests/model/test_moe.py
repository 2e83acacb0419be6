"""The mixture of experts: against Hugging Face, against a loop in NumPy, under every way to cut it."""

import json
from collections import Counter
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from safetensors import safe_open
from test_semi_auto_compile import compile_rank, forward, label, per_layer  # noqa: F401 - fixtures too

from msparallel.errors import UserError
from msparallel.model.expert_axes import expert_capacity
from msparallel.model.moe import MixtureOfExperts
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

pytestmark = pytest.mark.cpu

ONE = OpParallelConfig(sharded=False)
SIZES = {
    "num_layers": 2,
    "hidden_size": 16,
    "num_heads": 2,
    "ffn_size": 0,
    "vocab_size": 8,
    "num_experts": 8,
    "experts_per_token": 3,
    "expert_ffn_size": 12,
}
BATCH, SEQ = 3, 16


@pytest.fixture(autouse=True)
def graph_mode():
    ms.set_context(mode=ms.GRAPH_MODE)


def shape_of(**changes) -> ModelShape:
    return ModelShape(**{**SIZES, **changes})


def random_weights(shape: ModelShape) -> dict[str, np.ndarray]:
    e, h, f = shape.num_experts, shape.hidden_size, shape.expert_ffn_size
    sizes = {"gate.weight": (e, h)} | {f"experts.{name}_proj": (e, f, h) for name in ("gate", "up")}
    random = np.random.RandomState(2)
    return {
        name: (0.4 * random.randn(*size)).astype(np.float32)
        for name, size in {**sizes, "experts.down_proj": (e, h, f)}.items()
    }


def random_tokens(shape: ModelShape, batch: int = BATCH, seq: int = SEQ) -> np.ndarray:
    return np.random.RandomState(4).randn(batch * seq, shape.hidden_size).astype(np.float32)


def build(
    shape: ModelShape, weights: dict[str, np.ndarray], parallel: OpParallelConfig = ONE, dtype: ms.Type = ms.float32
) -> MixtureOfExperts:
    moe = MixtureOfExperts(shape, parallel, dtype)
    assert {parameter.name for parameter in moe.get_parameters()} == set(weights)
    for parameter in moe.get_parameters():
        parameter.set_data(Tensor(weights[parameter.name]))
    return moe


def run(moe: MixtureOfExperts, x: np.ndarray, batch: int = BATCH, seq: int = SEQ) -> tuple[np.ndarray, np.ndarray]:
    y, aux = moe(Tensor(x), batch, seq)
    return y.asnumpy(), aux.asnumpy()


def reference(shape: ModelShape, weights: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """y, the balance loss and the number of dropped choices: token after token, choice after choice."""
    gate, gate_proj, up_proj, down_proj = weights.values()
    experts, k = shape.num_experts, shape.experts_per_token
    capacity = expert_capacity(shape.expert_capacity_factor, SEQ, k, experts)
    y, aux, dropped = np.zeros_like(x), [], 0
    for sequence in range(BATCH):
        taken, chosen_by, total = np.zeros(experts, int), np.zeros(experts), np.zeros(experts)
        for token in range(sequence * SEQ, (sequence + 1) * SEQ):
            probabilities = np.exp(gate @ x[token])
            probabilities /= probabilities.sum()
            total += probabilities
            best = np.argsort(-probabilities)[:k]
            for expert in best:
                chosen_by[expert] += 1
                if taken[expert] == capacity:
                    dropped += 1
                    continue
                taken[expert] += 1
                a = gate_proj[expert] @ x[token]
                hidden = a / (1 + np.exp(-a)) * (up_proj[expert] @ x[token])
                y[token] += probabilities[expert] / probabilities[best].sum() * (down_proj[expert] @ hidden)
        aux.append(experts / k * (chosen_by / SEQ * total / SEQ).sum())
    return y, np.array(aux), dropped


class ProbedGradients(nn.Cell):
    """Gradients of sum(y * probe) + sum(aux * probe_aux) for x and the weights."""

    def __init__(self, moe: MixtureOfExperts, batch: int, seq: int, aux_weight: float):
        super().__init__()
        self.moe, self.batch, self.seq, self.aux_weight = moe, batch, seq, aux_weight
        self.weights = ms.ParameterTuple(moe.trainable_params())
        self.gradient = ms.ops.GradOperation(get_all=True, get_by_list=True)

    def loss(self, x, probe):
        y, aux = self.moe(x, self.batch, self.seq)
        return (y * probe).sum() + self.aux_weight * aux.sum()

    def construct(self, x, probe):
        return self.gradient(self.loss, self.weights)(x, probe)


def gradients(moe, x, probe, batch=BATCH, seq=SEQ, aux_weight=0.0) -> dict[str, np.ndarray]:
    names = [parameter.name for parameter in moe.trainable_params()]
    (of_x, _), of_weights = ProbedGradients(moe, batch, seq, aux_weight)(Tensor(x), Tensor(probe))
    return {"x": of_x.asnumpy()} | {n: g.asnumpy() for n, g in zip(names, of_weights, strict=True)}


@pytest.fixture(scope="module")
def hugging_face() -> tuple[ModelShape, dict[str, np.ndarray]]:
    path = Path(__file__).parents[1] / "fixtures" / "hf_qwen3_moe_block.safetensors"
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        return ModelShape(**json.loads(file.metadata()["shape"])), arrays


@pytest.mark.parametrize("variant", ["normalized", "plain"])
def test_hugging_face_block(hugging_face, variant):
    shape, arrays = hugging_face
    shape = ModelShape(**{**vars(shape), "normalize_expert_weights": variant == "normalized"})
    batch, seq, hidden = arrays["x"].shape
    x, probe = (arrays[name].reshape(-1, hidden) for name in ("x", "probe"))
    weights = {name.removeprefix("weight."): value for name, value in arrays.items() if name.startswith("weight.")}
    moe = build(shape, weights)
    y, aux = run(moe, x, batch, seq)
    np.testing.assert_allclose(y.reshape(arrays["x"].shape), arrays[f"{variant}.output"], atol=1e-4, rtol=0)
    np.testing.assert_allclose(aux * shape.experts_per_token, arrays["balance_loss"], rtol=1e-5)
    found = gradients(moe, x, probe, batch, seq)
    assert set(found) == {"x", *weights}
    for name, gradient in found.items():
        expected = arrays[f"{variant}.gradient.{name}"]
        np.testing.assert_allclose(
            gradient.reshape(expected.shape), expected, atol=1e-3 * np.abs(expected).max(), rtol=0, err_msg=name
        )


@pytest.mark.parametrize(("factor", "drops"), [(0.0, False), (0.5, True), (1.0, True), (2.5, False)])
def test_earlier_tokens_keep_their_place(factor, drops):
    shape = shape_of(expert_capacity_factor=factor)
    weights, x = random_weights(shape), random_tokens(shape)
    y, aux = run(build(shape, weights), x)
    expected, expected_aux, dropped = reference(shape, weights, x)
    assert (dropped > 0) == drops
    np.testing.assert_allclose(y, expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(aux, expected_aux, rtol=1e-5)


def test_large_capacity_is_dropless():
    weights, x = random_weights(shape_of()), random_tokens(shape_of())
    dropless, large = (run(build(shape_of(expert_capacity_factor=f), weights), x) for f in (0.0, 3.0))
    np.testing.assert_array_equal(dropless[0], large[0])
    np.testing.assert_array_equal(dropless[1], large[1])


def test_dropped_choice_has_no_gradient():
    """All tokens want expert 0, which takes one: only the first token's gradient may depend on it."""
    shape = shape_of(experts_per_token=1, expert_capacity_factor=0.5)
    weights, x = random_weights(shape), np.abs(random_tokens(shape))
    weights["gate.weight"] = np.zeros_like(weights["gate.weight"])
    weights["gate.weight"][0] = 1.0
    moe = build(shape, weights)
    y, _ = run(moe, x)
    of_x = gradients(moe, x, np.ones_like(x))["x"]
    first = np.arange(BATCH) * SEQ
    assert np.abs(y[first]).min(0).max() > 0
    assert np.abs(of_x[first]).max(1).min() > 0
    assert not np.delete(y, first, 0).any()
    assert not np.delete(of_x, first, 0).any()


def test_balance_loss_by_hand():
    """Two experts, one chosen: 3 of 4 tokens prefer the first with probability 3/4, one the second with 3/4."""
    shape = shape_of(num_experts=2, experts_per_token=1, hidden_size=2)
    weights = random_weights(shape)
    weights["gate.weight"] = np.eye(2, dtype=np.float32)
    lean = np.log(3.0)
    x = np.array([[lean, 0], [lean, 0], [0, lean], [lean, 0]] + [[lean, 0], [0, lean]] * 2, np.float32)
    _, aux = run(build(shape, weights), x, 2, 4)
    uneven = 2 / 1 * (3 / 4 * (3 * 3 / 4 + 1 / 4) / 4 + 1 / 4 * (3 * 1 / 4 + 3 / 4) / 4)
    np.testing.assert_allclose(aux, [uneven, 1.0], rtol=1e-6)


def test_order_of_sequences_does_not_matter():
    shape = shape_of(expert_capacity_factor=1.0)
    moe, x = build(shape, random_weights(shape)), random_tokens(shape)
    order = np.array([2, 0, 1])
    y, aux = run(moe, x)
    moved, moved_aux = run(moe, x.reshape(BATCH, SEQ, -1)[order].reshape(x.shape))
    np.testing.assert_array_equal(moved.reshape(BATCH, SEQ, -1), y.reshape(BATCH, SEQ, -1)[order])
    np.testing.assert_array_equal(moved_aux, aux[order])


@pytest.mark.parametrize(
    ("dp", "tp", "ep"), [(2, 1, 2), (1, 2, 2), (1, 4, 2), (2, 2, 1), (2, 2, 4), (4, 2, 4)], ids=str
)
def test_places_under_every_cut(dp, tp, ep):
    """The degrees reorder rows and tables; run whole on one device, that must change nothing."""
    shape = shape_of(expert_capacity_factor=0.8)
    weights, x = random_weights(shape), random_tokens(shape)
    degrees = OpParallelConfig(data_parallel=dp, model_parallel=tp, expert_parallel=ep, sharded=False)
    whole, cut = build(shape, weights), build(shape, weights, degrees)
    for expected, found in zip(run(whole, x), run(cut, x), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)
    if (dp, tp, ep) == (2, 2, 4):
        probe = random_tokens(shape)[::-1].copy()
        one, other = (gradients(moe, x, probe, aux_weight=1.0) for moe in (whole, cut))
        for name, gradient in one.items():
            np.testing.assert_allclose(other[name], gradient, atol=1e-4 * np.abs(gradient).max(), rtol=0, err_msg=name)


def test_half_precision_routes_in_float32():
    shape = shape_of(expert_capacity_factor=1.0)
    weights, x = random_weights(shape), random_tokens(shape)
    x = x.astype(np.float16).astype(np.float32)  # what both can hold
    y, aux = run(build(shape, weights), x)
    moe = build(shape, weights, dtype=ms.float16)
    half, half_aux = moe(Tensor(x, ms.float16), BATCH, SEQ)
    assert half.dtype == ms.float16
    assert half_aux.dtype == ms.float32
    np.testing.assert_allclose(half_aux.asnumpy(), aux, rtol=1e-6)
    np.testing.assert_allclose(half.asnumpy(), y, atol=2e-2, rtol=0)


def test_sequences_that_cannot_be_shared(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MindSpore leaves its analysis of the failure there
    shape = shape_of()
    moe = build(shape, random_weights(shape), OpParallelConfig(model_parallel=4, expert_parallel=1, sharded=False))
    with pytest.raises(UserError, match="seq_length: 6\n  4 devices .* must divide seq_length. Use 4."):
        run(moe, random_tokens(shape, 1, 6), 1, 6)


EXPERTS = {"num_experts": 8, "experts_per_token": 2, "expert_ffn_size": 32, "expert_capacity_factor": 1.25}
MATRIX = {"gate_proj": (32, 64), "up_proj": (32, 64), "down_proj": (64, 32)}


def expert_collectives(report: dict) -> list[str]:
    """Collectives of the forward pass inside the expert layers."""
    cells = ("mlp", "gate", "slots", "experts", "balance")
    return [c for c in forward(report) if c.split(".")[-1] in cells]


def check_experts(report: dict, collectives: list[str], experts_of_a_device: int) -> None:
    """The collectives of the expert layers and nothing else; every device holds its share of the experts."""
    assert expert_collectives(report) == per_layer(*collectives)
    for name, matrix in MATRIX.items():
        assert report["parameters"][f"model.layers.1.mlp.experts.{name}"]["slice"] == [experts_of_a_device, *matrix]


def test_experts_over_data_and_tensor_parallel(compile_rank):  # noqa: F811
    """Tokens travel to the other replica's experts and back; inside tp the results are summed."""
    parallel = {"data_parallel": 2, "model_parallel": 2, "expert_parallel": 4}
    report = compile_rank(4, 1, parallel=parallel, shape={**EXPERTS, "router_aux_loss": 0.01})
    check_experts(report, ["AlltoAll mlp", "AlltoAll mlp", "AllReduce mlp"], 2)
    # 4 sequences a replica; ceil(1.25 * 32 * 2 / 8) = 10 slots for each of an owner's 2 x 2 experts
    there, back = [c["shape"] for c in report["collectives"] if c["op"] == "AlltoAll"][:2]
    assert there == [8, 1, 1, 2, 10, 64]
    assert back == [4, 1, 2, 2, 10, 64]


CUTS = {
    "dp2": ({"data_parallel": 2}, [], 8),
    "dp2_ep2": ({"data_parallel": 2, "expert_parallel": 2}, ["AlltoAll mlp"] * 2, 4),
    "dp4_ep4": ({"data_parallel": 4, "expert_parallel": 4}, ["AlltoAll mlp"] * 2, 2),
    "dp4_ep2": ({"data_parallel": 4, "expert_parallel": 2}, ["AlltoAll mlp"] * 2, 4),
    "dp2_tp2": ({"data_parallel": 2, "model_parallel": 2}, ["AllReduce mlp"], 8),
    "dp2_tp2_ep2": ({"data_parallel": 2, "model_parallel": 2, "expert_parallel": 2}, ["AllReduce mlp"], 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("cut", CUTS)
def test_no_collective_beside_the_exchange(compile_rank, cut):  # noqa: F811
    parallel, collectives, experts = CUTS[cut]
    world = parallel["data_parallel"] * parallel.get("model_parallel", 1)
    check_experts(compile_rank(world, world - 1, parallel=parallel, shape=EXPERTS), collectives, experts)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sequence_parallel_sums_by_an_exchange(compile_rank, dtype):  # noqa: F811
    """Tokens are gathered over tp, as before a dense layer; each device then sums the owners' results for its own."""
    parallel = {"data_parallel": 2, "model_parallel": 2, "expert_parallel": 4, "use_seq_parallel": True}
    report = compile_rank(4, 2, parallel=parallel, shape=EXPERTS, dtype=dtype)
    # Gathered: tokens, and of each its k chosen experts and k weights.
    assert Counter(expert_collectives(report)) == Counter(per_layer(*["AllGather mlp"] * 3, *["AlltoAll mlp"] * 3))


@pytest.mark.slow
def test_experts_in_a_pipeline_with_optimizer_shard(compile_rank):  # noqa: F811
    parallel = {"data_parallel": 2, "expert_parallel": 2}
    case = {"shape": {**EXPERTS, "router_aux_loss": 0.01}, "layer_stages": [0, 1], "optimizer_shard": True}
    report = compile_rank(4, 3, parallel=parallel, dtype="bfloat16", **case)
    exchanges = Counter(label(c) for c in report["collectives"] if c["op"] == "AlltoAll")
    assert exchanges == {"AlltoAll 1.mlp": 2, "AlltoAll 1.Grad_AlltoAll": 2}  # once for all micro-batches
    weight = report["parameters"]["model.layers.1.mlp.experts.up_proj"]
    assert weight["slice"] == [4, 32, 64]
    assert not weight["optimizer_group"]  # on its only holder nothing repeats that could be sharded
