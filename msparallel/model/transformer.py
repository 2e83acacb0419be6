"""The decoder-only Transformer and its training cell.

In: input_ids, labels, position_ids, segment_ids int32 [B, S], loss_weights float32 [B, S]. Out: logits or the loss.
Parameter names and layouts are Hugging Face's for Llama and Qwen3, so that an export needs no mapping; a GPT-2 shape
uses the same names, with `model.embed_positions.weight` for its table of positions.

>>> parallel = OpParallelConfig(sharded=False)
>>> model = build_model(shape, parallel, seq_length=256, compute_dtype=ms.float32, seed=1)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

from msparallel.model import strategies
from msparallel.model.attention import Attention
from msparallel.model.attention_mask import HIDDEN, DocumentMask
from msparallel.model.cross_entropy import CrossEntropy
from msparallel.model.embedding import Embedding
from msparallel.model.feed_forward import FeedForward
from msparallel.model.initialize import draw_parameters
from msparallel.model.norm import block_norm
from msparallel.model.rotary import RotaryTable
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig


class TransformerLayer(nn.Cell):
    """x [T, H] -> x + attention(norm(x)), then + feed_forward(norm(x)).

    A mixture-of-experts layer also takes and returns the running auxiliary loss, float32 [B].
    """

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, attention: str) -> None:
        super().__init__()
        stream = strategies.residual(parallel) if parallel.sharded else None
        fused = attention == "flash"
        self.input_layernorm = block_norm(shape, stream, fused=fused)
        self.self_attn = Attention(shape, parallel, compute_dtype, attention)
        self.post_attention_layernorm = block_norm(shape, stream, fused=fused)
        self.has_experts = shape.num_experts > 0
        if self.has_experts:
            from msparallel.model.moe import MixtureOfExperts

            self.mlp = MixtureOfExperts(shape, parallel, compute_dtype)
        else:
            self.mlp = FeedForward(shape, parallel, compute_dtype, fused=fused)
        self.add_attention, self.add_mlp, self.add_aux = ops.Add(), ops.Add(), ops.Add()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, aux, mask, cosine, sine):
        x = self.add_attention(x, self.self_attn(self.input_layernorm(x), mask, cosine, sine))
        y = self.post_attention_layernorm(x)
        if self.has_experts:
            y, layer_aux = self.mlp(y, y.shape[0] // mask.shape[-1], mask.shape[-1])
            return self.add_mlp(x, y), self.add_aux(aux, layer_aux)
        return self.add_mlp(x, self.mlp(y)), aux

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        stream = strategies.residual(parallel)
        self.add_attention.shard((stream, stream))
        self.add_mlp.shard((stream, stream))
        self.add_aux.shard(((parallel.data_parallel,), (parallel.data_parallel,)))


def mask_form(parallel: OpParallelConfig, attention: str) -> str:
    if attention == "flash":
        return "flash"
    return "grouped" if parallel.sharded else "rows"


class Decoder(nn.Cell):
    """Tokens [B, S] -> hidden states [T, H] behind the final norm, and the auxiliary loss [B]."""

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        seq_length: int,
        attention: str,
        layer_stages: Sequence[int] | None,
    ) -> None:
        super().__init__()
        h = shape.hidden_size
        self.embed_tokens = Embedding(
            shape.padded_vocab_size, h, parallel, compute_dtype, rows_cut=parallel.vocab_degree
        )
        self.learned = shape.position == "learned"
        if self.learned:
            self.embed_positions = Embedding(shape.max_positions, h, parallel, compute_dtype, rows_cut=1)
            self.add_positions = ops.Add()
        else:
            positions = max(seq_length, 1)
            self.rotary = RotaryTable(positions, shape.head_dim, shape.rope_theta, parallel)
        self.mask = DocumentMask(shape, parallel, seq_length, mask_form(parallel, attention))
        self.layers = nn.CellList(
            [TransformerLayer(shape, parallel, compute_dtype, attention) for _ in range(shape.num_layers)]
        )
        stream = strategies.residual(parallel) if parallel.sharded else None
        self.norm = block_norm(shape, stream, fused=attention == "flash")

    def construct(self, input_ids, position_ids, segment_ids):
        tokens = input_ids.shape[0] * input_ids.shape[1]
        x = self.embed_tokens(ops.reshape(input_ids, (tokens,)))
        mask = self.mask(segment_ids)
        if self.learned:
            x = self.add_positions(x, self.embed_positions(ops.reshape(position_ids, (tokens,))))
            cosine, sine = mask, mask
        else:
            cosine, sine = self.rotary(position_ids)
        aux = ops.zeros((input_ids.shape[0],), ms.float32)
        for layer in self.layers:
            x, aux = layer(x, aux, mask, cosine, sine)
        return self.norm(x), aux


class Transformer(nn.Cell):
    """Tokens [B, S] -> logits float32 [T, padded_vocab_size]; padding columns never win. Also the auxiliary loss [B]."""

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        seq_length: int,
        attention: str,
        layer_stages: Sequence[int] | None,
    ) -> None:
        super().__init__()
        self.model = Decoder(shape, parallel, compute_dtype, seq_length, attention, layer_stages)
        self.lm_head = Head(shape, parallel, compute_dtype)
        self.tied = shape.tie_embeddings

    def construct(self, input_ids, position_ids, segment_ids):
        x, aux = self.model(input_ids, position_ids, segment_ids)
        if self.tied:
            return self.lm_head(x, self.model.embed_tokens.weight), aux
        return self.lm_head(x, self.lm_head.weight), aux


class Head(nn.Cell):
    """Hidden states [T, H] and a table [V, H] -> logits float32 [T, V]."""

    def __init__(self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type) -> None:
        super().__init__()
        rows = shape.padded_vocab_size
        if not shape.tie_embeddings:
            init = initializer("zeros", (rows, shape.hidden_size), ms.float32)
            self.weight = Parameter(init, name="weight")
        self.dtype = compute_dtype
        self.cast, self.cast_out = ops.Cast(), ops.Cast()
        self.matmul, self.hide_padding = ops.MatMul(transpose_b=True), ops.Add()
        self.padded = rows > shape.vocab_size
        self.padding = Tensor(np.where(np.arange(rows) < shape.vocab_size, 0, HIDDEN).astype(np.float32))

    def construct(self, x, table):
        logits = self.cast_out(self.matmul(x, self.cast(table, self.dtype)), ms.float32)
        return self.hide_padding(logits, self.padding) if self.padded else logits


class TrainingModel(nn.Cell):
    """A batch -> scalar float32 loss.

    loss = sum(loss_weights * cross entropy) + router_aux_loss * sum_b(aux_b * sum_s loss_weights[b, s]).
    The caller's weights are loss_mask / (valid tokens of the global batch), so that the losses of ranks and
    micro-batches simply add up.
    """

    def __init__(self, transformer: Transformer, shape: ModelShape, parallel: OpParallelConfig) -> None:
        super().__init__(auto_prefix=False)
        self.transformer = transformer
        self.cross_entropy = CrossEntropy(shape.padded_vocab_size, parallel)
        self.has_experts = shape.num_experts > 0
        self.aux_weight = shape.router_aux_loss
        self.weigh, self.sum = ops.Mul(), ops.ReduceSum()

    def construct(self, input_ids, labels, loss_weights, position_ids, segment_ids):
        logits, aux = self.transformer(input_ids, position_ids, segment_ids)
        tokens = labels.shape[0] * labels.shape[1]
        losses = self.cross_entropy(logits, ops.reshape(labels, (tokens,)))
        loss = self.sum(self.weigh(losses, ops.reshape(loss_weights, (tokens,))))
        if self.has_experts:
            loss = loss + self.aux_weight * ops.reduce_sum(aux * ops.reduce_sum(loss_weights, 1))
        return loss


def build_model(
    shape: ModelShape,
    parallel: OpParallelConfig,
    *,
    seq_length: int,
    compute_dtype: ms.Type = ms.float32,
    attention: Literal["plain", "flash"] = "plain",
    layer_stages: Sequence[int] | None = None,
    seed: int = 0,
) -> TrainingModel:
    """The training model with its first values (in semi_auto_parallel and auto_parallel without memory for them yet).

    Args:
        shape, parallel: what to build and how to cut it.
        seq_length: longest sequence; the rotary tables have so many rows.
        compute_dtype: dtype of the matrix products and the residual stream.
        attention: `flash` uses Ascend's fused kernels (attention and RMSNorm), which the CPU does not have.
        layer_stages: the pipeline stage of every layer, None without a pipeline.
        seed: first values depend on it and on the parameter's name only.
    """
    transformer = Transformer(shape, parallel, compute_dtype, seq_length, attention, layer_stages)
    model = TrainingModel(transformer, shape, parallel)
    draw_parameters(model, shape, seed)
    return model
