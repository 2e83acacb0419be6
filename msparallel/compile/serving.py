"""A dry run of serving: the graphs that read prompts and those that make tokens, compiled for the ranks that matter.

In: a Plan of a recipe that serves, which graphs. Out: `ServingDryRun`: a DryRun for every graph, whose ranks hold the
same weights and caches. Pure but for the processes that compile.

>>> found = dry_run_serving(plan, served_form(plan), [0])
>>> [graph.name for graph in found.graphs], found.runs[1].ranks[0].cache_bytes
(['prefill', 'decode'], 4851761152)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from msparallel.compile import depth
from msparallel.compile.dryrun import Depth, DryRun, Job, Variant, joined_reports, read_rank
from msparallel.compile.memory import compile_memory_bytes
from msparallel.compile.rank_report import RankReport
from msparallel.compile.ranks import TIME_LIMIT_S, compile_ranks, temporary_folder
from msparallel.compile.request import Request
from msparallel.errors import UserError
from msparallel.model.cache_blocks import BLOCK_SIZE, SERVED_DTYPE, Blocks
from msparallel.plan import Plan
from msparallel.serve.buckets import Buckets, paged_buckets


@dataclass(frozen=True, kw_only=True)
class ServedGraph:
    """Attributes:
    name: what it is for: a piece of a prompt, or a token more for every request.
    rows: requests. new: tokens of each that are new.
    """

    name: Literal["prefill", "decode"]
    rows: int
    new: int

    @property
    def words(self) -> str:
        """For a person."""
        if self.name == "prefill":
            return f"a piece of a prompt, {self.new} tokens"
        return f"a token for {self.rows} request{'s' * (self.rows > 1)}"


@dataclass(frozen=True, kw_only=True)
class ServedForm:
    """Attributes:
    dtype: of weights, cache and products.
    block_size: tokens of a block.
    """

    graphs: tuple[ServedGraph, ...]
    dtype: str = SERVED_DTYPE
    block_size: int = BLOCK_SIZE

    def blocks(self, plan: Plan) -> Blocks:
        """Of a device's cache."""
        serve = plan.recipe.serve
        assert serve is not None, "only recipes that serve have a cache"
        return Blocks(slots=serve.max_concurrency, length=serve.max_length, block_size=self.block_size)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> ServedForm:
        return cls(**{**values, "graphs": tuple(ServedGraph(**graph) for graph in values["graphs"])})


def graphs_of(sizes: Buckets) -> tuple[ServedGraph, ...]:
    """All that a server compiles."""
    return (
        *(ServedGraph(name="prefill", rows=1, new=chunk) for chunk in sizes.chunks),
        *(ServedGraph(name="decode", rows=rows, new=1) for rows in sizes.rows),
    )


def served_form(plan: Plan, *, chunk: int | None = None, rows: int | None = None) -> ServedForm:
    """The largest graphs of a recipe: its longest piece of a prompt, its largest batch.

    Args:
        chunk, rows: other sizes, of those that the server compiles.

    Raises:
        UserError: a size that it does not compile.
    """
    serve = plan.recipe.serve
    assert serve is not None, "only recipes that serve have served graphs"
    sizes = paged_buckets(serve.max_concurrency, serve.max_length)
    for option, wanted, known in (("--chunk", chunk, sizes.chunks), ("--batch", rows, sizes.rows)):
        if wanted is not None and wanted not in known:
            told = ", ".join(map(str, known))
            raise UserError(f"{option} {wanted}: this recipe's server compiles {told}.")
    return ServedForm(
        graphs=(
            ServedGraph(name="prefill", rows=1, new=chunk or sizes.chunks[-1]),
            ServedGraph(name="decode", rows=rows or sizes.rows[-1], new=1),
        )
    )


@dataclass(frozen=True, kw_only=True)
class ServingDryRun:
    """Attributes:
    plan: of the recipe.
    runs: one for each graph of the form, with the same ranks.
    """

    plan: Plan
    form: ServedForm
    runs: tuple[DryRun, ...]

    @property
    def graphs(self) -> tuple[ServedGraph, ...]:
        return self.form.graphs

    @property
    def token_step(self) -> DryRun:
        """The graph that runs most."""
        return self.runs[-1]

    def to_json(self) -> dict[str, Any]:
        """The document of `dryrun --json`: a rank's collectives are those of a token step; `graphs` has all."""
        reports = zip(*(run.ranks for run in self.runs), strict=True)
        blocks = self.form.blocks(self.plan)
        return self.token_step.to_json() | {
            "serving": {
                "dtype": self.form.dtype, "block_size": blocks.block_size, "blocks": blocks.count,
                "graphs": [asdict(graph) for graph in self.graphs],
            },
            "ranks": [self._rank_json(each) for each in reports],
        }  # fmt: skip

    def _rank_json(self, reports: tuple[RankReport, ...]) -> dict[str, Any]:
        told = [report.to_json() for report in reports]
        kept = ("collectives", "operators", "peak_live_bytes", "peak_tensors", "peak_tensor_count")
        return told[-1] | {
            "peak_live_bytes": max(report.peak.bytes for report in reports),
            "graphs": [
                {**asdict(graph), **{key: one[key] for key in kept}}
                for graph, one in zip(self.graphs, told, strict=True)
            ],
        }


def serving_job(plan: Plan, form: ServedForm, how_deep: Depth = "auto") -> Job:
    """What there is to compile of a recipe that serves.

    Raises:
        UserError: representative layers of a model that has no more than they are.
    """
    layers = plan.stage_layers
    shallow = depth.is_worth_it(layers) if how_deep == "auto" else how_deep == "representative"
    if shallow and min(layers) <= max(depth.LAYERS_OF_A_GROUP):
        raise UserError(
            f"--depth representative: {min(layers)} layers; it compiles {max(depth.LAYERS_OF_A_GROUP)} and needs more "
            "than that. Try: --depth full"
        )
    return Job(
        source=plan.recipe.path,
        overrides=plan.recipe.overrides,
        mesh=plan.mesh,
        devices_per_node=plan.devices_per_node,
        stage_layers=layers,
        variants=tuple(
            Variant(
                request=Request(
                    source=each.recipe.path,
                    kind="serving",
                    overrides=list(each.recipe.overrides),
                    world_size=plan.world_size,
                    serving=form.to_json(),
                ),
                stage_layers=each.stage_layers,
                memory_bytes=compile_memory_bytes(each),
            )
            for each in (depth.shallow_plans(plan) if shallow else (plan,))
        ),
        notes=(depth.note(layers),) if shallow else (),
    )


def dry_run_serving(
    plan: Plan,
    form: ServedForm,
    ranks: Sequence[int],
    *,
    how_deep: Depth = "auto",
    time_limit_s: float = TIME_LIMIT_S,
    progress: bool = True,
) -> ServingDryRun:
    """Compile ranks of a recipe that serves.

    Raises:
        UserError: a rank that is not there; and what `serving_job` and `compile_ranks` raise.
    """
    job = serving_job(plan, form, how_deep)
    found: dict[tuple[int, int], list[RankReport]] = {}
    chosen = job.check_ranks(ranks)
    with temporary_folder() as folder:
        variants = {
            str(folder / f"rank_{rank}_{number}"): (rank, variant)
            for rank in chosen for number, variant in enumerate(job.variants)
        }  # fmt: skip
        requests = [replace(variant.request, rank=rank, folder=place) for place, (rank, variant) in variants.items()]
        memory_bytes = max(variant.memory_bytes for variant in job.variants)
        for done in compile_ranks(requests, memory_bytes=memory_bytes, time_limit_s=time_limit_s, progress=progress):
            for number in range(len(form.graphs)):
                report = read_rank(job, done, variants[done.folder][1], graph=number)
                found.setdefault((number, done.rank), []).append(report)
    return ServingDryRun(
        plan=plan,
        form=form,
        runs=tuple(
            DryRun(
                source=job.source,
                overrides=job.overrides,
                mesh=job.mesh,
                devices_per_node=job.devices_per_node,
                ranks=tuple(_at_full_depth(job, found[number, rank]) for rank in chosen),
                notes=job.notes,
            )
            for number in range(len(form.graphs))
        ),
    )


def _at_full_depth(job: Job, reports: list[RankReport]) -> RankReport:
    """The report with all layers. Served graphs keep nothing of a layer but what is in the cache, so what is alive at
    the peak does not grow with them; the first layer alone may differ."""
    joined, peak = joined_reports(job, reports), max(report.peak.bytes for report in reports)
    return replace(joined, peak=replace(joined.peak, bytes=peak))
