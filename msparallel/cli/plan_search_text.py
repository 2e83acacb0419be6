"""What a search found, as a person reads it at the terminal.

In: a Plan, the Estimate of its recipe as it is, a Search. Out: text: how large the space is, the best strategies and
what each costs against the first, what to type, what was rejected and what would let it in.

>>> print(search_text(plan, as_it_is, found, changes=[], options={}, width=100))
"""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msparallel.cli.columns import command_lines, table
from msparallel.cli.plan_text import joined, seconds_text
from msparallel.errors import printable
from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate
from msparallel.planner.memory import GIB
from msparallel.planner.placement import placement
from msparallel.planner.search.changes import Change
from msparallel.planner.search.overrides import overrides_of, typed_overrides
from msparallel.planner.search.rejected import Rejection, rejections
from msparallel.planner.search.search import Search
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.override import format_override

MOST_FAMILIES, MOST_REFUSALS = 8, 8


def search_text(
    plan: Plan,
    as_it_is: Estimate,
    found: Search,
    changes: Sequence[Change],
    *,
    options: Mapping[str, str | None],
    width: int,
) -> str:
    """The whole answer.

    Args:
        changes: what would help where nothing fits.
        options: of the machine that no override says, as they were typed; None where they were not.
    """
    rejected = rejections(found)
    sections = [[" ".join([plan.recipe.path, *plan.recipe.overrides])], _counts(found)]
    if found.candidates:
        sections += [_ranking(found, width), _trade_offs(found), _where(found), _rejected(rejected)]
        words = _to_type(plan, found, options)
        last = "To look at the first closely:" if words else "The recipe is the first already."
        sections.append([*_as_it_is(as_it_is, found), last])
        return printable("\n".join([joined(sections, width), *(command_lines(words, width) if words else [])]))
    return joined([*sections, _rejected(rejected), _nothing(found, changes)], width)


def mending_lines(settings: tuple[dict[str, Any], Estimate] | None, changes: Sequence[Change]) -> list[str]:
    """What would make a recipe fit that does not: other settings on its mesh, or more."""
    if settings is not None:
        typed = " ".join(shlex.quote(format_override(key, value)) for key, value in settings[0].items())
        found = settings[1]
        high, step = f"{found.fullest.high_bytes / GIB:.1f} GiB at the high end", seconds_text(found.time.step_s)
        return [f"It fits with {typed}: {high}, {step} a step."]
    return ["No settings make it fit on this mesh (--search looks at others).", *_change_lines(changes)]


def _counts(found: Search) -> list[str]:
    space = found.space
    nodes = space.devices // space.devices_per_node
    limits = (
        f"micro-batches up to {space.most_micro_batch}, up to {space.most_virtual_stages} groups of layers a stage, "
        f"cp up to {space.most_context_parallel}"
    )
    return [
        f"Search: {space.devices} devices ({nodes} x {space.devices_per_node}, {found.hardware.chip}), global batch "
        f"{space.global_batch_size}, {found.work.seq_length} tokens",
        f"  {found.combinations:,} combinations of pp, dp, cp, tp, ep, stage split, interleaving, optimizer shard, "
        f"sequence parallel, recompute and micro-batch ({limits})",
        f"  {found.legal:,} are legal, {found.fitting:,} fit, {found.timed:,} had to be timed to know the best",
    ]


def _ranking(found: Search, width: int) -> list[str]:
    rows = [("", "mesh", "micro", "recompute", "shard", "GiB", "MFU", "tokens/s", "step", "more")]
    for place, best in enumerate(found.candidates, 1):
        work = best.work
        rows.append((
            str(place), str(work.mesh).rpartition(" ")[0], str(work.micro_batch_size), work.recompute,
            work.optimizer_shard, f"{best.fullest.high_bytes / GIB:.1f}", f"{best.mfu:.1%}",
            f"{best.tokens_per_s_per_device:,.0f}", seconds_text(best.time.step_s), more_text(best),
        ))  # fmt: skip
    lines = table(rows, width, right={0, 2, 5, 6, 7, 8})
    return ["The best setting of each of the best meshes", *lines, "  GiB: the fullest stage, at the high end of its "
            "band; tokens/s: of a device; sp: sequence parallel; split: layers of each stage"]  # fmt: skip


def more_text(best: Estimate) -> str:
    """Settings that few strategies have."""
    work = best.work
    told = ["sp"] if work.sequence_parallel else []
    told += [f"ep{work.expert_parallel}"] if work.expert_parallel > 1 else []
    told += [f"interleave {work.virtual_stages}"] if work.virtual_stages > 1 else []
    told += [work.context_parallel_algo] if work.mesh.cp > 1 else []
    if len(set(work.stage_layers)) > 1:
        runs = [(layers, len(list(same))) for layers, same in itertools.groupby(work.stage_layers)]
        told.append("split " + ",".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in runs))
    return " ".join(told) or "-"


def _trade_offs(found: Search) -> list[str]:
    """Each against the first."""
    best, lines = found.candidates[0], []
    for place, other in enumerate(found.candidates[1:], 2):
        slower = other.time.step_s / best.time.step_s - 1
        told = [f"{slower:.1%} slower", _signed((other.fullest.high_bytes - best.fullest.high_bytes) / GIB, "GiB", 1),
                _signed((other.bubble - best.bubble) * 100, "points of bubble", 1)]  # fmt: skip
        for axis in other.time.exposed_s:
            apart = other.time.exposed_s[axis] - best.time.exposed_s.get(axis, 0.0)
            told.append(_signed(apart, f"s for {axis}", 2))
        told.append(_signed(other.time.recompute_s - best.time.recompute_s, "s recomputed", 2))
        lines.append(f"  {place}: " + ", ".join(part for part in told if part))
    return ["Against the first", *lines] if lines else []


def _signed(value: float, unit: str, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    return f"{text} {unit}" if float(text) else ""


def _where(found: Search) -> list[str]:
    """Which axes cross servers."""
    lines = []
    for place, best in enumerate(found.candidates, 1):
        work = best.work
        axes = placement(work.mesh, work.devices_per_node, found.hardware, work.expert_parallel)
        across = [axis.name for axis in axes if axis.crosses]
        inside = [axis.name for axis in axes if not axis.crosses]
        told = [f"{' and '.join(inside)} inside a server"] if inside else []
        told += [f"{' and '.join(across)} across servers"] if across else []
        lines.append(f"  {place}: {', '.join(told) or 'one device'}")
    return ["Placement", *lines]


def _as_it_is(as_it_is: Estimate, found: Search) -> list[str]:
    """The recipe beside the best, where both are for the same devices and batch."""
    space, work, best = found.space, as_it_is.work, found.candidates[0]
    if work.mesh.size != space.devices or work.global_batch_size != space.global_batch_size:
        return []
    told = f"The recipe as it is: {work.mesh}, {seconds_text(as_it_is.time.step_s)}"
    if not as_it_is.fits:
        return [f"{told}, does not fit."]
    return [f"{told}, {as_it_is.time.step_s / best.time.step_s - 1:.1%} slower than the first."]


def _to_type(plan: Plan, found: Search, options: Mapping[str, str | None]) -> list[str]:
    """Words of the command that plans the first; none where the recipe is the first."""
    work = found.candidates[0].work
    if not overrides_of(plan, work):
        return []
    words = ["msparallel", "plan", called(plan), *typed_overrides(plan, work)]
    for option, typed in options.items():
        words += [] if typed is None else [option, typed]
    return words


def called(plan: Plan) -> str:
    """The recipe as it is typed: a shipped one by its name, another by its path."""
    recipe = plan.recipe
    shipped = shipped_recipes().get(recipe.name)
    return recipe.name if shipped and shipped.resolve() == Path(recipe.path).resolve() else recipe.path


def _nothing(found: Search, changes: Sequence[Change]) -> list[str]:
    why = "Nothing fits" if found.legal else "No strategy is legal"
    return [f"{why} on {found.space.devices} devices.", *_change_lines(changes)]


def _change_lines(changes: Sequence[Change]) -> list[str]:
    lines = []
    for change in changes:
        work = change.work
        lines.append(f"  {change.told}: then {work.mesh} fits, recompute {work.recompute}, optimizer shard "
                     f"{work.optimizer_shard}, micro-batch {work.micro_batch_size}")  # fmt: skip
    return lines or ["  No other batch, number of devices up to 4096 or shorter sequence alone helps."]


def _rejected(rejected: Sequence[Rejection]) -> list[str]:
    room = [one for one in rejected if one.rule == "memory"]
    refused = [one for one in rejected if one.rule != "memory"]
    lines = []
    if room:
        lines.append("No room")
        lines += [f"  {one.what} ({one.count:,}): {one.reason}{_change(one)}" for one in room[:MOST_FAMILIES]]
        lines += [f"  ... {len(room) - MOST_FAMILIES} more families: --json has them all"] * (len(room) > MOST_FAMILIES)
    if refused:
        lines.append("Against the rules")
        by_rule: dict[str, list[Rejection]] = {}
        for one in refused:
            by_rule.setdefault(one.rule, []).append(one)
        for alike in list(by_rule.values())[:MOST_REFUSALS]:
            first, count = alike[0], sum(one.count for one in alike)
            more = f", {count} meshes by this rule" if count > 1 else ""
            lines.append(f"  {first.what}{more}: {first.reason}{_change(first)}")
    return lines


def _change(rejection: Rejection) -> str:
    return f". Would do: {rejection.change}" if rejection.change else ""
