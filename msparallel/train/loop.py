"""The training loop of one process.

In: a Plan, a rank, the opened data and perhaps a checkpoint. Out: a RunResult; on the way log, evaluations,
checkpoints, curve. Every rank runs the same loop on its own rows; one of them reports.

>>> Training(plan, rank=0, prepared=prepare(plan, None)).run()
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from tqdm import tqdm

from msparallel import context
from msparallel.errors import RunError
from msparallel.model.initialize import draw_slices
from msparallel.plan import Plan
from msparallel.slice import Slice
from msparallel.train import resume
from msparallel.train.assemble import assemble, placeholder_inputs
from msparallel.train.curve import draw_curve
from msparallel.train.evaluate import Evaluation, sample_text
from msparallel.train.feed import Feed
from msparallel.train.log import RunLog
from msparallel.train.optimizer import learning_rate_at
from msparallel.train.prepare import Prepared
from msparallel.train.run import RunResult, no_beat, notice, reporting_rank, run_dir, store, versions
from msparallel.train.slices import parameter_slices
from msparallel.train.step import StepResult
from msparallel.train.tensorboard import TensorBoard


class Training:
    """One rank's part of a run: everything built, ready to step."""

    def __init__(self, plan: Plan, rank: int, prepared: Prepared, beat: Callable[..., None] = no_beat):
        train = plan.recipe.train
        assert train is not None, "only recipes with a train section are trained"
        self.plan, self.train, self.rank, self.beat = plan, train, rank, beat
        self.reports = rank == reporting_rank(plan)
        self.data, self.loader, checkpoint = prepared.data, prepared.loader, prepared.checkpoint
        if prepared.changes:
            self._say("Changed since the checkpoint, from here on:\n    " + "\n    ".join(prepared.changes))
        context.apply(plan, rank)
        self.parts = assemble(plan)
        if plan.shards:  # only a compilation says which slices this rank holds
            self.parts.step.compile(*placeholder_inputs(plan))
        self.feed = Feed(plan, rank=rank, data=self.data)
        replicas = plan.world_size > 1 and not plan.shards
        self.evaluation = Evaluation(self.parts.model, self.feed.evaluation(), add_over_ranks=replicas)
        self.start = checkpoint.step if checkpoint else 0
        self.beat(self.start, "compile")
        self.resumed_from = self.start if checkpoint else None
        if checkpoint:
            optimizer = self.parts.optimizer
            resume.restore(checkpoint, self._held(optimizer.parameters), self._held(self.parts.state_parameters()))
            self._say(f"Going on from {checkpoint.path}.")
        elif plan.shards:
            weights = self._held(self.parts.optimizer.parameters)
            draw_slices(weights, self._slices({p.name: p.shape for p in weights}), plan.shape, train.seed)
        self.checkpoints = store(plan, rank=rank, barrier=_barrier if plan.shards else None)
        self.tokens_a_step = plan.global_batch_size * train.seq_length

    def run(self) -> RunResult:
        """Train to the last step."""
        folder = run_dir(self.plan)
        self.log = RunLog(folder / "log.jsonl", keep_steps=self.start) if self.reports else None
        self.board = TensorBoard(folder / "tensorboard") if self.reports and self.train.tensorboard else None
        if self.log:
            self.data.tokenizer.save(folder)
            self.log.append("start", **self._description())
        if not self.start:
            self._evaluate(0)
        speed = self._steps()
        self.beat(self.train.steps, "end")
        result = {
            "world_size": self.plan.world_size,
            "tokens_per_s": speed,
            "checkpoint": str(self.checkpoints.path(self.train.steps)),
            "resumed_from": self.resumed_from,
        }
        if not self.log:
            return RunResult(losses=[], eval_losses=[], **result)
        sample = self._sample()
        draw_curve(folder / "loss.png", self.log.losses, self.log.evaluations, title=self.plan.recipe.name)
        self.log.append("end", step=self.train.steps, tokens_per_s=round(speed, 1), sample=sample)
        self.log.close()
        if self.board:
            self.board.close()
        evaluations = [{"step": step, "loss": loss} for step, loss in self.log.evaluations]
        return RunResult(losses=self.log.losses, eval_losses=evaluations, sample=sample, **result)

    def _steps(self) -> float:
        """All steps; returns tokens a second without the first step, which compiles."""
        train = self.train
        pending: list[float] = []
        seconds, counted = 0.0, 0
        bar = tqdm(
            total=train.steps, initial=self.start, desc=self.plan.recipe.name, unit="step", disable=not self.reports
        )
        for step in range(self.start, train.steps):
            began = time.perf_counter()
            result = self._step(step)
            took = time.perf_counter() - began
            done, last = step + 1, step + 1 == train.steps
            self.beat(done, "step", took, result.loss)
            if not math.isfinite(result.loss) or not (result.overflow or math.isfinite(result.grad_norm)):
                raise RunError(self._not_finite(done, result))
            if step > self.start or train.steps - self.start == 1:
                seconds, counted = seconds + took, counted + self.tokens_a_step
            pending.append(result.loss)
            bar.set_postfix_str(f"loss {result.loss:.4f}, {self.tokens_a_step / took:,.0f} tokens/s", refresh=False)
            bar.update()
            saves = last or (train.checkpoint_interval is not None and done % train.checkpoint_interval == 0)
            if done % train.log_interval == 0 or saves:
                self._record(done, pending, result, self.tokens_a_step / took)
                pending = []
            if last or (train.eval_interval is not None and done % train.eval_interval == 0):
                self.beat(done, "evaluate", took, result.loss)
                self._evaluate(done)
                self.beat(done, "step", took, result.loss)
            if saves:
                self.beat(done, "checkpoint", took, result.loss)
                self._save(done)
                self.beat(done, "step", took, result.loss)
        bar.close()
        return counted / seconds if seconds else 0.0

    def _step(self, step: int) -> StepResult:
        inputs = self.feed.step(step)
        if not self.plan.shards:
            return self.parts.step(inputs)
        loss, norm, overflow = self.parts.step(*inputs[0])
        return StepResult(
            loss=float(loss.asnumpy()), grad_norm=float(norm.asnumpy()[0]), overflow=bool(overflow.asnumpy())
        )

    def _record(self, step: int, losses: list[float], result: StepResult, tokens_per_s: float) -> None:
        if not self.log:
            return
        values = {
            "grad_norm": result.grad_norm,
            "learning_rate": learning_rate_at(self.plan.recipe.optimizer, self.train.steps, step - 1),
            "tokens_per_s": round(tokens_per_s, 1),
        }
        if self.parts.loss_scale:
            values |= {"overflow": result.overflow, "loss_scale": float(self.parts.loss_scale.value.asnumpy())}
        self.log.train(step, losses=losses, **values)
        if self.board:
            self.board.add(step, loss=losses[-1], **values)

    def _evaluate(self, step: int) -> None:
        loss = self.evaluation()
        if self.log:
            self.log.evaluation(step, loss)
            tqdm.write(f"step {step}: evaluation loss {loss:.4f}", file=sys.stderr)
        if self.board:
            self.board.add(step, eval_loss=loss)

    def _save(self, step: int) -> None:
        if self.log:
            self.log.sync()
        if self.rank and not self.plan.shards:
            return
        began = time.perf_counter()
        kinds = {
            "model": self._arrays(self.parts.optimizer.parameters),
            "optimizer": self._arrays(self.parts.state_parameters()),
        }
        slices = None
        if self.plan.shards:
            slices = self._slices({name: array.shape for arrays in kinds.values() for name, array in arrays.items()})
        path = self.checkpoints.write(step, kinds, self._state(step), slices)
        if self.log:
            self.log.append("checkpoint", step=step, path=str(path), seconds=round(time.perf_counter() - began, 3))

    def _slices(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, Slice]:
        layouts = self.parts.step.parameter_layout_dict
        return parameter_slices(layouts, shapes, mesh=self.plan.mesh, rank=self.rank)

    def _held(self, parameters: Iterable[ms.Parameter]) -> list[ms.Parameter]:
        """Those that this rank has values of: a pipeline stage has its own layers only."""
        layouts = self.parts.step.parameter_layout_dict if self.plan.shards else None
        return [p for p in parameters if layouts is None or p.name in layouts or not p.requires_grad]

    def _arrays(self, parameters: Iterable[ms.Parameter]) -> dict[str, np.ndarray]:
        return {parameter.name: parameter.asnumpy() for parameter in self._held(parameters)}

    def _state(self, step: int) -> dict[str, Any]:
        """What `state.json` keeps beside the arrays."""
        scale = self.parts.loss_scale
        return {
            "identity": resume.identity(self.plan),
            "free": resume.free_choices(self.plan),
            "cutting": resume.cutting(self.plan),
            "data": self.loader.state(step),
            "vocab_size": self.plan.shape.vocab_size,
            "padded_vocab_size": self.plan.shape.padded_vocab_size,
            "loss_scale": float(scale.value.asnumpy()) if scale else None,
            "recipe": self.plan.recipe.name,
            "versions": versions(),
        }

    def _description(self) -> dict[str, Any]:
        """The log's first record."""
        recipe, plan = self.plan.recipe, self.plan
        return {
            "recipe": recipe.name,
            "path": recipe.path,
            "overrides": list(recipe.overrides),
            "sections": recipe.sections.model_dump(exclude_none=True),
            "plan": {
                "mesh": str(plan.mesh),
                "world_size": plan.world_size,
                "mode": recipe.parallel.mode,
                "global_batch_size": plan.global_batch_size,
                "micro_batch_size": plan.micro_batch_size,
                "micro_batch_num": plan.micro_batch_num,
                "parameters": plan.shape.parameters(),
            },
            "corpus": self.data.corpus.source,
            "corpus_sha256": self.data.corpus_sha256,
            "tokenizer": recipe.data.tokenizer,
            "tokenizer_sha256": self.data.tokenizer.sha256,
            "train_tokens": self.data.train_tokens,
            "eval_tokens": self.data.eval_tokens,
            "versions": versions(),
            "resumed_from": self.resumed_from,
        }

    def _sample(self) -> str:
        if not self.train.sample_tokens or self.plan.shards:
            return ""
        return sample_text(
            self.parts.model,
            self.data.tokenizer,
            prompt=self.train.sample_prompt,
            tokens=self.train.sample_tokens,
            seq_length=self.train.seq_length,
            vocab_size=self.data.tokenizer.vocab_size,
            seed=self.train.seed,
        )

    def _say(self, text: str) -> None:
        if self.reports:
            notice(text)

    def _not_finite(self, step: int, result: StepResult) -> str:
        rate = self.plan.recipe.optimizer.learning_rate
        return (
            f"{run_dir(self.plan)}\n  The loss of step {step} is {result.loss}, its gradient norm {result.grad_norm}. "
            f"The run stopped before that went into a checkpoint.\n  Try: optimizer.learning_rate={rate / 3:.2g}, or a "
            "longer optimizer.warmup_steps"
        )


def _barrier() -> None:
    from mindspore.communication.comm_func import barrier

    barrier()
