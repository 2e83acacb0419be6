"""global_batch_size = data_parallel x micro_batch_size x micro_batch_num."""

from __future__ import annotations

from collections.abc import Iterator

from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Changes, Finding, divisors, multiples_near, nearby

TOTAL, MICRO, COUNT = "train.global_batch_size", "train.micro_batch_size", "parallel.micro_batch_num"


def batch_is_stated(recipe: Recipe) -> Iterator[Finding]:
    """A training recipe states two of global_batch_size, micro_batch_size and micro_batch_num."""
    train, count = recipe.train, recipe.parallel.micro_batch_num
    if train is None:
        return
    stated = {TOTAL: train.global_batch_size, MICRO: train.micro_batch_size, COUNT: count}
    absent = [key for key, value in stated.items() if value is None]
    if len(absent) < 2:
        return
    grid = derive.mesh(recipe)
    replicas = grid.dp * grid.pp if grid else 1
    found = [key for key in stated if key not in absent]
    total = train.global_batch_size or replicas
    micros = nearby(1, divisors(total))[::-1] if train.global_batch_size else [1]
    options: list[Changes] = [{TOTAL: (train.micro_batch_size or 1) * replicas * (count or 1)}]
    options += [
        {MICRO: 1},
        *({MICRO: micro} for micro in micros),
        {TOTAL: replicas, MICRO: 1},
        {MICRO: 1, COUNT: None, TOTAL: replicas},
    ]
    yield Finding(
        key=absent[0],
        message="The batch needs two of three: global_batch_size = data_parallel x micro_batch_size x micro_batch_num. "
        f"{'Only ' + found[0].partition('.')[2] + ' is stated' if found else 'None is stated'}.",
        tries=[change for change in options if all(stated[key] is None or change[key] is None for key in change)],
    )


def batch_comes_out(recipe: Recipe) -> Iterator[Finding]:
    """global_batch_size is a multiple of data_parallel x micro_batch_size (or of data_parallel x micro_batch_num)."""
    train, replicas, count = recipe.train, derive.degree(recipe, "dp"), recipe.parallel.micro_batch_num
    if train is None or replicas is None or train.global_batch_size is None:
        return
    total = train.global_batch_size
    if train.micro_batch_size is not None:
        key, factor = MICRO, train.micro_batch_size
    elif count is not None:
        key, factor = COUNT, count
    else:
        return
    unit = replicas * factor
    if total % unit == 0:
        return
    stages = derive.degree(recipe, "pp") or 1
    yield Finding(
        key=TOTAL,
        message=f"{total} sequences cannot be dealt out to data_parallel {replicas} x {key.partition('.')[2]} {factor} "
        f"= {unit} ({total} % {unit} = {total % unit}).",
        tries=[
            *({key: size} for size in nearby(factor, divisors(total // replicas)) if total % replicas == 0),
            *({TOTAL: number} for number in multiples_near(total, unit)),
            *({TOTAL: number} for number in multiples_near(total, unit * stages)),
            {COUNT: None},
            *({TOTAL: number, COUNT: None} for number in multiples_near(total, unit * stages)),
        ],
    )  # fmt: skip


def batch_agrees(recipe: Recipe) -> Iterator[Finding]:
    """Where all three are stated, global_batch_size = data_parallel x micro_batch_size x micro_batch_num."""
    train, replicas, count = recipe.train, derive.degree(recipe, "dp"), recipe.parallel.micro_batch_num
    if train is None or replicas is None or count is None:
        return
    total, micro = train.global_batch_size, train.micro_batch_size
    if total is None or micro is None or total % (replicas * micro) or total == replicas * micro * count:
        return
    yield Finding(
        key=COUNT,
        message=f"data_parallel {replicas} x micro_batch_size {micro} x micro_batch_num {count} = "
        f"{replicas * micro * count}, "
        f"but global_batch_size is {total}. {total} / ({replicas} x {micro}) = {total // (replicas * micro)}; leave "
        "micro_batch_num out and it is derived.",
        tries=[{COUNT: total // (replicas * micro)}, {COUNT: None}, {TOTAL: replicas * micro * count}],
    )


RULES = (batch_is_stated, batch_comes_out, batch_agrees)
