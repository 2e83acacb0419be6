"""The run itself: what a recipe is for, its schedule and its intervals."""

from __future__ import annotations

from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Finding


def trains_or_serves(recipe: Recipe) -> Iterator[Finding]:
    """A recipe has a train section, a serve section, or both."""
    if recipe.train is None and recipe.serve is None:
        grid = derive.mesh(recipe)
        replicas = grid.dp * grid.pp if grid else 1
        positions = derive.number(recipe, "max_positions") or 1024
        both = {"train.global_batch_size": replicas, "train.micro_batch_size": 1}
        serve = {"serve.weights": "random", "serve.max_length": min(4096, positions)}
        yield Finding(
            key="train",
            message="The recipe says nothing to do: it needs a `train:` section (with global_batch_size and "
            "micro_batch_size), a `serve:` section (with weights), or both.",
            tries=[
                {**both, "train.seq_length": min(1024, positions)},
                {**both, "train.seq_length": min(1024, positions), "train.dtype": "bfloat16"},
                {**both, "train.seq_length": min(1024, positions), "parallel.micro_batch_num": None},
                {"train.micro_batch_size": 1, "train.seq_length": min(1024, positions)},
                serve,
            ],
        )


def serving_is_tensor_parallel(recipe: Recipe) -> Iterator[Finding]:
    """A recipe that only serves cuts the model over model_parallel alone."""
    grid = derive.mesh(recipe)
    if grid is None or recipe.serve is None or recipe.train is not None or grid.size == grid.tp:
        return
    others = [key for key, axis in derive.DEGREES.items() if key != "model_parallel" and getattr(grid, axis) > 1]
    told = ", ".join(f"{key} {getattr(grid, derive.DEGREES[key])}" for key in others)
    ones = {f"parallel.{key}": 1 for key in others}
    yield Finding(
        key=f"parallel.{others[0]}",
        message=f"Serving cuts the model over model_parallel only; {told} would be idle. More replicas are more "
        "servers.",
        tries=[
            ones, {**ones, "parallel.mode": "stand_alone"}, {**ones, "parallel.model_parallel": grid.size},
            {**ones, "parallel.mode": "stand_alone", "parallel.context_parallel_algo": None},
            {**ones, "parallel.stage_layers": None, "parallel.virtual_stages": None},
        ],
    )  # fmt: skip


def served_experts_over_model_parallel(recipe: Recipe) -> Iterator[Finding]:
    """In a recipe that only serves a mixture of experts, expert_parallel equals model_parallel."""
    grid, experts = derive.mesh(recipe), recipe.parallel.expert_parallel
    if grid is None or recipe.serve is None or recipe.train is not None or not derive.number(recipe, "num_experts"):
        return
    if experts == grid.tp:
        return
    yield Finding(
        key="parallel.expert_parallel",
        message=f"A served token is a sequence of its own, whose place at an expert the {grid.tp} devices of "
        f"model_parallel cannot share; expert_parallel {experts} would ask them to. Each has its own experts where "
        "both degrees are the same.",
        tries=[
            {"parallel.expert_parallel": grid.tp},
            {"parallel.model_parallel": 1, "parallel.expert_parallel": 1, "parallel.mode": "stand_alone"},
        ],
    )


def warmup_shorter_than_run(recipe: Recipe) -> Iterator[Finding]:
    """warmup_steps is less than steps."""
    train, warmup = recipe.train, recipe.optimizer.warmup_steps
    if train is None or warmup < train.steps:
        return
    yield Finding(
        key="optimizer.warmup_steps",
        message=f"The learning rate rises for {warmup} steps, but the run has {train.steps}; it would never reach "
        "learning_rate.",
        tries=[{"optimizer.warmup_steps": train.steps // 10}, {"train.steps": warmup * 10 or 1}],
    )


def minimum_rate_below_peak(recipe: Recipe) -> Iterator[Finding]:
    """min_learning_rate is at most learning_rate."""
    optimizer = recipe.optimizer
    if recipe.train is None or optimizer.min_learning_rate <= optimizer.learning_rate:
        return
    tenth = float(f"{optimizer.learning_rate / 10:.3g}")
    yield Finding(
        key="optimizer.min_learning_rate"
        if recipe.stated("optimizer.min_learning_rate")
        else "optimizer.learning_rate",
        message=f"The cosine falls from learning_rate {optimizer.learning_rate:g}, so it cannot end at "
        f"{optimizer.min_learning_rate:g}.",
        tries=[{"optimizer.min_learning_rate": tenth}, {"optimizer.min_learning_rate": None}],
    )


def intervals_within_run(recipe: Recipe) -> Iterator[Finding]:
    """eval_interval, checkpoint_interval and log_interval are at most steps."""
    if recipe.train is None:
        return
    steps = recipe.train.steps
    for name in ("log_interval", "eval_interval", "checkpoint_interval"):
        interval = getattr(recipe.train, name)
        if interval is not None and interval > steps:
            yield Finding(
                key=f"train.{name}" if recipe.stated(f"train.{name}") else "train.steps",
                message=f"Every {interval} steps is never: the run has {steps}. It ends with an evaluation and a "
                "checkpoint "
                "anyway.",
                tries=[{f"train.{name}": steps}, {f"train.{name}": None}],
            )


def long_timeout_not_below_hang_timeout(recipe: Recipe) -> Iterator[Finding]:
    """long_timeout_s is at least hang_timeout_s."""
    hang_s, long_s = recipe.supervise.hang_timeout_s, recipe.supervise.long_timeout_s
    if recipe.train is None or long_s >= hang_s:
        return
    yield Finding(
        key="supervise.long_timeout_s" if recipe.stated("supervise.long_timeout_s") else "supervise.hang_timeout_s",
        message=f"Compilation, evaluation and a checkpoint take as long as many steps: they cannot be given "
        f"{long_s:g} s where a step is given {hang_s:g} s.",
        tries=[{"supervise.long_timeout_s": 6 * hang_s}, {"supervise.hang_timeout_s": long_s / 6}],
    )


RULES = (
    trains_or_serves,
    serving_is_tensor_parallel,
    served_experts_over_model_parallel,
    warmup_shorter_than_run,
    minimum_rate_below_peak,
    intervals_within_run,
    long_timeout_not_below_hang_timeout,
)
