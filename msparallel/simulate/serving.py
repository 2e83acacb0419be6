"""The proof of a server: every rank's prefill and decode graphs executed, and its answers compared with one process's.

In: the Plan of a recipe that serves. Out: `ServingSimulation`: tokens of both, how far logits are apart, or the
deadlock. Graphs are those that an Ascend device would run, compiled in float16 (their kernels take no float32) and
executed in float32 (`widen.py`).

>>> found = simulate_serving(plan, tokens=8)
>>> found.same, found.max_rel_logit_error
(True, 6.3e-07)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from msparallel.compile.dryrun import Variant
from msparallel.compile.ranks import temporary_folder
from msparallel.compile.serving import ServedForm, graphs_of, serving_job
from msparallel.model.cache_blocks import LEAST_BLOCK_SIZE
from msparallel.model.shape import ModelShape
from msparallel.plan import Plan
from msparallel.serve.buckets import Buckets
from msparallel.serve.paged_batches import PagedBatches
from msparallel.serve.paged_inputs import Arrays
from msparallel.simulate.cluster import Cluster, Deadlock
from msparallel.simulate.drawn_weights import DrawnWeights
from msparallel.simulate.execution import weight_slices
from msparallel.simulate.program import RankProgram, check_programs, compiled_variant
from msparallel.simulate.requests import Answer, answered, prompts_of
from msparallel.simulate.serve_single import ServeRequest, read_answers
from msparallel.simulate.shrink import Changes, changed, model_sizes
from msparallel.simulate.truth import training_alone, wait
from msparallel.simulate.widen import widened

SLOTS, LENGTH, SHORT_CHUNK, CHUNK = 3, 48, 8, 16
"""Of a shrunk server: requests at once, tokens of each, tokens of a prompt's piece, of which there are two sizes."""
TOKENS = 8
"""Of an answer, where nobody says."""
LOGIT_LIMIT = 1e-5
"""How far logits of a step may be from one device's and still be the same in float32: norm over norm."""


@dataclass(frozen=True, kw_only=True)
class ServingSimulation:
    """Attributes:
    plan: of what was executed.
    changes: what was changed to make the recipe small.
    single, cluster: the answers, request by request; `cluster` is empty where it would hang.
    replicas_apart: largest difference between the logits that ranks return.
    seconds: that the parts of the simulation took, by name.
    """

    plan: Plan
    changes: Changes
    single: tuple[Answer, ...]
    cluster: tuple[Answer, ...]
    replicas_apart: float
    deadlock: Deadlock | None
    seconds: Mapping[str, float]

    @property
    def same_tokens(self) -> bool:
        pairs = zip(self.single, self.cluster, strict=False)
        return self.deadlock is None and all(one.tokens == other.tokens for one, other in pairs)

    @property
    def max_rel_logit_error(self) -> float:
        """Of all steps up to the first whose token differs; behind it the two answer different questions."""
        worst = 0.0
        for one, other in zip(self.single, self.cluster, strict=False):
            for here, there, token, chosen in zip(one.logits, other.logits, one.tokens, other.tokens, strict=True):
                gap = np.linalg.norm(there.astype(np.float64) - here) / np.linalg.norm(here.astype(np.float64))
                worst = max(worst, float(gap))
                if token != chosen:
                    break
        return worst

    @property
    def same(self) -> bool:
        """Whether every token is one device's, from logits within the limit, and all ranks return the same."""
        return self.same_tokens and self.max_rel_logit_error <= LOGIT_LIMIT and self.replicas_apart == 0

    def to_json(self) -> dict[str, Any]:
        """The document of `simulate --json`."""
        return {
            "same": self.same,
            "source": self.plan.recipe.path,
            "world_size": self.plan.world_size,
            "shrunk_to": self.changes,
            "requests": [
                {
                    "prompt_tokens": one.prompt,
                    "single": list(one.tokens),
                    "cluster": list(self.cluster[number].tokens) if self.cluster else None,
                }
                for number, one in enumerate(self.single)
            ],
            "max_rel_logit_error": None if self.deadlock else self.max_rel_logit_error,
            "replicas_apart": self.replicas_apart,
            "deadlock": self.deadlock.to_json() if self.deadlock else None,
            "seconds": dict(self.seconds),
        }


def shrunk_server(plan: Plan) -> tuple[Plan, Changes]:
    """The recipe with the smallest model that its degrees divide, few requests and short ones.

    What the user typed as an override stays. Raises UserError for rules that the result breaks.
    """
    sizes, shape, tp = model_sizes(plan), plan.shape, plan.mesh.tp
    kv_heads = min(shape.num_kv_heads, 2 * tp)
    heads = min(shape.num_heads, 2 * kv_heads) if shape.num_kv_heads < shape.num_heads else kv_heads
    sizes |= {"model.num_kv_heads": kv_heads, "model.num_heads": heads, "parallel.stage_layers": None}
    sizes |= {"serve.max_concurrency": SLOTS, "serve.max_length": LENGTH, "serve.weights": "random"}
    if shape.position == "learned":
        typed = "serve.max_length" in {text.partition("=")[0] for text in plan.recipe.overrides}
        sizes["model.max_positions"] = plan.recipe.serve.max_length if typed else LENGTH
    return changed(plan, sizes)


def simulate_serving(plan: Plan, *, tokens: int, full: bool = False, progress: bool = True) -> ServingSimulation:
    """Answer requests of different lengths on all ranks, and on one process.

    Args:
        tokens: of each answer.
        full: keep the recipe's sizes.

    Raises:
        UserError: a recipe that breaks rules when made small.
        RunError: a compilation that failed, an operator that cannot be executed.
    """
    small, changes = (plan, {}) if full else shrunk_server(plan)
    serve = small.recipe.serve
    assert serve is not None, "only recipes that serve are simulated as servers"
    slots, length = serve.max_concurrency, serve.max_length
    chunk = min(CHUNK, length)
    tokens = min(tokens, length - 1)
    prompts = prompts_of(vocab_size=small.shape.vocab_size, slots=slots, length=length, tokens=tokens)
    sizes = Buckets((1, slots) if slots > 1 else (1,), tuple(sorted({min(SHORT_CHUNK, chunk), chunk})))
    form = ServedForm(graphs=graphs_of(sizes), dtype="float16", block_size=LEAST_BLOCK_SIZE)
    request = ServeRequest(
        shape={field.name: getattr(small.shape, field.name) for field in fields(ModelShape)},
        slots=slots,
        length=length,
        chunk=chunk,
        tokens=tokens,
        prompts=prompts,
    )
    clock = {}
    with (
        temporary_folder() as folder,
        training_alone("msparallel.simulate.serve_single", request, folder / "single") as process,
    ):
        started = time.monotonic()
        programs = _compiled(small, form, folder, progress)
        clock["compile"] = time.monotonic() - started
        wait(process, folder / "single", progress, doing="Serving alone")
        clock["single"] = time.monotonic() - started
        single = read_answers(folder / "single", prompts)
        begun = time.monotonic()
        engine = VirtualEngine(programs, small, form, sizes)
        deadlock, answers = None, []
        with tqdm(desc="Serving", unit="graph", leave=False, disable=None if progress else True) as bar:
            engine.ran = bar.update
            try:
                answers = answered(engine, prompts, tokens=tokens, slots=slots, chunk=chunk)
            except Deadlock as error:
                deadlock = error
        clock["execute"] = time.monotonic() - begun
    return ServingSimulation(
        plan=small,
        changes=changes,
        single=tuple(single),
        cluster=tuple(answers),
        replicas_apart=engine.replicas_apart,
        deadlock=deadlock,
        seconds=clock,
    )


def _compiled(plan: Plan, form: ServedForm, folder: Path, progress: bool) -> list[RankProgram]:
    variant: Variant
    (variant,) = serving_job(plan, form, "full").variants
    programs = compiled_variant(variant, range(plan.world_size), folder, progress)
    check_programs(programs)
    return [widened(program) for program in programs]


class VirtualEngine(PagedBatches):
    """What `requests.answered` asks, by graphs of all ranks; they are fed by the code that feeds a device.

    Attributes:
        replicas_apart: largest difference between the logits of two ranks so far.
    """

    def __init__(self, programs: Sequence[RankProgram], plan: Plan, form: ServedForm, sizes: Buckets):
        super().__init__(form.blocks(plan), sizes, plan.shape.vocab_size, self._answer)
        self._graphs = {(graph.rows, graph.new): number for number, graph in enumerate(form.graphs)}
        source = DrawnWeights()
        values = {}
        for program in programs:
            kept = program.kept()
            held = {name: np.zeros(one.type.shape, np.float32) for name, one in kept.items()}
            whole = {name: np.empty(shape, np.bool_) for name, shape in _whole_shapes(program).items()}
            parts = weight_slices(program, plan.mesh, whole)
            for name, part in parts.items():
                if not name.endswith("_cache"):
                    held[name] = source.read(name, part.bounds, part.shape)
            values[program.rank] = held
        self._cluster = Cluster(programs, values)
        self.replicas_apart = 0.0
        self.ran = lambda: None

    def _answer(self, fed: Arrays) -> np.ndarray:
        graph = self._graphs[fed[0].shape]
        given = self._cluster.run(graph, dict.fromkeys(self._cluster.programs, fed))
        first, *others = (np.asarray(value) for value in given.values())
        for other in others:
            self.replicas_apart = max(self.replicas_apart, float(np.abs(other - first).max()))
        self.ran()
        return first


def _whole_shapes(program: RankProgram) -> dict[str, tuple[int, ...]]:
    """Of every kept value before it is cut; one that has no layout is whole."""
    layouts = program.layouts()
    return {
        name: tuple(layouts[name][6]) if name in layouts else one.type.shape for name, one in program.kept().items()
    }
