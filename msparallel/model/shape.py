"""The size of a model in numbers, resolved: what blocks, planner and exporters read.

In: values of the recipe's `model` section over its preset. Out: an immutable record, no MindSpore.
Field names are the recipe's; `docs/glossary.md` bridges them to Hugging Face's config names.

>>> shape = ModelShape(num_layers=2, hidden_size=64, num_heads=4, ffn_size=128, vocab_size=100, vocab_multiple=64)
>>> shape.padded_vocab_size
128
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder-only Transformer.

    Attributes:
        num_kv_heads: heads of keys and values (grouped-query attention); 0 means as many as `num_heads`.
        head_dim: width of a head; 0 means hidden_size / num_heads.
        vocab_multiple: the embedding's rows are padded to a multiple of this; the padding never reaches an export.
        position: `rope` rotates queries and keys, `learned` adds a table of `max_positions` rows.
        attention_bias: bias on query, key and value projections. output_bias: bias on the attention output.
        ffn_bias: bias in the feed-forward layer.
        num_experts: 0 is a dense feed-forward layer; otherwise every layer is a mixture of experts.
        expert_ffn_size: hidden width of one expert.
        expert_capacity_factor: 0 is dropless; otherwise an expert takes at most
            ceil(factor x seq_length x experts_per_token / num_experts) tokens of a sequence.
        router_aux_loss: weight of the load-balancing loss, defined per sequence and averaged over sequences.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    ffn_size: int
    vocab_size: int
    num_kv_heads: int = 0
    head_dim: int = 0
    vocab_multiple: int = 1
    position: Literal["rope", "learned"] = "rope"
    max_positions: int = 4096
    rope_theta: float = 10000.0
    norm: Literal["rms", "layer"] = "rms"
    norm_eps: float = 1e-6
    activation: Literal["swiglu", "gelu"] = "swiglu"
    qk_norm: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    ffn_bias: bool = False
    tie_embeddings: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    expert_ffn_size: int = 0
    expert_capacity_factor: float = 0.0
    normalize_expert_weights: bool = True
    router_aux_loss: float = 0.0
    init_std: float = 0.02

    def __post_init__(self) -> None:
        if not self.num_kv_heads:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_heads)

    def __hash__(self) -> int:
        # Equal shapes have these alike; the planner looks shapes up thousands of times a second.
        return hash((self.num_layers, self.hidden_size, self.num_heads, self.ffn_size, self.vocab_size))

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding table."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    @property
    def ffn_matrices(self) -> int:
        """Of a feed-forward layer, or of an expert: gate, up and down, or up and down."""
        return 3 if self.activation == "swiglu" else 2

    def parameters(self) -> int:
        """Number of trainable values, vocabulary padding included."""
        h = self.hidden_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        norm = h * (2 if self.norm == "layer" else 1)
        attention = h * q + 2 * h * kv + q * h
        attention += q + 2 * kv if self.attention_bias else 0
        attention += h if self.output_bias else 0
        attention += 2 * self.head_dim if self.qk_norm else 0
        matrices = self.ffn_matrices
        if self.num_experts:
            ffn = h * self.num_experts + self.num_experts * matrices * h * self.expert_ffn_size
        else:
            ffn = matrices * h * self.ffn_size
            if self.ffn_bias:
                ffn += (matrices - 1) * self.ffn_size + h
        embeddings = self.padded_vocab_size * h * (1 if self.tie_embeddings else 2)
        positions = self.max_positions * h if self.position == "learned" else 0
        return embeddings + positions + norm + self.num_layers * (attention + ffn + 2 * norm)
