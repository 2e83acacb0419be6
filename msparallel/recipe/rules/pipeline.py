"""Layers over stages, and what a pipeline asks of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import (
    Changes,
    Finding,
    degree_changes,
    divisors,
    multiples_near,
    nearby,
    without_effect,
)

STAGES = "parallel.pipeline_stages"


def _groups(recipe: Recipe) -> tuple[int, str] | None:
    """Groups of layers, and the arithmetic."""
    stages = derive.degree(recipe, "pp")
    if stages is None:
        return None
    virtual = recipe.parallel.virtual_stages
    told = f"pipeline_stages {stages}" + (f" x virtual_stages {virtual}" if virtual > 1 else "")
    return stages * virtual, told + (f" = {stages * virtual}" if virtual > 1 else "")


def layers_over_stages(recipe: Recipe) -> Iterator[Finding]:
    """num_layers is a multiple of pipeline_stages x virtual_stages, or stage_layers says who gets how many."""
    groups, layers = _groups(recipe), derive.number(recipe, "num_layers")
    if groups is None or not layers or recipe.parallel.stage_layers is not None or layers % groups[0] == 0:
        return
    count, told = groups
    if layers < count:
        message = f"{layers} layers are fewer than {told} groups; every stage needs at least one layer."
    else:
        shares = derive.equal_shares(layers, count)
        message = (
            f"{layers} layers cannot be spread evenly over {told} ({layers} % {count} = {layers % count}). State "
            f"stage_layers, for example [{', '.join(map(str, shares))}], or change a degree."
        )
    yield Finding(
        key=STAGES, message=message, tries=itertools.chain(_stage_lists(layers, count), _fewer(recipe, layers))
    )


def stage_layers_length(recipe: Recipe) -> Iterator[Finding]:
    """stage_layers has one number for each of pipeline_stages x virtual_stages groups."""
    groups, stated, layers = _groups(recipe), recipe.parallel.stage_layers, derive.number(recipe, "num_layers")
    if groups is None or stated is None or groups[0] == 1 or len(stated) == groups[0]:
        return
    yield Finding(
        key="parallel.stage_layers",
        message=f"{len(stated)} numbers for {groups[1]} groups of layers.",
        tries=itertools.chain(
            _stage_lists(layers or 0, groups[0]),
            [{"parallel.stage_layers": None}],
            degree_changes(recipe, STAGES, [len(stated) // recipe.parallel.virtual_stages or 1]),
        ),
    )


def stage_layers_sum(recipe: Recipe) -> Iterator[Finding]:
    """stage_layers adds up to num_layers."""
    groups, stated, layers = _groups(recipe), recipe.parallel.stage_layers, derive.number(recipe, "num_layers")
    if (
        groups is None
        or not stated
        or not layers
        or groups[0] != len(stated)
        or groups[0] == 1
        or sum(stated) == layers
    ):
        return
    shown = " + ".join(map(str, stated))
    yield Finding(
        key="parallel.stage_layers",
        message=f"{shown} = {sum(stated)} layers, but the model has {layers}.",
        tries=itertools.chain(
            _mended_lists(stated, layers), _stage_lists(layers, len(stated)), [{"parallel.stage_layers": None}]
        ),
    )


def stage_layers_need_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """stage_layers belongs to a pipeline."""
    stages = derive.degree(recipe, "pp")
    if stages is not None and stages == 1 and recipe.parallel.stage_layers is not None:
        yield without_effect("parallel.stage_layers", "there is one stage (pipeline_stages 1)")


def schedule_needs_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """pipeline_schedule belongs to a pipeline."""
    stages = derive.degree(recipe, "pp")
    if stages is not None and stages == 1 and recipe.parallel.pipeline_schedule is not None:
        yield without_effect("parallel.pipeline_schedule", "there is one stage (pipeline_stages 1)")


def gpipe_needs_virtual_stages(recipe: Recipe) -> Iterator[Finding]:
    """pipeline_schedule gpipe acts with virtual_stages above 1; with one group a stage MindSpore compiles 1f1b."""
    stages = derive.degree(recipe, "pp")
    if stages is None or stages == 1 or recipe.parallel.pipeline_schedule != "gpipe":
        return
    if recipe.parallel.virtual_stages == 1:
        yield without_effect(
            "parallel.pipeline_schedule",
            "with one group of layers a stage (virtual_stages 1) MindSpore compiles 1f1b whatever the schedule",
            {"parallel.virtual_stages": 2},
        )


def virtual_stages_need_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """virtual_stages above 1 belongs to a pipeline."""
    stages = derive.degree(recipe, "pp")
    if stages is not None and stages == 1 and recipe.parallel.virtual_stages > 1:
        yield without_effect("parallel.virtual_stages", "there is one stage (pipeline_stages 1)")


def micro_batches_fill_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """micro_batch_num is at least pipeline_stages; MindSpore refuses fewer."""
    stages, batch = derive.degree(recipe, "pp"), derive.batch(recipe)
    if stages is None or batch is None or recipe.train is None or stages == 1 or batch[2] >= stages:
        return
    total, micro, count = batch
    replicas = total // (micro * count)
    stated = recipe.parallel.micro_batch_num is not None
    yield Finding(
        key="parallel.micro_batch_num" if stated else "train.global_batch_size",
        message=f"{count} micro-batch{'es' * (count > 1)} a step ({total} / (data_parallel {replicas} x "
        "micro_batch_size "
        f"{micro})) cannot fill {stages} stages; at least {stages} are needed, 4 x {stages} keep the bubble below "
        "20 %.",
        tries=itertools.chain(_more_micro_batches(recipe, replicas, micro, stages), _fewer(recipe, stages)),
    )


def tied_embeddings_without_pipeline(recipe: Recipe) -> Iterator[Finding]:
    """tie_embeddings needs one stage: token embedding and LM head would stand on different devices."""
    stages = derive.degree(recipe, "pp")
    if stages is None or stages == 1 or not derive.number(recipe, "tie_embeddings"):
        return
    yield Finding(
        key=STAGES,
        message=f"The LM head is the token embedding (tie_embeddings), but with {stages} stages one stands on the "
        "first "
        "stage and the other on the last.",
        tries=itertools.chain([{"model.tie_embeddings": False}], degree_changes(recipe, STAGES, [1])),
    )


def _stage_lists(layers: int, groups: int) -> Iterator[Changes]:
    """Equal shares, larger ones in the middle: the first stage has the embedding, the last the LM head."""
    if layers < groups or groups < 2:
        return
    base, rest = divmod(layers, groups)
    first = (groups - rest) // 2
    yield {"parallel.stage_layers": [base + (first <= group < first + rest) for group in range(groups)]}


def _mended_lists(stated: list[int], layers: int) -> Iterator[Changes]:
    """The stated list with the difference taken from, or added to, one stage after another."""
    difference = layers - sum(stated)
    for at in sorted(range(len(stated)), key=lambda index: stated[index], reverse=difference < 0):
        if stated[at] + difference >= 1:
            yield {"parallel.stage_layers": [count + difference * (index == at) for index, count in enumerate(stated)]}
            return


def _fewer(recipe: Recipe, layers: int) -> Iterator[Changes]:
    """Stages and virtual stages that divide the layers."""
    stages = derive.degree(recipe, "pp")
    assert stages is not None
    virtual = recipe.parallel.virtual_stages
    if virtual > 1:
        yield {"parallel.virtual_stages": 1}
        for count in nearby(virtual, divisors(layers)):
            yield {"parallel.virtual_stages": count}
    yield from degree_changes(recipe, STAGES, nearby(stages, divisors(layers)))


def _more_micro_batches(recipe: Recipe, dp: int, micro: int, stages: int) -> Iterator[Changes]:
    train = recipe.train
    assert train is not None
    if recipe.parallel.micro_batch_num is not None:
        both = train.global_batch_size is not None and train.micro_batch_size is not None
        yield {"parallel.micro_batch_num": stages, **({"train.global_batch_size": dp * micro * stages} if both else {})}
    if train.global_batch_size is not None:
        for size in nearby(micro, divisors(micro)):
            if train.global_batch_size // (dp * size) >= stages and train.micro_batch_size is not None:
                yield {"train.micro_batch_size": size}
        for total in multiples_near(train.global_batch_size, dp * micro * stages):
            yield {"train.global_batch_size": total}
        if recipe.parallel.micro_batch_num is not None:
            yield {"parallel.micro_batch_num": stages, "train.global_batch_size": dp * micro * stages}


RULES = (
    layers_over_stages,
    stage_layers_length,
    stage_layers_sum,
    stage_layers_need_pipeline,
    schedule_needs_pipeline,
    gpipe_needs_virtual_stages,
    virtual_stages_need_pipeline,
    micro_batches_fill_pipeline,
    tied_embeddings_without_pipeline,
)
