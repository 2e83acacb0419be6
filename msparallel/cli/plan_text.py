"""A plan as a person reads it at the terminal.

In: a Plan and its Estimate. Out: text without colours: whether it fits, the table of stages with bars, which ranks lie
on which server, the pipeline as a picture, where the time goes.

>>> print(plan_text(plan, estimate(workload_of(plan), plan.hardware), width=100))
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

from msparallel.cli.columns import fit, table
from msparallel.errors import printable
from msparallel.mesh import AXES
from msparallel.plan import Plan
from msparallel.planner.estimate import Estimate
from msparallel.planner.memory import GIB, StageMemory
from msparallel.planner.pipeline import Task, pipeline_tasks
from msparallel.planner.placement import placement
from msparallel.planner.reasons import reasons

PARTS = (("w", "weights"), ("g", "gradients"), ("o", "optimizer"), ("a", "activations"), ("x", "other"))
"""Letter in a bar -> term."""
BAND, FREE, LIMIT = "?", ".", "|"
FORWARD, BACKWARD, IDLE = string.digits + string.ascii_lowercase, string.ascii_uppercase, "."
"""Signs of micro-batches 0, 1, ... in the picture, again from the first after the last."""
MOST_STAGES, MOST_SERVERS, MOST_MICRO_BATCHES, MOST_REASONS = 16, 8, 8, 3


def plan_text(plan: Plan, found: Estimate, changes: Iterable[str] = (), *, width: int) -> str:
    """The whole answer.

    Args:
        changes: lines that say what would make it fit.
        width: of a line.
    """
    parts = [
        head_lines(plan, found),
        memory_lines(found, width),
        device_lines(found),
        pipeline_lines(found, width),
        time_lines(found, width),
        reason_lines(found),
        [*verdict_lines(found), *changes],
    ]
    return joined(parts, width)


def joined(sections: Iterable[Iterable[str]], width: int) -> str:
    """Sections with an empty line between them; empty ones are left out."""
    lines = [line for section in map(list, sections) if section for line in (*section, "")][:-1]
    return printable("\n".join(part for line in lines for part in fit(line, width)))


def head_lines(plan: Plan, found: Estimate) -> list[str]:
    """What is planned."""
    work, hardware = found.work, found.hardware
    nodes = work.mesh.size // work.devices_per_node
    machines = f"{nodes} node{'s' * (nodes > 1)} x {work.devices_per_node} ({hardware.chip})"
    batch = (
        f"global batch {work.global_batch_size} = {work.mesh.dp} x {work.micro_batch_size} x {work.micro_batch_num} "
        f"micro-batch{'es' * (work.micro_batch_num > 1)} of {work.seq_length} tokens"
    )
    lines = [" ".join([plan.recipe.path, *plan.recipe.overrides]), f"{work.mesh} on {machines}; {batch}",
             settings_text(found), *plan.recipe.notes]  # fmt: skip
    if plan.recipe.parallel.mode == "auto_parallel":
        lines.append("MindSpore's search chooses strategies when it compiles; planned are the blocks' own.")
    return lines


def settings_text(found: Estimate) -> str:
    """The settings that trade memory for time."""
    work = found.work
    told = [work.dtype, f"recompute {work.recompute}", f"optimizer shard {work.optimizer_shard}"]
    told += ["sequence parallel"] if work.sequence_parallel else []
    told += [f"{work.virtual_stages} groups of layers a stage"] if work.virtual_stages > 1 else []
    told += [f"{work.schedule}"] if work.mesh.pp > 1 else []
    told += [f"context parallel by {work.context_parallel_algo}"] if work.mesh.cp > 1 else []
    told += [f"experts over {work.expert_parallel}"] if work.expert_parallel > 1 else []
    return ", ".join(told)


def memory_lines(found: Estimate, width: int) -> list[str]:
    """The table of stages, with a bar for each."""
    names = [name for _, name in PARTS]
    rows = [("stage", "layers", *names, "total", "low - high")]
    shown = found.memory if len(found.memory) <= MOST_STAGES else found.memory[: MOST_STAGES // 2]
    rows += [_memory_row(stage) for stage in shown]
    lines = table(rows, width, right=range(9))
    room, longest = min(72, width - 10), found.fullest.high_bytes
    bars = [f"  {stage.stage:>5}  {bar(_letters(stage), stage.high_bytes, found.limit_bytes, room, longest)}"
            for stage in shown]  # fmt: skip
    rest = len(found.memory) - len(shown)
    most = f"stage {found.fullest.stage}: {gib_text(found.fullest.high_bytes)} at the high end"
    told = f"  ... {rest} more stages; the fullest is {most}"
    more = [told] if rest else []
    letters = ", ".join(f"{letter} {name}" for letter, name in PARTS)
    return [
        "Memory of a device, GiB",
        *lines,
        *more,
        "",
        *bars,
        f"  {letters}, {BAND} to the high end of the band; {LIMIT} {limit_text(found)}",
    ]


def _memory_row(stage: StageMemory) -> tuple[str, ...]:
    terms = [gib_text(getattr(stage, f"{name}_bytes")) for _, name in PARTS]
    band = f"{gib_text(stage.low_bytes)} - {gib_text(stage.high_bytes)}"
    return (str(stage.stage), str(stage.layers), *terms, gib_text(stage.total_bytes), band)


def limit_text(found: Estimate) -> str:
    """What a job may use of a device."""
    return f"{found.limit_bytes / GIB:.4g} GiB"


def gib_text(count: float) -> str:
    """Bytes as GiB, without the unit."""
    return f"{count / GIB:.2f}"


def _letters(stage: StageMemory) -> list[tuple[str, int]]:
    return [(letter, getattr(stage, f"{name}_bytes")) for letter, name in PARTS]


def bar(parts: Iterable[tuple[str, int]], high: int, limit: int, room: int, longest: int) -> str:
    """Letters in proportion to bytes; the band's high end and the device's memory marked.

    Args:
        parts: letter, bytes.
        high, limit: end of the band, memory of the device; bytes.
        room: characters for the device's memory, or for the `longest` bar's bytes if those are more.
    """
    end, cells, total = max(limit, longest), "", 0
    for letter, count in parts:
        total += count
        cells += letter * (round(total / end * room) - len(cells))
    cells += BAND * (round(high / end * room) - len(cells))
    mark = min(room, round(limit / end * room))
    return cells[:mark] + FREE * (mark - len(cells)) + LIMIT + cells[mark:]


def device_lines(found: Estimate) -> list[str]:
    """Ranks and places of every server, and what each axis goes over."""
    work, mesh, per_node = found.work, found.work.mesh, found.work.devices_per_node
    if mesh.size == 1:
        return []
    servers = mesh.size // per_node
    shown = list(range(servers)) if servers <= MOST_SERVERS else [*range(MOST_SERVERS - 2), servers - 1]
    lines = ["Devices"]
    for server in shown:
        if server and server - 1 not in shown:
            lines.append(f"  ... {servers - len(shown)} more servers")
        lines.append(f"  server {server:<3} {_server(found, server)}")
    for axis in placement(mesh, per_node, found.hardware, work.expert_parallel):
        ranks = [place * axis.stride for place in range(min(axis.degree, 4))]
        told = ", ".join(map(str, ranks)) + (f" ... {(axis.degree - 1) * axis.stride}" if axis.degree > 4 else "")
        where = "crosses servers" if axis.crosses else "inside a server"
        lines.append(f"  {axis.name} {axis.degree:<4} ranks {told}: {where}, {' and '.join(axis.links)}")
    return lines


def _server(found: Estimate, server: int) -> str:
    """Ranks of a server; those that differ on the innermost axis alone in one bracket."""
    mesh, per_node = found.work.mesh, found.work.devices_per_node
    inner = next((axis for axis in reversed(AXES) if getattr(mesh, axis) > 1), "tp")
    blocks: dict[str, list[int]] = {}
    for rank in range(server * per_node, (server + 1) * per_node):
        place = mesh.coordinates(rank)
        name = " ".join(f"{axis}{place[axis]}" for axis in AXES if axis != inner and getattr(mesh, axis) > 1)
        blocks.setdefault(name, []).append(rank)
    told = [f"{name} {inner} [{' '.join(map(str, ranks))}]".strip() for name, ranks in blocks.items()]
    return "  ".join(told)


def shown_tasks(found: Estimate) -> tuple[str, list[Task]]:
    """What a picture of the pipeline shows, and its title: a step of few micro-batches."""
    work = found.work
    enough = MOST_MICRO_BATCHES if work.mesh.pp <= MOST_MICRO_BATCHES else work.mesh.pp
    count = min(work.micro_batch_num, enough)
    if work.virtual_stages > 1:
        count -= count % work.mesh.pp  # as many as a schedule is published for
    tasks = pipeline_tasks(work, found.hardware, count)
    end_s = max(task.end_s for task in tasks)
    busy_s = max(sum(t.end_s - t.start_s for t in tasks if t.stage == stage) for stage in range(work.mesh.pp))
    whole = count == work.micro_batch_num
    title = f"Pipeline, {'the' if whole else 'as if there were'} {count} micro-batches: {1 - busy_s / end_s:.0%} bubble"
    return title if whole else f"{title}, {found.bubble:.0%} with {work.micro_batch_num}", tasks


def pipeline_lines(found: Estimate, width: int) -> list[str]:
    """A row for each stage: what it computes when."""
    pp = found.work.mesh.pp
    if pp == 1:
        return []
    title, tasks = shown_tasks(found)
    end_s, cells = max(task.end_s for task in tasks), width - 14
    stages = range(pp) if pp <= MOST_STAGES else [*range(MOST_STAGES // 2), pp - 1]
    lines = [title]
    for stage in stages:
        if stage and stage - 1 not in stages:
            lines.append(f"  ... {pp - len(stages)} more stages")
        lines.append(f"  stage {stage:<4}  {_row([t for t in tasks if t.stage == stage], cells, end_s)}")
    legend = f"  0 1 2 ... forward of that micro-batch, A B C ... backward of micro-batch 0 1 2 ..., {IDLE} idle"
    return [*lines, legend]


def _row(tasks: Sequence[Task], cells: int, end_s: float) -> str:
    """In each cell what is computed at its middle."""
    text = ""
    for cell in range(cells):
        at = (cell + 0.5) / cells * end_s
        sign = IDLE
        for task in tasks:
            if task.start_s <= at < task.end_s:
                signs = BACKWARD if task.backward else FORWARD
                sign = signs[task.micro % len(signs)]
                break
        text += sign
    return text


def time_terms(found: Estimate) -> list[tuple[str, float]]:
    """Parts of the step by name, in the order in which a page stacks them; together they are the step."""
    time = found.time
    terms = [(name, seconds) for name, seconds in time.compute_parts_s.items()]
    terms.append(("recomputed", time.recompute_s))
    terms += [(f"waits for {axis}", seconds) for axis, seconds in time.exposed_s.items()]
    return [*terms, ("bubble", time.bubble_s), ("optimizer", time.optimizer_s)]


def time_lines(found: Estimate, width: int) -> list[str]:
    """Where the step goes, as bars."""
    time = found.time
    terms = [(name, seconds) for name, seconds in time_terms(found) if seconds > 0]
    longest, room = max(seconds for _, seconds in terms), min(40, width - 42)
    rows = [f"  {name:<14} {seconds_text(seconds):>9}  {seconds / time.step_s:>6.1%}  "
            f"{'#' * round(seconds / longest * room)}".rstrip() for name, seconds in terms]  # fmt: skip
    return [f"A step: {seconds_text(time.step_s)}, an estimate from the numbers of {found.hardware.name}", *rows,
            f"  {found.tokens_per_s_per_device:,.0f} tokens/s on each device, "
            f"{found.tokens_per_s_per_device * found.work.mesh.size:,.0f} on all; MFU {found.mfu:.1%}, "
            f"bubble {found.bubble:.1%}"]  # fmt: skip


def reason_lines(found: Estimate) -> list[str]:
    """The largest reasons why it is not faster."""
    largest = reasons(found.work, found.time)[:MOST_REASONS]
    rows = [f"  {place}. {reason.share:.0%} {reason.name}. {reason.hint}" for place, reason in enumerate(largest, 1)]
    return ["Why it is not faster", *rows] if rows else []


def seconds_text(seconds: float) -> str:
    """With a unit that fits.

    >>> seconds_text(9.434), seconds_text(0.01234)
    ('9.43 s', '12.3 ms')
    """
    if seconds >= 1:
        return f"{seconds:,.2f} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1e3:.3g} ms"


def verdict_lines(found: Estimate) -> list[str]:
    """Whether it fits."""
    fullest = found.fullest
    place = f"stage {fullest.stage}" if len(found.memory) > 1 else "a device"
    numbers = (
        f"{place} needs {gib_text(fullest.total_bytes)} GiB, {gib_text(fullest.high_bytes)} at the high end, of "
        f"{limit_text(found)}"
    )
    return [f"Fits: {numbers}."] if found.fits else [f"Does NOT fit: {numbers}."]
