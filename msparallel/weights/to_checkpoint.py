"""Weights as a training checkpoint in the slices of a plan: from Hugging Face, or from a checkpoint of another plan.

In: a HuggingFaceFolder or a TrainedCheckpoint, and the plan that is to go on. Out: `step_N`, of which each of the
plan's ranks reads its own part. Tensors pass one by one, so memory does not grow with the model; bfloat16 weights of
Hugging Face stand exactly in float32.

>>> to_checkpoint(trained, plan, Path("output/other/checkpoints"))  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.errors import UserError
from msparallel.plan import Plan
from msparallel.planner.shards import parameters, predict_shards
from msparallel.train.checkpoint import FORMAT, VERSION
from msparallel.train.resume import cutting, free_choices, identity
from msparallel.weights.checkpoint import TrainedCheckpoint
from msparallel.weights.fresh_folder import fresh_folder, write_json
from msparallel.weights.hugging_face import HuggingFaceFolder
from msparallel.weights.write_tensors import Planned, write_tensors

MOMENTS = ("adam_m", "adam_v")
"""Prefixes of AdamW's values in a checkpoint."""
Progress = Callable[[int], object]
Opened = TrainedCheckpoint | HuggingFaceFolder


def to_checkpoint(source: Opened, plan: Plan, root: Path, progress: Progress = lambda count: None) -> Path:
    """Write `root/step_N` in the slices of `plan`'s ranks, so that a run of the plan goes on from it.

    A training checkpoint keeps its step, its optimizer state and its place in the data. Weights of Hugging Face become
    step 0: moments are zero and no data was seen.

    Raises:
        UserError: another model or another run than the plan's; `root` has that step already.
        RunError: it cannot be written.
    """
    state, step = _state(source, plan)
    final = root / f"step_{step:06d}"
    if final.exists():
        raise UserError(f"{final}\n  It is there already. Move it away, or name another folder.")
    ranks = plan.world_size if plan.shards else 0
    scalars = _scalars(source, {name for name, *_ in parameters(plan)})
    needed = sum(part.local_bytes for rank in range(max(ranks, 1)) for part in predict_shards(plan, rank).values())
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "step": step, "ranks": ranks, "state": state}
    with fresh_folder(final, needed * (1 + len(MOMENTS))) as partial:
        for rank in range(max(ranks, 1)):
            folder = partial / f"rank_{rank:04d}" if ranks else partial
            folder.mkdir(exist_ok=True)
            described = _write_rank(source, plan, rank, scalars, folder, progress)
            if ranks:
                write_json(folder / "slices.json", described)
            else:
                head |= described
        write_json(partial / "state.json", {"files": {}, "parameters": {}} | head)
    return final


def _state(source: Opened, plan: Plan) -> tuple[dict[str, Any], int]:
    """What `state.json` says, and the step. Raises UserError where the checkpoint is of another run."""
    shape = plan.shape
    if isinstance(source, HuggingFaceFolder):
        scale = plan.recipe.train.loss_scale if plan.recipe.train is not None else None
        return {"identity": identity(plan), "free": free_choices(plan), "cutting": cutting(plan), "data": {},
                "vocab_size": shape.vocab_size, "padded_vocab_size": shape.padded_vocab_size,
                "loss_scale": scale if isinstance(scale, int) else None, "recipe": plan.recipe.name,
                "origin": str(source.path)}, 0  # fmt: skip
    stored = source.state.get("identity")
    wanted = json.loads(json.dumps(identity(plan)))
    if stored != wanted:
        keys = [key for key in wanted if not isinstance(stored, dict) or stored.get(key) != wanted[key]]
        lines = [f"    {key}: {stored.get(key) if isinstance(stored, dict) else None} in the checkpoint, {wanted[key]} "
                 "in the recipe" for key in keys]  # fmt: skip
        raise UserError("\n".join([f"{source.path}\n  The checkpoint is of another run than the recipe describes:",
                                   *lines]))  # fmt: skip
    return {**source.state, "cutting": cutting(plan), "recipe": plan.recipe.name}, source.step


def _write_rank(
    source: Opened, plan: Plan, rank: int, scalars: list[tuple[str, np.ndarray]], folder: Path, progress: Progress
) -> dict[str, Any]:
    """The two files of one rank, or of all, and their description."""
    held = predict_shards(plan, rank)
    described: dict[str, Any] = {}
    model, optimizer = [], []
    for name, shard in held.items():
        part = shard.part
        model.append(Planned(name, "F32", shard.local_shape, _reader(source, name, part.bounds, part.shape)))
        entry = {"dtype": "float32", "shape": list(part.shape), "slice": [list(one) for one in part.bounds],
                 "cut_by": [list(axes) for axes in part.cut_by]}  # fmt: skip
        described[name] = {"file": "model.safetensors", **entry}
        for moment in MOMENTS:
            own = f"{moment}.{name}"
            optimizer.append(Planned(own, "F32", shard.local_shape, _reader(source, own, part.bounds, part.shape)))
            described[own] = {"file": "optimizer.safetensors", **entry}
    for name, values in scalars:
        dtype = "I32" if values.dtype == np.int32 else "F32"
        optimizer.append(Planned(name, dtype, values.shape, lambda values=values: values))
        described[name] = {"file": "optimizer.safetensors", "dtype": str(values.dtype), "shape": list(values.shape),
                           "slice": [[0, size] for size in values.shape],
                           "cut_by": [[] for _ in values.shape]}  # fmt: skip
    files = {}
    for name, tensors in (("model.safetensors", model), ("optimizer.safetensors", optimizer)):
        digest = write_tensors(folder / name, tensors, progress)
        files[name] = {"bytes": (folder / name).stat().st_size, "sha256": digest}
    return {"files": files, "parameters": described}


def _scalars(source: Opened, model: set[str]) -> list[tuple[str, np.ndarray]]:
    """What every rank holds whole, beside `model`'s parameters: the number of the step, and what float16 needs."""
    if isinstance(source, HuggingFaceFolder):
        return [("global_step", np.zeros(1, np.int32))]
    return [(name, source.read(name)) for name in source.shapes if not name.startswith(MOMENTS) and name not in model]


def _reader(source: Opened, name: str, bounds: Any, whole: Any) -> Callable[[], np.ndarray]:
    if name.startswith(MOMENTS) and isinstance(source, HuggingFaceFolder):
        return lambda: np.zeros([stop - start for start, stop in bounds], np.float32)
    return lambda: source.read(name, bounds, whole)
