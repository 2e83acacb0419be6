"""What each refusal of the engine means: the rule with its numbers, the key to look at and changes that may mend it.

In: the match of MindSpore's words, the Refusal they stand in, and the job's Terms. Out: an `Explanation`. Which words
belong to which function is `translate.TABLE`; whether a change works is checked there against all rules.

>>> uneven_cut(found, refusal, terms).message
'layers.mlp.gate_proj.matmul (MatMul): ffn_size 130 is cut over model_parallel 4, and 130 % 4 = 2.'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.compile.refusal import Refusal
from msparallel.compile.terms import Terms
from msparallel.interop.mindformers import ENGINE_MODES
from msparallel.recipe.rules.finding import divisors, multiples_near, nearby

Tries = Iterable[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Attributes:
    name: of `terms.KEYS`, or a dotted key of the file's own: what to look at first.
    message: the rule with its numbers.
    tries: changes that may mend it, nearest first.
    """

    name: str
    message: str
    tries: Tries = ()


Explain = Callable[[re.Match[str], Refusal, Terms], Explanation]


# Which degree cuts what: for each size the axes that may, the likeliest first.
_CUTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "num_heads": (("tp",), ("cp", "tp"), ("cp",)),
    "num_kv_heads": (("tp",), ("cp", "tp"), ("cp",)),
    "ffn_size": (("tp",),),
    "expert_ffn_size": (("tp",),),
    "vocab_size": (("tp",),),
    "hidden_size": (("tp",),),
    "num_experts": (("ep",),),
    "seq_length": (("cp",), ("dp", "cp"), ("dp", "cp", "tp"), ("cp", "tp"), ("dp",), ("tp",)),
    "micro_batch_size": (("dp",),),
}
_RESIZABLE = ("ffn_size", "expert_ffn_size", "seq_length", "num_experts")
_WITHOUT_SEARCH: Mapping[str, Any] = {"mode": "semi_auto_parallel", "search_mode": None}
_POWERS = [1 << power for power in range(13)]
_ANY_AXES = (("tp",), ("dp",), ("cp",), ("ep",), ("cp", "tp"), ("dp", "cp"), ("dp", "cp", "tp"))


def _pieces(terms: Terms, axes: tuple[str, ...]) -> int:
    return math.prod(terms.degrees[axis] for axis in axes)


def _cutting(terms: Terms, number: int, pieces: int, prefer: str) -> tuple[str, str, tuple[str, ...]] | None:
    """(size's name, its arithmetic, axes) that a cut of a dim of `number` into `pieces` is about."""
    for name, told in sorted(terms.names_of(number), key=lambda pair: pair[0] != prefer):
        for axes in _CUTS.get(name, ()):
            if _pieces(terms, axes) == pieces:
                return name, told, axes
    return None


def _by_axes(terms: Terms, pieces: int) -> tuple[str, ...]:
    return next((axes for axes in _ANY_AXES if _pieces(terms, axes) == pieces), ())


def uneven_cut(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A dim does not come out in whole pieces."""
    number, pieces = int(found["number"]), int(found["pieces"])
    cut = _cutting(terms, number, pieces, prefer="num_kv_heads" if "kv_num_heads" in found[0] else "")
    axes = cut[2] if cut else _by_axes(terms, pieces)
    product = " x ".join(terms.word(axis) for axis in axes if terms.degrees[axis] > 1)
    message = f"{refusal.where}: " if refusal.where else ""
    message += f"{cut[1] if cut else f'a dim of {number}'} is cut "
    message += f"over {product}" if product else f"into {pieces} pieces"
    message += f", and {number} % {pieces} = {number % pieces}."
    if not axes:
        return Explanation(name="mode", message=message)
    axis = next((axis for axis in axes[::-1] if terms.degrees[axis] > 1), axes[-1])
    rest = pieces // terms.degrees[axis]
    tries: list[Mapping[str, Any]] = []
    if number % rest == 0:
        both = [terms.sizes[key] for key in ("num_heads", "num_kv_heads") if axis == "tp" and key in terms.sizes]
        tries += terms.dividing(axis, number // rest, *both)
    if cut and cut[0] in _RESIZABLE:
        tries += [{cut[0]: size} for size in multiples_near(terms.sizes[cut[0]], pieces)]
    return Explanation(name=axis, message=message, tries=tries)


def more_pieces_than_devices(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A strategy's product is not a divisor of a stage's devices."""
    pieces, devices = int(found["pieces"]), int(found["devices"])
    name = "dataset_strategy" if "VirtualDataset" in refusal.operator else "mode"
    return Explanation(
        name=name,
        message=f"{refusal.where or 'An operator'} has the strategy {found['strategy']}: {pieces} pieces, but a "
        f"pipeline stage has {devices} devices ({_degrees(terms)}), and {devices} must be a multiple of the pieces.",
    )


def odd_number_of_pieces(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Dims are cut into a power of two of pieces where the devices are a power of two."""
    pieces = int(found["pieces"])
    axes = _by_axes(terms, pieces)
    return Explanation(
        name=axes[-1] if axes else "mode",
        message=f"{refusal.where or 'An operator'} is to be cut into {pieces} pieces (strategy {found['strategy']}); "
        f"on {terms.devices} devices MindSpore cuts into 1, 2, 4, 8 ... pieces.",
        tries=terms.degree_tries(axes[-1], nearby(pieces, _POWERS)) if axes else (),
    )


def strategy_of_another_shape(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A strategy has as many entries as the operator has inputs, and each as many numbers as the input has dims."""
    if "VirtualDataset" in refusal.operator or "dataset" in found.string:
        return Explanation(
            name="dataset_strategy",
            message="The data set's strategy needs one entry for each input of the network, each with one number for "
            "each dim of that input.",
        )
    return Explanation(
        name="mode",
        message=f"{refusal.where or 'An operator'} has a strategy that does not fit its inputs: one entry an input, "
        "one number a dim, and dims that are multiplied with each other cut alike. The model's code gives the "
        f"strategies, or {terms.key('strategy_load_file')}.",
    )


def whole_dimension(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Some operators need a dim whole on every device."""
    return Explanation(
        name="mode",
        message=f"{refusal.where or 'An operator'} works along a dim that MindSpore does not cut, but the strategy "
        "cuts it. The model's code must give this operator a strategy of 1 there.",
    )


def unsuitable_device_number(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The devices are 1, 2, 4 or a multiple of 8."""
    odd = [axis for axis in ("dp", "tp", "pp", "cp") if terms.degrees[axis] & (terms.degrees[axis] - 1)] or ["dp"]
    return Explanation(
        name=odd[0],
        message=f"{_degrees(terms)}: {terms.devices} devices. MindSpore's device_num is 1, 2, 4 or a multiple of 8.",
        tries=_powers_for(terms, odd[0]),
    )


def devices_over_stages(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The devices are a multiple of the stages."""
    devices, stages = int(found["devices"]), int(found["stages"])
    return Explanation(
        name="pp",
        message=f"{devices} devices cannot be shared out to {stages} stages ({devices} % {stages} = "
        f"{devices % stages}).",
        tries=({"pp": count} for count in nearby(stages, divisors(devices))),
    )


def device_number_of_the_launch(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """device_num is the number of processes that were started."""
    if terms.config and terms.config.mode not in ENGINE_MODES:
        return Explanation(
            name="mode",
            message=f"In mode {terms.config.mode} MindFormers sets every degree to 1, and its model then refuses a job "
            f"of {found['devices']} devices.",
            tries=[{"mode": 1}],
        )
    return Explanation(
        name="dp",
        message=f"The degrees ask for {found['stated']} devices ({_degrees(terms)}), but the job was started for "
        f"{found['devices']}.",
    )


def search_without_power_of_two(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """recursive_programming needs a power of two of devices."""
    return Explanation(
        name="search_mode",
        message=f"The search recursive_programming needs a power of two of devices, not {terms.devices} "
        f"({_degrees(terms)}).",
        tries=[{"search_mode": "sharding_propagation"}, *_powers_for(terms, "dp")],
    )


def search_found_nothing(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The search has no strategy for an operator."""
    if refusal.operator == "VirtualDataset":
        message = (
            f"sharding_propagation has no strategy for the batch, which is cut over {terms.word('dp')} of the "
            f"stage's {terms.devices // terms.degrees['pp']} devices: it does not repeat it over the others."
        )
        tries: Tries = [{"search_mode": "recursive_programming"}, _WITHOUT_SEARCH]
    else:
        message = f"MindSpore's search has no strategy for {refusal.where or 'an operator of the network'}."
        tries = [_WITHOUT_SEARCH]
    return Explanation(name=_search_key(terms), message=message, tries=tries)


def shapes_that_do_not_fit(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Two tensors that meet have shapes that fit: after a search they may have been cut differently."""
    where = f"{refusal.where or 'An operator'} gets the shapes {found['first']} and {found['second']}"
    if not searches(terms):
        return Explanation(
            name="mode",
            message=f"{where}, which do not fit. Sizes of the model contradict each other, or its code is wrong.",
        )
    message = f"{where}, which do not fit: the search cut one of them and not the other."
    if terms.recipe and terms.recipe.model.attention == "plain" and _search_mode(terms) != "sharding_propagation":
        return Explanation(name="attention", message=message, tries=[{"attention": "auto"}, _WITHOUT_SEARCH])
    return Explanation(name=_search_key(terms), message=message, tries=[_WITHOUT_SEARCH])


def mixed_types(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A product takes two tensors of one type."""
    return Explanation(
        name="dtype",
        message=f"{refusal.where or 'An operator'} gets {found['first']} and {found['second']}; both must have one "
        "type. The model's code casts, or a weight was left in another type.",
    )


def stage_without_layers(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Every stage has at least one layer."""
    stages, used = int(found["stages"]), int(found["used"])
    layers = terms.sizes.get("num_layers", 0)
    message = f"{stages} stages, but only {used} of them have layers; every stage needs at least one."
    if 0 < layers < stages:
        return Explanation(
            name="pp", message=f"{message} The network has {layers} layers.", tries=terms.dividing("pp", layers)
        )
    return Explanation(
        name="stage_layers", message=f"{message} The layers' stages follow from it, or from the model's code."
    )


def stages_backwards(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A layer's stage is never before the stage of the layer that feeds it."""
    return Explanation(
        name="stage_layers",
        message=f"A layer on stage {found['before']} feeds one on stage {found['after']}; stages must not go back.",
    )


def too_few_micro_batches(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A pipeline needs at least as many micro-batches as stages, and more than one."""
    stages, now = terms.degrees["pp"], terms.sizes.get("micro_batch_num")
    told = f" A step has {now}." if now else ""
    return Explanation(
        name="micro_batch_num",
        message=f"A pipeline of {stages} stages needs at least {max(2, stages)} micro-batches in a step.{told}",
        tries=[{"micro_batch_num": max(2, stages)}, *terms.degree_tries("pp", [1])],
    )


def batch_over_micro_batches(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A rank's rows of a step are a multiple of the micro-batches."""
    rows, count = int(found["rows"]), int(found["count"])
    return Explanation(
        name="micro_batch_num",
        message=f"{rows} rows of a step cannot be dealt out to {count} micro-batches ({rows} % {count} = "
        f"{rows % count}).",
        tries=({"micro_batch_num": number} for number in nearby(count, divisors(rows))),
    )


def shard_level_needs_shared_layers(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """optimizer_shard level2 and level3 compile where the network of a micro-batch is a shared graph (lazy_inline)."""
    return Explanation(
        name="optimizer_shard",
        message="MindSpore compiles the optimizer shard's level2 and level3 only where the micro-batches share one "
        "graph: with a pipeline, or where a step is one micro-batch"
        + (" (or with lazy_inline on the network's class)." if terms.config else "."),
        tries=[{"optimizer_shard": "level1"}],
    )


def interleave_needs_shared_layers(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """Interleaving needs lazy_inline."""
    return Explanation(
        name="virtual_stages",
        message="MindSpore interleaves a pipeline only where the micro-batches share one graph: the network's class "
        "must be marked with lazy_inline.",
        tries=[{"virtual_stages": 1}],
    )


def accumulation_is_missing(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A pipeline's training step adds up gradients."""
    return Explanation(
        name="pp",
        message=f"A pipeline ({terms.word('pp')}) needs a training step that accumulates gradients, with weights "
        "cloned under accu_grads; the step has none.",
    )


def shard_larger_than_devices(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The optimizer shard's size is at most the stage's devices."""
    size, copies = int(found["size"]), _pieces(terms, ("dp", "cp"))
    product = " x ".join(terms.word(axis) for axis in ("dp", "cp") if terms.degrees[axis] > 1) or "1"
    return Explanation(
        name="optimizer_shard_size",
        message=f"Weights cannot be cut over {size} of {found['devices']} devices; the size must divide the devices "
        f"that hold them alike, {product}.",
        tries=({"optimizer_shard_size": count} for count in nearby(size, divisors(copies)) if count > 1),
    )


def unreadable_strategies(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """A strategy file is one that MindSpore wrote."""
    absent = "not found" in found[0]
    return Explanation(
        name="strategy_load_file",
        message="The strategy file "
        + ("does not exist. " if absent else "holds no strategies that MindSpore can read. ")
        + "It must be one that MindSpore wrote for this network, and end in .json or .ckpt like that one.",
        tries=[{"strategy_load_file": None}],
    )


def no_scalar_loss(found: re.Match[str], refusal: Refusal, terms: Terms) -> Explanation:
    """The engine finds the loss where the network returns one tensor, the loss."""
    return Explanation(
        name="mode",
        message="The network gives something else than one loss, from which MindSpore cannot go back. Its construct "
        "must return the loss tensor.",
    )


def _degrees(terms: Terms) -> str:
    stated = [terms.word(axis) for axis in ("dp", "cp", "tp", "pp") if terms.degrees[axis] > 1]
    return " x ".join(stated) or "all degrees 1"


def result_of_search(terms: Terms) -> Explanation:
    """What a search found does not compile, for a reason in words that nobody explains."""
    return Explanation(
        name=_search_key(terms),
        message="MindSpore searched for strategies and does not compile what it found; msparallel has no explanation "
        "for its words. semi_auto_parallel takes the model's own strategies.",
        tries=[_WITHOUT_SEARCH],
    )


def searches(terms: Terms) -> bool:
    """Whether the job lets MindSpore search for strategies."""
    return (terms.recipe.parallel.mode if terms.recipe else terms.config and terms.config.mode) == "auto_parallel"


def _search_mode(terms: Terms) -> str | None:
    return terms.recipe.parallel.search_mode if terms.recipe else None


def _search_key(terms: Terms) -> str:
    """Where the file says that MindSpore searches."""
    return "search_mode" if _search_mode(terms) else "mode"


def _powers_for(terms: Terms, axis: str) -> Tries:
    """The degree set to powers of two, nearest first."""
    now = terms.degrees[axis]
    return terms.degree_tries(axis, (power for power in nearby(now, _POWERS) if power != now))
