"""How training software keeps its state and what it leaves in memory: bytes a parameter, and which ranks share them.

In: nothing, or the options of a run. Out: a Stack for each software whose runs are planned or compared with.

>>> MSPARALLEL.weight_bytes + MSPARALLEL.gradient_bytes + MSPARALLEL.optimizer_bytes
16
>>> stack = megatron("bfloat16")
>>> stack.weight_bytes + stack.gradient_bytes, stack.optimizer_bytes
(6, 12)

Bytes of one parameter before anything is shared out:

| software | weights | gradients | optimizer | source |
|---|---|---|---|---|
| msparallel | 4 | 4 | 8 | `planner/shards.py`, compared with MindSpore's engine |
| Megatron-LM, bfloat16 | 2 | 4 | 12 | `theoretical_memory_usage.py`: 18, or 6 + 12 / d with its distributed optimizer |
| Megatron-LM, float16 | 2 | 2 | 16 | the optimizer keeps float32 gradients; 4 + 16 / d. Inferred from published runs |
| torchtitan | 4 | 4 | 8 | FSDP2 with mixed precision: float32 shards, 16-bit copies while a layer runs |
| MindFormers | 4 | 4 | 8 | MindSpore's engine, as msparallel; 2, 2 and 8 where `param_init_type` has 16 bits |

MindSpeed takes away: `reuse-fp32-param` 2 (the 16-bit weights are the upper halves of the master copies; 2 / d where
those are shared out), `o2-optimizer` 4 / d, `o2-gradient` 2 (its documentation: reuse-fp32-param.md, o2.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from msparallel.hardware import Dtype


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Attributes:
    weight_bytes, gradient_bytes, optimizer_bytes: of one parameter, before anything is shared out. Master copies of
        weights are the optimizer's.
    framework: how state is kept and shared out. mindspore: each parameter is cut or left whole (`planner/shards.py`),
        and stages go on computing while they send. megatron: level1 cuts the optimizer's part, level2 gradients,
        level3 weights, to the byte; each group of layers keeps what it received last from another stage, and its
        gradient. fsdp: as level3, and a pipeline keeps weights gathered and gradients whole over all micro-batches.
    fused_blocks: layers are Megatron's: queries, keys and values are one matrix, gate and up another, and norms keep
        what they read in the type of products. Otherwise they are this project's: a matrix each; norms, plain
        attention's scores, the router and the loss keep float32; the activated gate is a tensor of its own, and each
        group of layers has its own table of positions.
    transformer_engine: NVIDIA's layers: products add gradients of weights to their sums themselves, and leave an empty
        16-bit gradient of each shape of weight behind; context parallel keeps queries, keys and values twice, before
        and behind their exchange; no buffer stays into which sequence parallel gathers tokens, as Megatron's own does.
    skips_masked_keys: fused attention computes only what a causal mask leaves; otherwise all pairs.
    experts_cut_by_tp: tp cuts the width of each expert; otherwise ranks of tp hold different experts or share rows.
    dropless_pads: experts without a capacity compute as many rows as there are tokens, for each expert.
    memory_passes: bytes that operators beside products and attention move in a layer, for each byte that they would
        if all that can be fused were (`planner/layer_time.py` counts those).
    kernels: operators of a layer, forward and backward.
    keeps_gathered: products keep tokens that sequence parallel gathered for them, otherwise these are gathered again.
    loss_bytes: most bytes for each logit while its gradient is computed.
    workspace_bytes: of matrix products.
    reserved_share: how much more the allocator holds than tensors take, where published numbers count that.
    """

    name: str
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    framework: Literal["mindspore", "megatron", "fsdp"]
    fused_blocks: bool = True
    transformer_engine: bool = False
    skips_masked_keys: bool = True
    experts_cut_by_tp: bool = True
    dropless_pads: bool = False
    memory_passes: float = 1.0
    kernels: int = 160
    keeps_gathered: bool = False
    loss_bytes: float = 10
    workspace_bytes: int = 0
    reserved_share: float = 0.0

    @property
    def casts_weights(self) -> bool:
        """Whether products take 16-bit copies of float32 weights, which stay until the backward pass."""
        return self.framework == "mindspore" and self.weight_bytes == 4

    def __hash__(self) -> int:
        # Equal stacks have these alike; hashing all fields would take most of a cached look-up's time.
        return hash((self.name, self.gradient_bytes, self.optimizer_bytes))


MSPARALLEL = Stack(
    name="msparallel",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    framework="mindspore",
    fused_blocks=False,
    skips_masked_keys=False,
    experts_cut_by_tp=False,
    dropless_pads=True,
    memory_passes=3.2,
    kernels=80,
    keeps_gathered=True,
    loss_bytes=20,
)
"""Weights, gradients and AdamW's two moments in float32 (`planner/shards.py`). Passes and kernels: counted in the
compiled graphs of llama2_7b_dp2_tp2_pp2, where nothing is fused but attention and norms."""

MINDFORMERS = Stack(
    name="mindformers",
    weight_bytes=4,
    gradient_bytes=4,
    optimizer_bytes=8,
    framework="mindspore",
    memory_passes=2.4,
    kernels=80,
    keeps_gathered=True,
)
"""MindSpore's optimizer shard and Megatron's fused blocks. Passes: fitted, see `tests/benchmarks/fit_speeds.py`."""

MINDFORMERS_HALF = replace(MINDFORMERS, weight_bytes=2, gradient_bytes=2)
"""With a param_init_type of 16 bits: weights as products take them, their gradients likewise, moments in float32."""

CUBLAS_WORKSPACE_BYTES = 32 * 2**20
"""PyTorch's for matrix products on Hopper and later (CUBLAS_WORKSPACE_CONFIG); Transformer Engine has its own."""


def megatron(
    dtype: Dtype,
    *,
    transformer_engine: bool = False,
    mindspeed: bool = False,
    reuse_fp32_param: bool = False,
    half_optimizer: bool = False,
    half_gradients: bool = False,
) -> Stack:
    """Megatron-LM, or MindSpeed with its options.

    Args:
        transformer_engine: NVIDIA's layers, with fused accumulation of gradients; otherwise the older ones.
        mindspeed: PyTorch on Ascend, whose operators between products move 2.65 times the bytes of fused ones: fitted,
            see `tests/benchmarks/fit_speeds.py`.
        reuse_fp32_param, half_optimizer, half_gradients: MindSpeed's reuse-fp32-param, o2-optimizer, o2-gradient.
    """
    bf16 = dtype == "bfloat16"
    gradients, optimizer = (4, 12) if bf16 else (2, 16)
    return Stack(
        name="megatron-te" if transformer_engine else "mindspeed" if mindspeed else "megatron",
        weight_bytes=2,
        gradient_bytes=gradients - 2 * half_gradients,
        optimizer_bytes=optimizer - 2 * reuse_fp32_param - 4 * half_optimizer,
        framework="megatron",
        transformer_engine=transformer_engine,
        memory_passes=2.65 if mindspeed else 1.0,
        loss_bytes=2 if transformer_engine else 10,
        workspace_bytes=2 * CUBLAS_WORKSPACE_BYTES if transformer_engine else 0,
    )


def torchtitan(*, keeps_gathered: bool = True, cut_vocabulary: bool = True) -> Stack:
    """PyTorch's FSDP2 with tensor, context and pipeline parallel.

    The loss of a vocabulary that is cut, in torch.distributed: logits in 16 bits, and in float32 the log-softmax, its
    exponential, their product and the gradient (2 + 4 x 4). Of a whole one: logits in 16 bits, and in float32 the
    log-softmax, the gradient of the look-up and that of the logits (2 + 3 x 4).

    Args:
        keeps_gathered: False where gathering tokens is fused into products (async TP).
        cut_vocabulary: whether logits are cut over tp.
    """
    return Stack(
        name="torchtitan",
        weight_bytes=4,
        gradient_bytes=4,
        optimizer_bytes=8,
        framework="fsdp",
        keeps_gathered=keeps_gathered,
        loss_bytes=18 if cut_vocabulary else 14,
        reserved_share=0.15,
    )
