"""The model's own numbers, before anything is cut."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from msparallel.model.presets import PRESETS
from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Finding, divisors, multiples_near, nearby

BYTE_VOCAB = 257
"""256 bytes and the end of text: the least that `bpe` and `byte` tokenizers have."""
MOE_KEYS = (
    "experts_per_token",
    "expert_ffn_size",
    "expert_capacity_factor",
    "normalize_expert_weights",
    "router_aux_loss",
)


def known_preset(recipe: Recipe) -> Iterator[Finding]:
    """model.preset is one of the published shapes."""
    preset = recipe.model.preset
    if preset is not None and preset not in PRESETS:
        close = get_close_matches(preset.lower().replace("-", "_").replace(".", "_"), PRESETS, n=3, cutoff=0.5)
        told = f" Did you mean {close[0]}?" if close else ""
        yield Finding(
            key="model.preset",
            message=f"There is no preset {preset!r}.{told} `msparallel ls --presets` lists all {len(PRESETS)}.",
            tries=[{"model.preset": name} for name in close],
        )


def shape_is_complete(recipe: Recipe) -> Iterator[Finding]:
    """Without a preset the model states num_layers, hidden_size, num_heads, ffn_size and vocab_size."""
    if recipe.model.preset is not None:
        return
    experts = derive.number(recipe, "num_experts")
    needed = [name for name in derive.REQUIRED_SHAPE if not (name == "ffn_size" and experts)]
    absent = [name for name in needed if getattr(recipe.model, name) is None]
    if absent:
        yield Finding(
            key=f"model.{absent[0]}",
            message=f"Without a preset the model needs {', '.join(needed)}; {', '.join(absent)} "
            f"{'is' if len(absent) == 1 else 'are'} missing. State {'it' if len(absent) == 1 else 'them'}, or name "
            "a preset.",
            tries=[{"model.preset": "gpt_tiny"}],
        )


def hidden_over_heads(recipe: Recipe) -> Iterator[Finding]:
    """hidden_size is a multiple of num_heads, unless head_dim is stated."""
    hidden, heads = derive.number(recipe, "hidden_size"), derive.number(recipe, "num_heads")
    if not hidden or not heads or hidden % heads == 0 or recipe.model.head_dim is not None:
        return
    if derive.number(recipe, "head_dim") != hidden // heads:
        return  # the preset has a head_dim of its own
    yield Finding(
        key="model.num_heads",
        message=f"hidden_size {hidden} is not a multiple of num_heads {heads} ({hidden} % {heads} = "
        f"{hidden % heads}), so "
        "heads have no whole width. Change one of them, or state head_dim.",
        tries=[
            *({"model.num_heads": count} for count in nearby(heads, divisors(hidden))),
            *({"model.hidden_size": size} for size in multiples_near(hidden, 2 * heads)),
            {"model.head_dim": max(2, hidden // heads // 2 * 2)},
        ],
    )


def query_heads_over_kv_heads(recipe: Recipe) -> Iterator[Finding]:
    """num_heads is a multiple of num_kv_heads: every key head serves the same number of query heads."""
    heads, kv_heads = derive.number(recipe, "num_heads"), derive.number(recipe, "num_kv_heads")
    if heads and kv_heads and heads % kv_heads:
        yield Finding(
            key="model.num_kv_heads" if recipe.model.num_kv_heads is not None else "model.num_heads",
            message=f"{heads} query heads cannot share {kv_heads} key heads evenly ({heads} % {kv_heads} = "
            f"{heads % kv_heads}).",
            tries=[
                *({"model.num_kv_heads": count} for count in nearby(kv_heads, divisors(heads))),
                *({"model.num_heads": count} for count in multiples_near(heads, kv_heads)),
            ],
        )


def rotary_head_dim_is_even(recipe: Recipe) -> Iterator[Finding]:
    """With rotary positions a head's width is even: its numbers turn in pairs."""
    width, hidden, heads = (derive.number(recipe, name) for name in ("head_dim", "hidden_size", "num_heads"))
    if derive.number(recipe, "position") != "rope" or width is None or width % 2 == 0:
        return
    yield Finding(
        key="model.head_dim" if recipe.model.head_dim is not None else "model.num_heads",
        message=f"A head is {width} wide; rotary positions turn pairs of numbers, so it must be even.",
        tries=[
            *({"model.head_dim": number} for number in (width + 1, width - 1) if number and recipe.model.head_dim),
            {"model.head_dim": None},
            *({"model.num_heads": count} for count in nearby(heads or 1, divisors(hidden or 1))
              if (hidden or 0) // count % 2 == 0),
            {"model.head_dim": width + 1},
        ],
    )  # fmt: skip


def vocab_holds_all_bytes(recipe: Recipe) -> Iterator[Finding]:
    """A `bpe` or `byte` tokenizer has at least 257 tokens: 256 bytes and the end of text."""
    vocab = derive.number(recipe, "vocab_size")
    if recipe.train is None or recipe.data.tokenizer not in ("bpe", "byte") or vocab is None or vocab >= BYTE_VOCAB:
        return
    yield Finding(
        key="model.vocab_size",
        message=f"{vocab} tokens are too few: the {recipe.data.tokenizer} tokenizer has 256 bytes and the end of "
        "text, at "
        f"least {BYTE_VOCAB}.",
        tries=({"model.vocab_size": size} for size in (BYTE_VOCAB, 264, 272, 320, 512, 1024, 4096)),
    )


def sequence_within_positions(recipe: Recipe) -> Iterator[Finding]:
    """train.seq_length is at most model.max_positions."""
    positions = derive.number(recipe, "max_positions")
    if recipe.train is None or positions is None or recipe.train.seq_length <= positions:
        return
    seq = recipe.train.seq_length
    yield Finding(
        key="train.seq_length",
        message=f"{seq} tokens are more than the {positions} positions of the model (max_positions).",
        tries=[{"train.seq_length": positions}, {"model.max_positions": seq}],
    )


def served_length_within_positions(recipe: Recipe) -> Iterator[Finding]:
    """serve.max_length is at most model.max_positions."""
    positions = derive.number(recipe, "max_positions")
    if recipe.serve is None or positions is None or recipe.serve.max_length <= positions:
        return
    yield Finding(
        key="serve.max_length",
        message=f"{recipe.serve.max_length} tokens are more than the {positions} positions of the model "
        "(max_positions).",
        tries=[{"serve.max_length": positions}, {"model.max_positions": recipe.serve.max_length}],
    )


def experts_are_complete(recipe: Recipe) -> Iterator[Finding]:
    """A model with experts states experts_per_token and expert_ffn_size."""
    experts = derive.number(recipe, "num_experts")
    absent = [name for name in ("experts_per_token", "expert_ffn_size") if experts and not derive.number(recipe, name)]
    if absent:
        hidden = derive.number(recipe, "hidden_size") or 256
        mended = {"experts_per_token": min(2, experts), "expert_ffn_size": derive.number(recipe, "ffn_size") or hidden}
        yield Finding(
            key="model.num_experts",
            message=f"{experts} experts need {' and '.join(absent)}.",
            tries=[
                {f"model.{name}": mended[name] for name in absent},
                {"model.num_experts": None},
                {"model.num_experts": 0},
            ],
        )


def experts_chosen_among_all(recipe: Recipe) -> Iterator[Finding]:
    """experts_per_token is at most num_experts."""
    experts, chosen = derive.number(recipe, "num_experts"), derive.number(recipe, "experts_per_token")
    if experts and chosen and chosen > experts:
        yield Finding(
            key="model.experts_per_token" if recipe.model.experts_per_token is not None else "model.num_experts",
            message=f"A token cannot visit {chosen} of {experts} experts.",
            tries=[{"model.experts_per_token": experts}, {"model.num_experts": chosen}],
        )


def experts_are_swiglu(recipe: Recipe) -> Iterator[Finding]:
    """Experts are SwiGLU layers without bias."""
    if not derive.number(recipe, "num_experts"):
        return
    if derive.number(recipe, "activation") != "swiglu":
        yield Finding(
            key="model.activation",
            message="Experts are SwiGLU layers; another activation is built for dense models only.",
            tries=[{"model.activation": "swiglu"}, {"model.num_experts": 0}],
        )
    if derive.number(recipe, "ffn_bias"):
        yield Finding(
            key="model.ffn_bias",
            message="Experts have no bias; ffn_bias is built for dense models only.",
            tries=[{"model.ffn_bias": False}, {"model.num_experts": 0}],
        )


def expert_settings_need_experts(recipe: Recipe) -> Iterator[Finding]:
    """Settings of experts stand only in a model that has experts."""
    if derive.number(recipe, "num_experts"):
        return
    for name in MOE_KEYS:
        if getattr(recipe.model, name) is not None:
            yield Finding(
                key=f"model.{name}",
                message="Without effect: the model has no experts (num_experts "
                f"{derive.number(recipe, 'num_experts')}). "
                "State num_experts, or leave the line out.",
                tries=[{f"model.{name}": None}, {f"model.{key}": None for key in MOE_KEYS}],
            )


def rope_theta_needs_rope(recipe: Recipe) -> Iterator[Finding]:
    """rope_theta belongs to rotary positions."""
    if recipe.model.rope_theta is not None and derive.number(recipe, "position") == "learned":
        yield Finding(
            key="model.rope_theta",
            message="Without effect: positions are learned. rope_theta belongs to `position: rope`.",
            tries=[{"model.rope_theta": None}, {"model.position": "rope"}],
        )


RULES = (
    known_preset,
    shape_is_complete,
    hidden_over_heads,
    query_heads_over_kv_heads,
    rotary_head_dim_is_even,
    vocab_holds_all_bytes,
    sequence_within_positions,
    served_length_within_positions,
    experts_are_complete,
    experts_chosen_among_all,
    experts_are_swiglu,
    expert_settings_need_experts,
    rope_theta_needs_rope,
)
