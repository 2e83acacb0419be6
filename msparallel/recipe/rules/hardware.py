"""What the named hardware can do."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from msparallel.hardware import hardware_names
from msparallel.recipe import derive
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules.finding import Changes, Finding


def known_hardware(recipe: Recipe) -> Iterator[Finding]:
    """cluster.hardware names a profile."""
    name = recipe.cluster.hardware
    if name in hardware_names():
        return
    plain = name.lower().replace("-", "_").replace(" ", "_")
    terms = {"ascend": "atlas_800t_a2", "npu": "atlas_800t_a2", "910b": "atlas_800t_a2", "910c": "atlas_900_a3",
             "910": "atlas_800_a1", "910a": "atlas_800_a1", "a2": "atlas_800t_a2", "a3": "atlas_900_a3"}  # fmt: skip
    close = [terms[plain]] if plain in terms else get_close_matches(plain, hardware_names(), n=2, cutoff=0.5)
    told = f" Did you mean {close[0]}?" if close else ""
    yield Finding(
        key="cluster.hardware",
        message=f"There is no profile {name!r}.{told} Profiles are {', '.join(hardware_names())}.",
        tries=[{"cluster.hardware": other} for other in (*close, *hardware_names())],
    )


def dtype_on_hardware(recipe: Recipe) -> Iterator[Finding]:
    """train.dtype is one that the hardware multiplies in."""
    machine = derive.hardware(recipe)
    if machine is None or recipe.train is None or recipe.train.dtype in machine.dtypes:
        return
    nearest = [dtype for dtype in ("bfloat16", "float16", "float32") if dtype in machine.dtypes]
    tries: list[Changes] = []
    for dtype in nearest:
        scale: Changes = {} if dtype == "float16" else {"train.loss_scale": None}
        tries += [{"train.dtype": dtype}, {"train.dtype": dtype, **scale},
                  {"train.dtype": dtype, **scale, "model.attention": "plain"}]  # fmt: skip
    yield Finding(
        key="train.dtype",
        message=f"{machine.name} ({machine.chip}) trains in {', '.join(machine.dtypes)}, not in {recipe.train.dtype}.",
        tries=tries,
    )


def loss_scale_needs_float16(recipe: Recipe) -> Iterator[Finding]:
    """loss_scale belongs to float16: bfloat16 and float32 have the range of gradients."""
    if recipe.train is None or recipe.train.loss_scale is None or recipe.train.dtype == "float16":
        return
    yield Finding(
        key="train.loss_scale",
        message=f"Without effect: {recipe.train.dtype} has the range that small gradients need. loss_scale belongs "
        "to float16.",
        tries=[{"train.loss_scale": None}, {"train.dtype": "float16"}],
    )


def flash_needs_ascend(recipe: Recipe) -> Iterator[Finding]:
    """Flash attention is an Ascend kernel."""
    machine = derive.hardware(recipe)
    if machine is not None and machine.target == "CPU" and derive.attention(recipe) == "flash":
        yield Finding(
            key="model.attention",
            message="Flash attention is an Ascend kernel; this recipe's hardware is cpu. auto takes the plain "
            "form here.",
            tries=[{"model.attention": "auto"}, {"model.attention": "auto", "parallel.context_parallel_algo": None}],
        )


def flash_needs_half_precision(recipe: Recipe) -> Iterator[Finding]:
    """Flash attention computes in float16 or bfloat16."""
    machine = derive.hardware(recipe)
    if machine is None or machine.target == "CPU" or recipe.train is None:
        return
    if derive.attention(recipe) != "flash" or recipe.train.dtype != "float32":
        return
    half = [dtype for dtype in ("bfloat16", "float16") if dtype in machine.dtypes]
    yield Finding(
        key="train.dtype" if recipe.stated("train.dtype") else "model.attention",
        message="Flash attention (what attention auto means on Ascend) computes in float16 or bfloat16, but "
        "train.dtype is "
        "float32.",
        tries=[*({"train.dtype": dtype} for dtype in half), {"model.attention": "plain"}],
    )


RULES = (known_hardware, dtype_on_hardware, loss_scale_needs_float16, flash_needs_ascend, flash_needs_half_precision)
