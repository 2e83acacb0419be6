"""Published model shapes by name.

In: a preset name. Out: its ModelShape. The numbers are those of each model's public `config.json` on Hugging Face
(repository in the comment), read under our field names; `gpt_tiny` is ours, small enough for two CPU cores.

>>> PRESETS["qwen3_8b"].num_kv_heads
8
"""

from __future__ import annotations

from dataclasses import replace

from msparallel.model.shape import ModelShape

_GPT2 = ModelShape(  # openai-community/gpt2
    num_layers=12, hidden_size=768, num_heads=12, ffn_size=3072, vocab_size=50257, vocab_multiple=128,
    position="learned", max_positions=1024, norm="layer", norm_eps=1e-5, activation="gelu",
    attention_bias=True, output_bias=True, ffn_bias=True, tie_embeddings=True,
)  # fmt: skip
_LLAMA2 = ModelShape(  # meta-llama/Llama-2-7b-hf
    num_layers=32, hidden_size=4096, num_heads=32, ffn_size=11008, vocab_size=32000, max_positions=4096, norm_eps=1e-5,
)  # fmt: skip
_LLAMA3 = ModelShape(  # meta-llama/Meta-Llama-3-8B
    num_layers=32, hidden_size=4096, num_heads=32, num_kv_heads=8, ffn_size=14336, vocab_size=128256,
    max_positions=8192, rope_theta=500000.0, norm_eps=1e-5,
)  # fmt: skip
_QWEN2 = ModelShape(  # Qwen/Qwen2-7B
    num_layers=28, hidden_size=3584, num_heads=28, num_kv_heads=4, ffn_size=18944, vocab_size=152064,
    max_positions=131072, rope_theta=1e6, attention_bias=True,
)  # fmt: skip
_QWEN3 = ModelShape(  # Qwen/Qwen3-8B
    num_layers=36, hidden_size=4096, num_heads=32, num_kv_heads=8, head_dim=128, ffn_size=12288, vocab_size=151936,
    max_positions=40960, rope_theta=1e6, qk_norm=True,
)  # fmt: skip
_QWEN3_MOE = replace(  # Qwen/Qwen3-30B-A3B
    _QWEN3, num_layers=48, hidden_size=2048, num_kv_heads=4, ffn_size=6144, num_experts=128, experts_per_token=8,
    expert_ffn_size=768, normalize_expert_weights=True, router_aux_loss=0.001,
)  # fmt: skip

PRESETS: dict[str, ModelShape] = {
    "gpt_tiny": ModelShape(
        num_layers=4,
        hidden_size=256,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        ffn_size=704,
        vocab_size=4096,
        max_positions=1024,
        tie_embeddings=True,
    ),  # fmt: skip
    "gpt2_124m": _GPT2,
    # openai-community/gpt2-xl
    "gpt2_1558m": replace(
        _GPT2, num_layers=48, hidden_size=1600, num_heads=25, head_dim=64, num_kv_heads=25, ffn_size=6400
    ),
    "llama2_7b": _LLAMA2,
    # meta-llama/Llama-2-13b-hf
    "llama2_13b": replace(_LLAMA2, num_layers=40, hidden_size=5120, num_heads=40, num_kv_heads=40, ffn_size=13824),
    # meta-llama/Llama-2-70b-hf
    "llama2_70b": replace(_LLAMA2, num_layers=80, hidden_size=8192, num_heads=64, num_kv_heads=8, ffn_size=28672),
    "llama3_8b": _LLAMA3,
    # meta-llama/Meta-Llama-3-70B
    "llama3_70b": replace(_LLAMA3, num_layers=80, hidden_size=8192, num_heads=64, ffn_size=28672),
    # Qwen/Qwen2-0.5B
    "qwen2_0_5b": replace(
        _QWEN2,
        num_layers=24,
        hidden_size=896,
        num_heads=14,
        num_kv_heads=2,
        head_dim=64,
        ffn_size=4864,
        vocab_size=151936,
        tie_embeddings=True,
    ),
    "qwen2_7b": _QWEN2,
    # Qwen/Qwen3-0.6B, -1.7B, -4B, -14B, -32B
    "qwen3_0_6b": replace(_QWEN3, num_layers=28, hidden_size=1024, num_heads=16, ffn_size=3072, tie_embeddings=True),
    "qwen3_1_7b": replace(_QWEN3, num_layers=28, hidden_size=2048, num_heads=16, ffn_size=6144, tie_embeddings=True),
    "qwen3_4b": replace(_QWEN3, hidden_size=2560, ffn_size=9728, tie_embeddings=True),
    "qwen3_8b": _QWEN3,
    "qwen3_14b": replace(_QWEN3, num_layers=40, hidden_size=5120, num_heads=40, ffn_size=17408),
    "qwen3_32b": replace(_QWEN3, num_layers=64, hidden_size=5120, num_heads=64, ffn_size=25600),
    "qwen3_30b_a3b": _QWEN3_MOE,
    # Qwen/Qwen3-235B-A22B
    "qwen3_235b_a22b": replace(
        _QWEN3_MOE, num_layers=94, hidden_size=4096, num_heads=64, ffn_size=12288, expert_ffn_size=1536
    ),
}
