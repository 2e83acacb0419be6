"""The whole proof for a MindFormers YAML: MindFormers' own step, all ranks executed, compared with one process.

In: a MindFormersConfig. Out: `MindFormersSimulation`: what `execution.Comparison` says, what was changed to make the
model small, and what a step does with rows that count different numbers of tokens, where MindFormers itself does not
compute the same under every strategy.

>>> found = simulate_mindformers(read_mindformers("pretrain_qwen3_32b_4k.yaml"), steps=3)  # doctest: +SKIP
>>> found.same, found.uneven_over_tokens.gradients.max_relative  # doctest: +SKIP
(True, 0.45)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from msparallel.compile.mindformers_job import mindformers_job, require_installed
from msparallel.compile.ranks import temporary_folder
from msparallel.errors import RunError, UserError
from msparallel.interop.mindformers import MindFormersConfig, read_mindformers
from msparallel.interop.model_names import load_model_config
from msparallel.mesh import Mesh
from msparallel.simulate.cluster import Inputs
from msparallel.simulate.execution import Comparison, execute
from msparallel.simulate.mindformers_layout import Parts, as_ranks_read, parts_in_a_row
from msparallel.simulate.mindformers_shrink import alone, global_batch, replicas, shrunk
from msparallel.simulate.mindformers_single import BATCHES_FILE, COLUMNS_FILE, MEANS, UNEVEN, SingleRequest
from msparallel.simulate.program import RankProgram, check_programs, compiled_variant
from msparallel.simulate.shrink import Changes
from msparallel.simulate.truth import Truth, read_truth, training_alone, wait

SEED, BETA1 = 0, 0.9
"""MindFormers' defaults."""


@dataclass(frozen=True, kw_only=True)
class MindFormersSimulation(Comparison):
    """Attributes:
    config: of what was executed, small.
    mesh: its ranks.
    changes: what was changed to make the file small.
    reordered: weights whose rows ranks read in another order than one process (see `mindformers_layout`).
    as_stored: the same comparison with these as they are; None where there are none.
    uneven_over_tokens, uneven_means: one step whose rows count different numbers of tokens, compared with one process
        that averages over all of them, and with one that averages each micro-batch by itself, then the micro-batches.
        None where no column says what counts, or steps hang.
    seconds: that the parts of the simulation took, by name.
    """

    config: MindFormersConfig
    mesh: Mesh
    changes: Changes
    reordered: tuple[str, ...]
    as_stored: Comparison | None
    uneven_over_tokens: Comparison | None
    uneven_means: Comparison | None
    seconds: Mapping[str, float]

    @property
    def same(self) -> bool:
        """Whether the cluster computes what one process does; with uneven rows, what MindFormers' own rule makes it."""
        uneven = self.uneven_over_tokens if averages_tokens(self.config) else self.uneven_means
        return super().same and (uneven is None or uneven.same)

    def to_json(self) -> dict[str, Any]:
        """The document of `simulate --json`."""
        return {
            "same": self.same,
            "source": self.config.path,
            "world_size": self.mesh.size,
            "shrunk_to": self.changes,
            **self.errors_json(),
            "reordered_weights": list(self.reordered),
            "as_stored": self.as_stored.errors_json() if self.as_stored else None,
            "uneven_over_tokens": self.uneven_over_tokens.errors_json() if self.uneven_over_tokens else None,
            "uneven_means": self.uneven_means.errors_json() if self.uneven_means else None,
            "seconds": dict(self.seconds),
        }


def averages_tokens(config: MindFormersConfig) -> bool:
    """Whether a step of MindFormers has one average over all its tokens, whatever the micro-batches."""
    return config.micro_batches == 1 or config.tree.get("calculate_per_token_loss") is True


def simulate_mindformers(
    config: MindFormersConfig,
    *,
    overrides: Sequence[str] = (),
    model_config: str | None = None,
    steps: int,
    full: bool = False,
    progress: bool = True,
) -> MindFormersSimulation:
    """Execute `steps` training steps of all ranks, and of one process.

    Args:
        overrides: those that the config was read with.
        model_config: what stands for the file's Hugging Face config.
        full: keep the model's sizes; tokens are drawn all the same.

    Raises:
        UserError: a file that does not train, or that MindFormers refuses when made small; MindFormers not installed.
        RunError: a compilation that failed, an operator that cannot be executed.
    """
    mindformers_job(config, "full", model_config, tuple(overrides))  # what is wrong with the file itself, as it stands
    _require_adam(config)
    changes = shrunk(config, full=full)
    given = load_model_config(model_config) if model_config else None
    with _told_as_small(changes):
        small = read_mindformers(config.path, given, overrides, changes)
        job = mindformers_job(small, "full", model_config, tuple(overrides))
    require_installed()
    (variant,) = job.variants
    request = SingleRequest(
        source=small.path,
        overrides=list(overrides),
        values={**changes, **alone(small)},
        model_config=variant.request.model_config,
        steps=steps,
        seed=_seed(small),
        micro_batches=small.micro_batches,
    )
    clock: dict[str, float] = {}
    with (
        temporary_folder() as folder,
        training_alone("msparallel.simulate.mindformers_single", request, folder / "single") as process,
    ):
        started = time.monotonic()
        variant = replace(variant, request=replace(variant.request, values=dict(changes)))
        with _told_as_small(changes):
            programs = compiled_variant(variant, range(job.mesh.size), folder, progress)
        check_programs(programs)
        clock["compile"] = time.monotonic() - started
        wait(process, folder / "single", progress)
        clock["single"] = time.monotonic() - started
        begun = time.monotonic()
        ranks = _Ranks(programs=programs, config=small, mesh=job.mesh, progress=progress)
        single = folder / "single"
        truth = read_truth(single)
        parts = parts_in_a_row(small, truth.initial)
        found = ranks.compared(truth, single, parts)
        as_stored = means = over_tokens = None
        if parts:
            as_stored = ranks.compared(truth, single)
        if (single / UNEVEN).exists() and not found.deadlock:
            over_tokens = ranks.compared(read_truth(single / UNEVEN), single / UNEVEN, parts)
            means = ranks.compared(read_truth(single / MEANS), single / UNEVEN, parts)
        clock["execute"] = time.monotonic() - begun
    return MindFormersSimulation(
        **vars(found),
        config=small,
        mesh=job.mesh,
        changes=changes,
        as_stored=as_stored,
        reordered=tuple(parts),
        uneven_over_tokens=over_tokens,
        uneven_means=means,
        seconds=clock,
    )


@contextmanager
def _told_as_small(changes: Changes) -> Iterator[None]:
    """Whoever is refused because of what was changed is told what was changed."""
    try:
        yield
    except UserError as error:
        told = " ".join(f"{key}={json.dumps(value)}" for key, value in changes.items())
        raise UserError(f"The file was changed for execution: {told}\n{error}") from None


@dataclass(frozen=True, kw_only=True)
class _Ranks:
    """What is compiled, to be executed and compared."""

    programs: Sequence[RankProgram]
    config: MindFormersConfig
    mesh: Mesh
    progress: bool

    def compared(self, truth: Truth, fed: Path, parts: Parts | None = None) -> Comparison:
        """Beside one process.

        Args:
            fed: folder of the batches.
            parts: of weights whose rows ranks read in another order.
        """
        config, betas = self.config, self.config.tree.get("optimizer.betas")
        initial, gradients, final = (
            as_ranks_read(arrays, parts or {}, config.model_parallel)
            for arrays in (truth.initial, truth.gradients, truth.final)
        )
        return execute(
            self.programs,
            replace(truth, initial=initial, gradients=gradients, final=final),
            mesh=self.mesh,
            inputs=self._inputs(fed),
            beta1=float(betas[0]) if isinstance(betas, list) and betas else BETA1,
            added_losses=1 if averages_tokens(config) else config.micro_batches,
            progress=self.progress,
        )

    def _inputs(self, fed: Path) -> Callable[[int], Mapping[int, Sequence[Inputs]]]:
        """What each rank is fed in a step: its replica's rows of every column, or all where the graph takes all."""
        batches = load_file(fed / BATCHES_FILE)
        columns = json.loads((fed / COLUMNS_FILE).read_text(encoding="utf-8"))
        rows = {program.rank: self._rows(program) for program in self.programs}
        return lambda step: {
            rank: [tuple(batches[f"{step}.{name}"][part] for name in columns)] for rank, part in rows.items()
        }

    def _rows(self, program: RankProgram) -> slice:
        """Rows of the whole batch that a rank takes."""
        taken = next(p.type.shape[0] for p in program.graphs[0].execution.parameters if not p.weight)
        everything, parts = global_batch(self.config), replicas(self.config)
        if taken == everything:
            return slice(None)
        if taken * parts != everything:
            raise RunError(
                f"rank {program.rank} takes {taken} sequences a step; {everything} over {parts} replicas are "
                f"{everything // parts} each."
            )
        start = taken * self.mesh.coordinates(program.rank)["dp"]
        return slice(start, start + taken)


def _seed(config: MindFormersConfig) -> int:
    seed = config.tree.get("seed")
    return seed if type(seed) is int else SEED


def _require_adam(config: MindFormersConfig) -> None:
    name = config.tree.get("optimizer.type")
    if name != "AdamW":
        raise UserError(
            f"{config.path}: optimizer.type {name}: simulate reads gradients from the first moment of AdamW, which no "
            "other optimizer of MindFormers keeps the same way. Try: optimizer.type=AdamW"
        )
