"""Settings that would change nothing. A degree of 1, and micro_batch_num without a pipeline, are never among them."""

from __future__ import annotations

from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Finding, without_effect
from msparallel.recipe.rules.mode import OPERATOR_MODES

TRAINING_KEYS = (
    "parallel.micro_batch_num", "parallel.pipeline_schedule", "parallel.optimizer_shard",
    "parallel.optimizer_shard_size",     "parallel.optimizer_shard_threshold_kib", "parallel.recompute",
    "parallel.comm_fusion", "parallel.overlap_gradients",
    "parallel.sequence_parallel",
)  # fmt: skip
"""Keys of `parallel` that only training reads."""
TRAINING_SECTIONS = ("optimizer", "data", "supervise")
"""Sections that only training reads."""


def sequence_parallel_needs_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """sequence_parallel needs model_parallel above 1."""
    tp = derive.degree(recipe, "tp")
    if tp is not None and tp == 1 and recipe.parallel.sequence_parallel:
        yield without_effect("parallel.sequence_parallel", "tokens are cut over model_parallel, which is 1")


def expert_parallel_needs_experts(recipe: Recipe) -> Iterator[Finding]:
    """expert_parallel above 1 needs a model with experts."""
    if recipe.parallel.expert_parallel > 1 and derive.number(recipe, "num_experts") == 0:
        yield without_effect("parallel.expert_parallel", "the model has no experts (num_experts 0)")


def expert_parallel_needs_engine(recipe: Recipe) -> Iterator[Finding]:
    """expert_parallel above 1 needs semi_auto_parallel or auto_parallel."""
    mode = recipe.parallel.mode
    if recipe.parallel.expert_parallel > 1 and derive.number(recipe, "num_experts") and mode not in OPERATOR_MODES:
        yield without_effect(
            "parallel.expert_parallel",
            f"in mode {mode} every device holds all experts",
            {"parallel.mode": "semi_auto_parallel"},
        )


def context_algo_needs_context_parallel(recipe: Recipe) -> Iterator[Finding]:
    """context_parallel_algo needs context_parallel above 1."""
    cp = derive.degree(recipe, "cp")
    if cp is not None and cp == 1 and recipe.parallel.context_parallel_algo is not None:
        yield without_effect("parallel.context_parallel_algo", "one device holds a whole sequence (context_parallel 1)")


def fusion_needs_gradient_sum(recipe: Recipe) -> Iterator[Finding]:
    """comm_fusion needs gradients that are summed over devices, and the engine that fuses the sums."""
    grid, mode = derive.mesh(recipe), recipe.parallel.mode
    if grid is None or recipe.train is None or recipe.parallel.comm_fusion == "none":
        return
    if grid.dp * grid.cp == 1:
        yield without_effect(
            "parallel.comm_fusion", "no gradients are summed (data_parallel and context_parallel are 1)"
        )
    elif mode not in OPERATOR_MODES:
        yield without_effect(
            "parallel.comm_fusion", f"MindSpore's engine fuses collectives, and {mode} does not use it",
            {"parallel.mode": "semi_auto_parallel"},
        )  # fmt: skip


def overlap_needs_gradient_sum(recipe: Recipe) -> Iterator[Finding]:
    """overlap_gradients needs gradients that are summed over devices, and the engine that reorders them."""
    grid, mode = derive.mesh(recipe), recipe.parallel.mode
    if grid is None or recipe.train is None or not recipe.parallel.overlap_gradients:
        return
    if grid.dp * grid.cp == 1:
        yield without_effect(
            "parallel.overlap_gradients", "no gradients are summed (data_parallel and context_parallel are 1)"
        )
    elif mode not in OPERATOR_MODES:
        yield without_effect(
            "parallel.overlap_gradients", f"MindSpore's engine reorders the sums, and {mode} does not use it",
            {"parallel.mode": "semi_auto_parallel"},
        )  # fmt: skip


def training_settings_need_train(recipe: Recipe) -> Iterator[Finding]:
    """Settings that only training reads stand only in a recipe with a train section."""
    if recipe.train is not None:
        return
    on = [key for key in TRAINING_KEYS if recipe.value(key) not in (None, False, "none")]
    for key in on:
        yield without_effect(key, "only training reads it, and there is no train section", dict.fromkeys(on))


def training_sections_need_train(recipe: Recipe) -> Iterator[Finding]:
    """The sections optimizer, data and supervise belong to a recipe with a train section."""
    if recipe.train is not None or recipe.serve is None:
        return  # without both there is a rule of its own
    for section in TRAINING_SECTIONS:
        keys = sorted(recipe.keys_stated(section))
        if keys:
            yield Finding(
                key=section,
                message=f"Without effect: only training reads `{section}:`, and there is no train section.",
                tries=[{f"{section}.{key}": None for key in keys},
                       {key: None for name in TRAINING_SECTIONS for key in
                        (f"{name}.{k}" for k in recipe.keys_stated(name))}],
            )  # fmt: skip


def text_field_needs_json_lines(recipe: Recipe) -> Iterator[Finding]:
    """text_field belongs to a corpus of JSON Lines."""
    corpus, field = recipe.data.corpus, recipe.data.text_field
    if recipe.train is None or field is None:
        return
    if corpus == "python_stdlib" or corpus.endswith((".txt", ".py", ".md")):
        yield without_effect("data.text_field", f"the corpus {corpus} is plain text, not JSON Lines")


def minimum_rate_needs_cosine(recipe: Recipe) -> Iterator[Finding]:
    """min_learning_rate belongs to the cosine schedule."""
    optimizer = recipe.optimizer
    if recipe.train is not None and optimizer.schedule == "constant" and optimizer.min_learning_rate > 0:
        yield without_effect(
            "optimizer.min_learning_rate",
            "the constant schedule stays at learning_rate",
            {"optimizer.schedule": "cosine"},
        )


def sample_prompt_needs_sample(recipe: Recipe) -> Iterator[Finding]:
    """sample_prompt needs sample_tokens above 0."""
    if recipe.train is not None and recipe.stated("train.sample_prompt") and recipe.train.sample_tokens == 0:
        yield without_effect(
            "train.sample_prompt", "no sample is written (sample_tokens 0)", {"train.sample_tokens": None}
        )


def restart_settings_need_restarts(recipe: Recipe) -> Iterator[Finding]:
    """restart_delay_s, on_node_fault: exclude and node_wait_s need max_restarts above 0, node_wait_s also exclude."""
    supervise = recipe.supervise
    if supervise.max_restarts == 0:
        keys = [f"supervise.{name}" for name in ("restart_delay_s", "node_wait_s")]
        if supervise.on_node_fault == "exclude":
            keys.append("supervise.on_node_fault")
        on = [key for key in keys if recipe.stated(key)]
        for key in on:
            yield without_effect(
                key, "nothing is started again (max_restarts 0)", dict.fromkeys(on), {"supervise.max_restarts": None}
            )
    elif supervise.on_node_fault == "stop" and recipe.stated("supervise.node_wait_s"):
        yield without_effect(
            "supervise.node_wait_s",
            "a node that cannot be reached ends the run (on_node_fault stop)",
            {"supervise.on_node_fault": "exclude"},
        )


RULES = (
    sequence_parallel_needs_model_parallel,
    expert_parallel_needs_experts,
    expert_parallel_needs_engine,
    context_algo_needs_context_parallel,
    fusion_needs_gradient_sum,
    overlap_needs_gradient_sum,
    training_settings_need_train,
    training_sections_need_train,
    text_field_needs_json_lines,
    minimum_rate_needs_cosine,
    sample_prompt_needs_sample,
    restart_settings_need_restarts,
)
