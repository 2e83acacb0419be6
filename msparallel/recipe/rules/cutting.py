"""What is cut over model_parallel, context_parallel and expert_parallel must come out in whole pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Changes, Finding, degree_changes, divisors, multiples_near, nearby

MODEL_PARALLEL = "parallel.model_parallel"
CONTEXT_PARALLEL = "parallel.context_parallel"


def _not_divisible(what: str, number: int, degree: int) -> str:
    return f"{number} {what} cannot be split over {degree} devices ({number} % {degree} = {number % degree})"


def _lower(recipe: Recipe, key: str, degree: int, *numbers: int | None) -> Iterator[Changes]:
    """The degree set to what divides all numbers, nearest first."""
    common = math.gcd(*(number for number in numbers if number))
    return degree_changes(recipe, key, nearby(degree, divisors(common)))


def heads_over_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """num_heads is a multiple of model_parallel: a head stays on one device."""
    tp, heads = derive.degree(recipe, "tp"), derive.number(recipe, "num_heads")
    if tp is None or not heads or heads % tp == 0:
        return
    legal = ", ".join(map(str, divisors(heads, 64)))
    yield Finding(
        key=MODEL_PARALLEL,
        message=f"{_not_divisible('attention heads', heads, tp)}. {heads} heads allow {legal}.",
        tries=_lower(recipe, MODEL_PARALLEL, tp, heads, derive.number(recipe, "num_kv_heads")),
    )


def kv_heads_over_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """num_kv_heads is a multiple of model_parallel."""
    tp, heads, kv_heads = (
        derive.degree(recipe, "tp"),
        derive.number(recipe, "num_heads"),
        derive.number(recipe, "num_kv_heads"),
    )
    if tp is None or not kv_heads or kv_heads == heads or kv_heads % tp == 0:
        return  # one group a head is the rule above
    yield Finding(
        key=MODEL_PARALLEL,
        message=f"{_not_divisible('key and value heads', kv_heads, tp)}. A key head is not copied, so at most "
        f"{kv_heads} devices share them.",
        tries=_lower(recipe, MODEL_PARALLEL, tp, kv_heads, heads),
    )


def vocab_over_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """With vocab_parallel the padded vocabulary is a multiple of model_parallel."""
    tp, vocab = derive.degree(recipe, "tp"), derive.number(recipe, "vocab_size")
    multiple = derive.number(recipe, "vocab_multiple")
    if tp is None or vocab is None or not multiple or not recipe.parallel.vocab_parallel:
        return
    padded = -(-vocab // multiple) * multiple
    if padded % tp == 0:
        return
    wanted = math.lcm(multiple, tp)
    yield Finding(
        key=MODEL_PARALLEL,
        message=f"{_not_divisible('rows of the vocabulary', padded, tp)}. Pad them with model.vocab_multiple {wanted} "
        f"(to {-(-vocab // wanted) * wanted}), or keep the table whole with vocab_parallel false.",
        tries=itertools.chain(
            [{"model.vocab_multiple": wanted}, {"parallel.vocab_parallel": False}],
            _lower(recipe, MODEL_PARALLEL, tp, padded, derive.number(recipe, "num_kv_heads")),
        ),
    )


def ffn_over_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """ffn_size is a multiple of model_parallel in a dense model; experts are never cut inside."""
    tp, ffn = derive.degree(recipe, "tp"), derive.number(recipe, "ffn_size")
    if tp is None or not ffn or derive.number(recipe, "num_experts") or ffn % tp == 0:
        return
    yield Finding(
        key=MODEL_PARALLEL,
        message=f"{_not_divisible('columns of the feed-forward layer (ffn_size)', ffn, tp)}.",
        tries=itertools.chain(
            ({"model.ffn_size": size} for size in multiples_near(ffn, tp) if recipe.model.ffn_size is not None),
            _lower(recipe, MODEL_PARALLEL, tp, ffn, derive.number(recipe, "num_kv_heads")),
            ({"model.ffn_size": size} for size in multiples_near(ffn, tp)),
        ),
    )


def sequence_over_context_parallel(recipe: Recipe) -> Iterator[Finding]:
    """seq_length is a multiple of context_parallel."""
    grid = derive.mesh(recipe)
    if grid is None or recipe.train is None or recipe.train.seq_length % grid.cp == 0:
        return
    seq = recipe.train.seq_length
    yield Finding(
        key=CONTEXT_PARALLEL,
        message=f"{_not_divisible('tokens of a sequence', seq, grid.cp)}.",
        tries=itertools.chain(
            _shorter_sequences(recipe, seq, grid.cp * (grid.tp if recipe.parallel.sequence_parallel else 1)),
            _lower(recipe, CONTEXT_PARALLEL, grid.cp, seq),
        ),
    )


def tokens_over_sequence_parallel(recipe: Recipe) -> Iterator[Finding]:
    """With sequence_parallel a replica's tokens are a multiple of context_parallel x model_parallel; with experts each
    sequence's tokens are."""
    grid, batch = derive.mesh(recipe), derive.batch(recipe)
    if grid is None or batch is None or recipe.train is None or not recipe.parallel.sequence_parallel:
        return
    seq, pieces = recipe.train.seq_length, grid.cp * grid.tp
    experts = bool(derive.number(recipe, "num_experts"))
    tokens = seq if experts else batch[1] * seq
    if tokens % pieces == 0 or grid.tp == 1:
        return
    told = f"seq_length {seq}" if experts else f"micro_batch_size {batch[1]} x seq_length {seq} = {tokens}"
    yield Finding(
        key="parallel.sequence_parallel",
        message=f"Tokens are cut over context_parallel {grid.cp} x model_parallel {grid.tp} = {pieces} devices, but "
        f"{told} is not a multiple of {pieces} ({tokens} % {pieces} = {tokens % pieces}).",
        tries=itertools.chain(_shorter_sequences(recipe, seq, pieces), [{"parallel.sequence_parallel": False}]),
    )


def ulysses_heads(recipe: Recipe) -> Iterator[Finding]:
    """With ulysses, query and key heads are multiples of model_parallel x context_parallel."""
    grid = derive.mesh(recipe)
    if grid is None or grid.cp == 1 or recipe.parallel.context_parallel_algo != "ulysses":
        return
    pieces = grid.tp * grid.cp
    for name in ("num_heads", "num_kv_heads"):
        count = derive.number(recipe, name)
        if not count or count % pieces == 0:
            continue
        yield Finding(
            key="parallel.context_parallel_algo",
            message=f"ulysses spreads heads over model_parallel {grid.tp} x context_parallel {grid.cp} = {pieces} "
            "devices, "
            f"but {name} is {count} ({count} % {pieces} = {count % pieces}). all_gather keeps heads whole.",
            tries=itertools.chain(
                [{"parallel.context_parallel_algo": "all_gather"}],
                _lower(recipe, CONTEXT_PARALLEL, grid.cp, count // grid.tp),
            ),
        )
        return


def experts_over_expert_parallel(recipe: Recipe) -> Iterator[Finding]:
    """num_experts is a multiple of expert_parallel."""
    experts, degree, grid = derive.number(recipe, "num_experts"), recipe.parallel.expert_parallel, derive.mesh(recipe)
    if experts and experts % degree:
        stage = grid.dp * grid.cp * grid.tp if grid else experts
        yield Finding(
            key="parallel.expert_parallel",
            message=f"{_not_divisible('experts', experts, degree)}.",
            tries=_expert_degrees(degree, experts, stage),
        )


def devices_over_expert_parallel(recipe: Recipe) -> Iterator[Finding]:
    """data_parallel x context_parallel x model_parallel is a multiple of expert_parallel."""
    experts, degree, grid = derive.number(recipe, "num_experts"), recipe.parallel.expert_parallel, derive.mesh(recipe)
    if not experts or grid is None:
        return
    stage = grid.dp * grid.cp * grid.tp
    if stage % degree:
        yield Finding(
            key="parallel.expert_parallel",
            message=f"Experts are cut over devices of one stage, of which there are data_parallel {grid.dp} x "
            f"context_parallel {grid.cp} x model_parallel {grid.tp} = {stage}; {stage} % {degree} = {stage % degree}.",
            tries=_expert_degrees(degree, experts, stage),
        )


def experts_on_neighbours(recipe: Recipe) -> Iterator[Finding]:
    """expert_parallel divides context_parallel x model_parallel, or is a multiple: groups are neighbouring ranks."""
    experts, degree, grid = derive.number(recipe, "num_experts"), recipe.parallel.expert_parallel, derive.mesh(recipe)
    if not experts or grid is None or grid.dp * grid.cp * grid.tp % degree:
        return
    inner, stage = grid.cp * grid.tp, grid.dp * grid.cp * grid.tp
    if inner % degree and degree % inner:
        legal = [n for n in divisors(math.gcd(experts, stage)) if not (inner % n and n % inner)]
        yield Finding(
            key="parallel.expert_parallel",
            message=f"It must divide context_parallel {grid.cp} x model_parallel {grid.tp} = {inner} or be a multiple "
            f"of it; {degree} is neither. Possible here: {', '.join(map(str, legal))}.",
            tries=({"parallel.expert_parallel": number} for number in nearby(degree, legal)),
        )


def sequence_over_shared_slots(recipe: Recipe) -> Iterator[Finding]:
    """seq_length is a multiple of context_parallel x model_parallel / expert_parallel, which share expert slots."""
    experts, degree, grid = derive.number(recipe, "num_experts"), recipe.parallel.expert_parallel, derive.mesh(recipe)
    if not experts or grid is None or recipe.train is None or grid.cp * grid.tp % degree:
        return
    share, seq = grid.cp * grid.tp // degree, recipe.train.seq_length
    if seq % share:
        yield Finding(
            key="train.seq_length",
            message=f"context_parallel {grid.cp} x model_parallel {grid.tp} / expert_parallel {degree} = {share} "
            f"devices share the slots of an expert, but seq_length is {seq} ({seq} % {share} = {seq % share}).",
            tries=_shorter_sequences(recipe, seq, share),
        )


def _expert_degrees(degree: int, experts: int, stage: int) -> Iterable[Changes]:
    return ({"parallel.expert_parallel": number} for number in nearby(degree, divisors(math.gcd(experts, stage))))


def _shorter_sequences(recipe: Recipe, seq: int, pieces: int) -> Iterator[Changes]:
    for length in multiples_near(seq, pieces):
        yield {"train.seq_length": length}


RULES = (
    heads_over_model_parallel,
    kv_heads_over_model_parallel,
    vocab_over_model_parallel,
    ffn_over_model_parallel,
    sequence_over_context_parallel,
    tokens_over_sequence_parallel,
    ulysses_heads,
    experts_over_expert_parallel,
    devices_over_expert_parallel,
    experts_on_neighbours,
    sequence_over_shared_slots,
)
