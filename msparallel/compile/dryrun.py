"""A dry run: the ranks that matter, compiled and read.

In: a Job (of a recipe's Plan, or of a MindFormers YAML) and ranks. Out: `DryRun`, the reports of those ranks.

>>> job = recipe_job(plan)
>>> [report.weights_bytes for report in dry_run(job, job.stage_ranks()).ranks]
[1073741824, 1073741824]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from msparallel.compile import depth
from msparallel.compile.expand import UnreadableGraph
from msparallel.compile.memory import compile_memory_bytes
from msparallel.compile.rank_report import RankReport, read_report
from msparallel.compile.ranks import TIME_LIMIT_S, compile_ranks, temporary_folder
from msparallel.compile.request import STRATEGY_FILE, Request, read_result
from msparallel.compile.searched import Search
from msparallel.errors import RunError, UserError
from msparallel.mesh import AXES, Mesh
from msparallel.plan import DEFAULT_SEARCH_MODE, Plan

Depth = Literal["auto", "full", "representative"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to compile a job: with all layers, or with few.

    Attributes:
        request: without rank and folder.
        stage_layers: layers of each group, in the order a sample passes them.
        memory_bytes: that compiling one rank is expected to take.
    """

    request: Request
    stage_layers: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """What there is to compile.

    Attributes:
        source: recipe or MindFormers YAML, as the user named it.
        stage_layers: layers of each group at full depth.
        variants: one, or the two that full depth follows from.
        notes: what a reader of the result must know.
        by_hand: where MindSpore searches: the same job with the blocks' own strategies, or why there is none.
        how: where MindSpore searches: where the strategies are from, in words.
    """

    source: str
    overrides: tuple[str, ...]
    mesh: Mesh
    devices_per_node: int
    stage_layers: tuple[int, ...]
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    by_hand: Job | UserError | None = None
    how: str = ""

    def stage_ranks(self) -> list[int]:
        """The first rank of each pipeline stage: ranks of a stage are alike."""
        return [self.mesh.rank(pp=stage) for stage in range(self.mesh.pp)]

    def check_ranks(self, ranks: Sequence[int]) -> list[int]:
        """Ranks in order, each once. Raises UserError for one that the job does not have."""
        for rank in ranks:
            if not 0 <= rank < self.mesh.size:
                raise UserError(f"--rank {rank}: {self.mesh} has ranks 0 to {self.mesh.size - 1}.")
        return sorted(set(ranks))


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Attributes:
    source: recipe or MindFormers YAML, as the user named it.
    ranks: reports, in the order of ranks.
    notes: what a reader of the result must know.
    search: of the first rank, where MindSpore searched for strategies.
    strategies: of the first rank as the engine used them, in MindSpore's own format, where they were asked for.
    """

    source: str
    overrides: tuple[str, ...]
    mesh: Mesh
    devices_per_node: int
    ranks: tuple[RankReport, ...]
    notes: tuple[str, ...] = ()
    search: Search | None = None
    strategies: str | None = None

    @property
    def world_size(self) -> int:
        return self.mesh.size

    def to_json(self) -> dict[str, Any]:
        """The document of `dryrun --json`."""
        return {
            "source": self.source,
            "overrides": list(self.overrides),
            "world_size": self.world_size,
            "mesh": {axis: getattr(self.mesh, axis) for axis in AXES},
            "devices_per_node": self.devices_per_node,
            "notes": list(self.notes),
            "ranks": [report.to_json() for report in self.ranks],
            "searched": [operator.to_json() for operator in self.search.operators] if self.search else [],
            "search": self.search.to_json() if self.search else None,
        }


def recipe_job(plan: Plan, how_deep: Depth = "auto") -> Job:
    """The job of a recipe: its training step, or the graphs of one that only serves.

    Args:
        how_deep: `full` compiles every layer; `representative` compiles two and three layers of every group and infers
            the rest; `auto` does so where the model is deep.

    Raises:
        UserError: representative layers of a group that has no more than they are.
    """
    if plan.recipe.train is None:
        from msparallel.compile.serving import served_form, serving_job  # it builds on this module

        return serving_job(plan, served_form(plan), how_deep)
    check_side_files(plan)
    shallow = depth.is_worth_it(plan.stage_layers) if how_deep == "auto" else how_deep == "representative"
    if shallow and min(plan.stage_layers) <= max(depth.LAYERS_OF_A_GROUP):
        raise UserError(
            f"--depth representative: groups of {', '.join(map(str, plan.stage_layers))} layers; it compiles "
            f"{max(depth.LAYERS_OF_A_GROUP)} of each and needs more than that. Try: --depth full"
        )
    plans = depth.shallow_plans(plan) if shallow else (plan,)
    return Job(
        source=plan.recipe.path,
        overrides=plan.recipe.overrides,
        mesh=plan.mesh,
        devices_per_node=plan.devices_per_node,
        stage_layers=plan.stage_layers,
        variants=tuple(
            Variant(
                request=Request(
                    source=each.recipe.path, overrides=list(each.recipe.overrides), world_size=plan.world_size
                ),
                stage_layers=each.stage_layers,
                memory_bytes=compile_memory_bytes(each),
            )
            for each in plans
        ),
        notes=(depth.note(plan.stage_layers),) if shallow else (),
        by_hand=_by_hand(plan, how_deep) if plan.recipe.parallel.mode == "auto_parallel" else None,
        how=_how(plan) if plan.recipe.parallel.mode == "auto_parallel" else "",
    )


BY_HAND = {
    "parallel.mode": "semi_auto_parallel",
    "parallel.search_mode": "null",
    "parallel.strategy_load_file": "null",
    "parallel.strategy_save_file": "null",
}
"""What makes a recipe that searches one that takes the blocks' own strategies."""


def _by_hand(plan: Plan, how_deep: Depth) -> Job | UserError:
    try:
        return recipe_job(depth.replanned(plan, BY_HAND), how_deep)
    except UserError as error:
        return error


def _how(plan: Plan) -> str:
    parallel = plan.recipe.parallel
    searched = f"searched by {parallel.search_mode or DEFAULT_SEARCH_MODE}"
    return f"read from {parallel.strategy_load_file}, the rest {searched}" if parallel.strategy_load_file else searched


def check_side_files(plan: Plan) -> None:
    """Raise UserError where a file that the engine reads is not there."""
    path = plan.recipe.parallel.strategy_load_file
    if path is not None and not Path(path).is_file():
        problem = plan.recipe.problem(
            "strategy_file",
            "parallel.strategy_load_file",
            "The file does not exist. It is written by a dry run of the recipe that searches: "
            f"msparallel dryrun RECIPE --save-strategy {path}",
        )
        raise UserError(str(problem))


def dry_run(
    job: Job,
    ranks: Sequence[int],
    *,
    time_limit_s: float = TIME_LIMIT_S,
    progress: bool = True,
    save_strategy: bool = False,
) -> DryRun:
    """Compile ranks of a job; where MindSpore searches for strategies, the first of them once more with those by hand.

    Args:
        save_strategy: keep the strategies that the engine used.

    Raises:
        UserError: a rank that is not there, or strategies asked for of a job that has none; and what `compile_ranks`
            raises.
    """
    if save_strategy and job.by_hand is None and job.variants[0].request.kind == "recipe":
        raise UserError(NO_STRATEGIES)
    if save_strategy and len(job.variants) > 1:
        raise UserError("--save-strategy: the file names every layer, so all are compiled. Add --depth full")
    found: dict[int, list[RankReport]] = {}
    notes: dict[str, None] = {}
    with temporary_folder() as folder:
        variants = {
            str(folder / f"rank_{rank}_{number}"): (rank, variant)
            for rank in job.check_ranks(ranks)
            for number, variant in enumerate(job.variants)
        }
        requests = [
            replace(variant.request, rank=rank, folder=place, save_strategy=save_strategy)
            for place, (rank, variant) in variants.items()
        ]
        memory_bytes = max(variant.memory_bytes for variant in job.variants)
        for done in compile_ranks(requests, memory_bytes=memory_bytes, time_limit_s=time_limit_s, progress=progress):
            report = read_rank(job, done, variants[done.folder][1])
            found.setdefault(done.rank, []).append(report)
            notes |= dict.fromkeys(read_result(Path(done.folder)).notes)
        saved = _saved(Path(requests[0].folder)) if save_strategy else None
    reports = tuple(joined_reports(job, found[rank]) for rank in sorted(found))
    return DryRun(
        source=job.source,
        overrides=job.overrides,
        mesh=job.mesh,
        devices_per_node=job.devices_per_node,
        ranks=reports,
        notes=(*job.notes, *notes),
        search=_search(job, reports[0], time_limit_s, progress),
        strategies=saved,
    )


def _search(job: Job, chosen: RankReport, time_limit_s: float, progress: bool) -> Search | None:
    """What the search of a rank chose, beside the strategies by hand; why those do not compile is told, not raised."""
    if job.by_hand is None:
        return None
    try:
        if isinstance(job.by_hand, UserError):
            raise job.by_hand
        by_hand = dry_run(job.by_hand, [chosen.rank], time_limit_s=time_limit_s, progress=progress)
    except UserError as error:
        return Search(how=job.how, chosen=chosen, refused=str(error))
    return Search(how=job.how, chosen=chosen, by_hand=by_hand.ranks[0])


def read_rank(job: Job, done: Request, variant: Variant, graph: int | None = None) -> RankReport:
    """The report of what was compiled, of one of its graphs where one is named. Raises RunError for a graph that does
    not say what it runs."""
    try:
        return read_report(
            Path(done.folder),
            rank=done.rank,
            mesh=job.mesh,
            devices_per_node=job.devices_per_node,
            stage_layers=variant.stage_layers,
            only=graph,
        )
    except UnreadableGraph as error:
        raise RunError(
            f"{job.source}\n  MindSpore compiled rank {done.rank}, but what the graph runs cannot be counted: {error}."
        ) from None


NO_STRATEGIES = "--save-strategy: this file's parallel mode has no strategies to save; auto_parallel has."


def _saved(folder: Path) -> str:
    path = folder / STRATEGY_FILE
    if not path.exists():
        raise UserError(NO_STRATEGIES)
    return path.read_text(encoding="utf-8")


def joined_reports(job: Job, reports: list[RankReport]) -> RankReport:
    """The report at full depth of one rank's reports. Raises RunError where few layers do not tell of many."""
    if len(job.variants) == 1:
        return reports[0]
    shallow = sorted(reports, key=lambda report: len(report.layers))
    try:
        return depth.at_full_depth(job.stage_layers, job.mesh.pp, shallow[0], shallow[1])
    except depth.NotLinear as error:
        raise RunError(
            f"{job.source}\n  The layers of rank {reports[0].rank} cannot be inferred from few: {error}. "
            "Try: --depth full"
        ) from None
