"""The decoder-only Transformer and its training cell.

In: input_ids, labels, position_ids, segment_ids int32 [B, S], loss_weights float32 [B, S]. Out: logits or the loss.
Parameter names and layouts are Hugging Face's for Llama and Qwen3, so that an export needs no mapping; a GPT-2 shape
uses the same names, with `model.embed_positions.weight` for its table of positions.

>>> parallel = OpParallelConfig(sharded=False)
>>> model = build_model(shape, parallel, seq_length=256, compute_dtype=ms.float32, seed=1)  # doctest: +SKIP
>>> loss = model(input_ids, labels, loss_weights, position_ids, segment_ids)  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

import mindspore as ms
from mindspore import lazy_inline, nn, ops

from msparallel.model import strategies
from msparallel.model.attention import Attention
from msparallel.model.attention_mask import DocumentMask
from msparallel.model.cross_entropy import AuxiliaryLoss, CrossEntropy, VocabParallelCrossEntropy, WeightedSum
from msparallel.model.embedding import Embedding, Head
from msparallel.model.feed_forward import FeedForward
from msparallel.model.initialize import draw_parameters
from msparallel.model.moe import MixtureOfExperts
from msparallel.model.norm import block_norm
from msparallel.model.rotary import RotaryTable
from msparallel.model.shape import ModelShape
from msparallel.parallel_config import OpParallelConfig

AttentionKind = Literal["plain", "flash"]
"""`flash` stands for Ascend's fused kernels (attention, norms, GELU), which the CPU lacks or runs slowly."""


class TransformerLayer(nn.Cell):
    """x [T, H] -> x + attention(norm(x)), then + feed_forward(norm(x)).

    Also hands on the auxiliary loss of the layers so far, float32 [B], to which a mixture of experts adds its own.
    """

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, compute_dtype: ms.Type, attention: AttentionKind
    ) -> None:
        super().__init__()
        fused = attention == "flash"
        self.input_layernorm = block_norm(shape, parallel, fused=fused)
        self.self_attn = Attention(shape, parallel, compute_dtype, attention)
        self.post_attention_layernorm = block_norm(shape, parallel, fused=fused)
        self.has_experts = shape.num_experts > 0
        if self.has_experts:
            self.mlp = MixtureOfExperts(shape, parallel, compute_dtype)
        else:
            self.mlp = FeedForward(shape, parallel, compute_dtype, fused=fused)
        self.add_attention, self.add_mlp, self.add_aux = ops.Add(), ops.Add(), ops.Add()
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, x, aux, mask, *rotary):
        x = self.add_attention(x, self.self_attn(self.input_layernorm(x), mask, *rotary))
        y = self.post_attention_layernorm(x)
        if self.has_experts:
            seq = mask.shape[-1]
            y, layer_aux = self.mlp(y, y.shape[0] // seq, seq)
            return self.add_mlp(x, y), self.add_aux(aux, layer_aux)
        return self.add_mlp(x, self.mlp(y)), aux

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        stream, dp = strategies.residual(parallel), parallel.data_parallel
        self.add_attention.shard((stream, stream))
        self.add_mlp.shard((stream, stream))
        self.add_aux.shard(((dp,), (dp,)))


class AttentionInputs(nn.Cell):
    """position_ids and segment_ids [B, S] -> what every attention layer needs: the mask, cosine and sine if rotary."""

    def __init__(
        self, shape: ModelShape, parallel: OpParallelConfig, seq_length: int, attention: AttentionKind
    ) -> None:
        super().__init__()
        plain = "grouped" if parallel.sharded else "rows"
        self.mask = DocumentMask(shape, parallel, seq_length, "flash" if attention == "flash" else plain)
        self.has_rotary = shape.position == "rope"
        if self.has_rotary:
            self.rotary = RotaryTable(seq_length, shape.head_dim, shape.rope_theta, parallel)

    def construct(self, position_ids, segment_ids):
        if self.has_rotary:
            return (self.mask(segment_ids), *self.rotary(position_ids))
        return (self.mask(segment_ids),)


class Decoder(nn.Cell):
    """Tokens [B, S] -> hidden states [T, H] behind the final norm, and the auxiliary loss [B].

    Every group of layers that follow each other on one pipeline stage makes its own mask and rotary tables: they come
    from inputs which each stage has, and would be large to send.
    """

    def __init__(
        self,
        shape: ModelShape,
        parallel: OpParallelConfig,
        compute_dtype: ms.Type,
        seq_length: int,
        attention: AttentionKind,
        layer_stages: Sequence[int] | None,
    ) -> None:
        super().__init__()
        rows, h = shape.padded_vocab_size, shape.hidden_size
        self.embed_tokens = Embedding(rows, h, parallel, compute_dtype, rows_cut=parallel.vocab_degree)
        self.has_position_table = shape.position == "learned"
        if self.has_position_table:
            self.embed_positions = Embedding(shape.max_positions, h, parallel, compute_dtype, rows_cut=1)
            self.add_positions = ops.Add()
        stages = tuple(layer_stages or [0] * shape.num_layers)
        runs = [(stage, len(list(run))) for stage, run in groupby(stages)]
        self.group_of_layer = tuple(group for group, (_, layers) in enumerate(runs) for _ in range(layers))
        self.attention_inputs = nn.CellList([AttentionInputs(shape, parallel, seq_length, attention) for _ in runs])
        self.layers = nn.CellList(
            [TransformerLayer(shape, parallel, compute_dtype, attention) for _ in range(shape.num_layers)]
        )
        self.norm = block_norm(shape, parallel, fused=attention == "flash")
        if parallel.recompute == "full":
            for layer in self.layers:
                layer.recompute()
        if layer_stages:
            self.place(stages)
        if parallel.sharded:
            self.shard(parallel)

    def construct(self, input_ids, position_ids, segment_ids):
        batch, seq = input_ids.shape
        x = self.embed_tokens(ops.reshape(input_ids, (batch * seq,)))
        if self.has_position_table:
            x = self.add_positions(x, self.embed_positions(ops.reshape(position_ids, (batch * seq,))))
        inputs = ()
        for group in self.attention_inputs:
            inputs += (group(position_ids, segment_ids),)
        aux = ops.zeros((batch,), ms.float32)
        for index, layer in enumerate(self.layers):
            x, aux = layer(x, aux, *inputs[self.group_of_layer[index]])
        return self.norm(x), aux

    def place(self, stages: Sequence[int]) -> None:
        """Pipeline stages: the embedding on the first, the final norm on the last."""
        self.embed_tokens.pipeline_stage = stages[0]
        if self.has_position_table:
            self.embed_positions.pipeline_stage = stages[0]
        for stage, group, layer in zip(stages, self.group_of_layer, self.layers, strict=True):
            self.attention_inputs[group].pipeline_stage = layer.pipeline_stage = stage
        self.norm.pipeline_stage = stages[-1]

    def shard(self, parallel: OpParallelConfig) -> None:
        """The table of strategies."""
        stream = strategies.residual(parallel)
        if self.has_position_table:
            self.add_positions.shard((stream, stream))


class Transformer(nn.Cell):
    """Tokens [B, S] -> logits float32 [T, padded_vocab_size], and the auxiliary loss [B]."""

    def __init__(self, decoder: Decoder, head: Head, *, tied: bool) -> None:
        super().__init__()
        self.model = decoder
        self.lm_head = head
        self.tied = tied

    def construct(self, input_ids, position_ids, segment_ids):
        x, aux = self.model(input_ids, position_ids, segment_ids)
        return self.lm_head(x, self.model.embed_tokens.weight if self.tied else self.lm_head.weight), aux


class TrainingModel(nn.Cell):
    """A batch -> scalar float32 loss.

    loss = sum(loss_weights * cross entropy) + router_aux_loss * sum_b(aux_b * sum_s loss_weights[b, s]).
    The caller's weights are loss_mask / (valid tokens of the global batch), so that the losses of ranks and
    micro-batches simply add up. Labels lie in [0, vocab_size) even where their weight is 0.
    """

    def __init__(
        self,
        transformer: Transformer,
        cross_entropy: nn.Cell,
        weighted_sum: WeightedSum,
        auxiliary_loss: AuxiliaryLoss | None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.transformer = transformer
        self.cross_entropy = cross_entropy
        self.weighted_sum = weighted_sum
        self.auxiliary_loss = auxiliary_loss

    def construct(self, input_ids, labels, loss_weights, position_ids, segment_ids):
        loss, aux = self.text_loss(input_ids, labels, loss_weights, position_ids, segment_ids)
        if self.auxiliary_loss is None:
            return loss
        return loss + self.auxiliary_loss(aux, loss_weights)

    def text_loss(self, input_ids, labels, loss_weights, position_ids, segment_ids):
        """The first sum alone, which measures the text, and the auxiliary loss [B]; for use inside a construct."""
        logits, aux = self.transformer(input_ids, position_ids, segment_ids)
        losses = self.cross_entropy(logits, ops.reshape(labels, (logits.shape[0],)))
        return self.weighted_sum(losses, loss_weights), aux


class ReusedTrainingModel(TrainingModel):
    """The same as one graph that all micro-batches share. MindSpore compiles it once, and only such graphs can be
    interleaved, or have their weights cut at the optimizer shard's level2 and level3 while gradients accumulate."""

    @lazy_inline
    def __init__(
        self,
        transformer: Transformer,
        cross_entropy: nn.Cell,
        weighted_sum: WeightedSum,
        auxiliary_loss: AuxiliaryLoss | None,
    ) -> None:
        super().__init__(transformer, cross_entropy, weighted_sum, auxiliary_loss)


def build_model(
    shape: ModelShape,
    parallel: OpParallelConfig,
    *,
    seq_length: int,
    compute_dtype: ms.Type = ms.float32,
    attention: AttentionKind = "plain",
    layer_stages: Sequence[int] | None = None,
    reused: bool = False,
    seed: int | None = 0,
) -> TrainingModel:
    """The training model with its first values; in semi_auto_parallel and auto_parallel without memory for them yet.

    Args:
        shape, parallel: what to build and how to cut it.
        seq_length: longest sequence; rotary tables and masks are made for it.
        compute_dtype: dtype of the matrix products and of the residual stream.
        attention: `flash` takes Ascend's fused kernels.
        layer_stages: the pipeline stage of every layer, None without a pipeline; a stage may come back (interleaving).
        reused: several micro-batches of one step run it; always so with a pipeline.
        seed: first values depend on it and on the parameter's name only; None leaves matrices at zero, for a model that
            is only compiled.
    """
    decoder = Decoder(shape, parallel, compute_dtype, seq_length, attention, layer_stages)
    head = Head(shape, parallel, compute_dtype)
    vocab = shape.padded_vocab_size
    # In auto_parallel operators have no strategies but are cut all the same; that mode runs on Ascend only.
    one_device = not parallel.sharded and attention == "plain"
    cross_entropy = CrossEntropy(vocab) if one_device else VocabParallelCrossEntropy(vocab, parallel)
    weighted_sum = WeightedSum(parallel)
    has_aux = shape.num_experts > 0 and shape.router_aux_loss > 0
    auxiliary_loss = AuxiliaryLoss(shape.router_aux_loss, parallel) if has_aux else None
    if layer_stages:
        for cell in (head, cross_entropy, weighted_sum, *([auxiliary_loss] if has_aux else [])):
            cell.pipeline_stage = layer_stages[-1]
    transformer = Transformer(decoder, head, tied=shape.tie_embeddings)
    kind = ReusedTrainingModel if layer_stages or reused else TrainingModel
    model = kind(transformer, cross_entropy, weighted_sum, auxiliary_loss)
    if seed is not None:
        draw_parameters(model, shape, seed)
    return model
