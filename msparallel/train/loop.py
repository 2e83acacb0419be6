"""The training loop of one process.

In: a Plan, a rank, the opened data and perhaps a checkpoint. Out: a RunResult; on the way log, evaluations, checkpoints, curve.
Every rank runs the same loop on its own rows; one of them reports.

>>> Training(plan, rank=0, prepared=prepare(plan, None)).run()
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import mindspore as ms
from tqdm import tqdm

from msparallel import context
from msparallel.data.batch import micro_batches, shard
from msparallel.errors import RunError
from msparallel.model.transformer import build_model
from msparallel.plan import Plan
from msparallel.train import resume
from msparallel.train.curve import draw_curve
from msparallel.train.evaluate import Evaluation, model_inputs, sample_text
from msparallel.train.gradient import LossScale
from msparallel.train.log import RunLog
from msparallel.train.optimizer import AdamW, learning_rate_at
from msparallel.train.prepare import Prepared
from msparallel.train.run import RunResult, notice, reporting_rank, run_dir, store, versions
from msparallel.train.step import LocalStep, StepResult


class Training:
    """One rank's part of a run: everything built, ready to step."""

    def __init__(self, plan: Plan, rank: int, prepared: Prepared):
        recipe, train = plan.recipe, plan.recipe.train
        assert train is not None, "only recipes with a train section are trained"
        self.plan, self.train, self.rank = plan, train, rank
        self.dp_rank = plan.mesh.coordinates(rank)["dp"]
        self.reports = rank == reporting_rank(plan)
        self.data, self.loader, checkpoint = prepared.data, prepared.loader, prepared.checkpoint
        if prepared.changes and self.reports:
            notice(
                "Changed since the checkpoint, from here on:\n" + "\n".join(f"    {line}" for line in prepared.changes)
            )
        context.apply(plan, rank)
        self.model = build_model(plan.shape, plan.op_parallel, seq_length=train.seq_length,
                                 compute_dtype=getattr(ms, train.dtype), attention=plan.attention,
                                 layer_stages=plan.layer_stages if plan.mesh.pp > 1 else None, seed=train.seed)  # fmt: skip
        self.optimizer = AdamW(self.model.trainable_params(), recipe.optimizer, train.steps)
        scaled = train.dtype == "float16"
        self.loss_scale = (
            LossScale(None if train.loss_scale in (None, "dynamic") else float(train.loss_scale)) if scaled else None
        )
        self.step = LocalStep(self.model, self.optimizer, clip_norm=recipe.optimizer.clip_norm,
                              accumulation_steps=plan.accumulation_steps, loss_scale=self.loss_scale,
                              add_over_ranks=plan.world_size > 1)  # fmt: skip
        batches = list(self.data.eval_batches(batch_size=plan.micro_batch_size,
                                              max_sequences=train.eval_batches * plan.micro_batch_size))  # fmt: skip
        self.evaluate = Evaluation(self.model, batches, rank=self.dp_rank, ranks=plan.mesh.dp)
        self.start = 0 if checkpoint is None else checkpoint.step
        if checkpoint is not None:
            resume.restore(checkpoint, self.optimizer.parameters, self._state_parameters())
            if self.reports:
                notice(f"Going on from {checkpoint.path}.")
        self.resumed_from = None if checkpoint is None else self.start
        self.checkpoints = store(plan, rank=rank)

    def run(self) -> RunResult:
        """Train to the last step."""
        log = RunLog(run_dir(self.plan) / "log.jsonl", keep_steps=self.start) if self.reports else None
        self.log = log
        if log:
            self.data.tokenizer.save(run_dir(self.plan))
            log.append("start", **self._description())
        if not self.start:
            self._evaluate(0)
        speed = self._steps()
        path = self.checkpoints.root / f"step_{self.train.steps:06d}"
        sample = self._sample()
        if log is None:
            return RunResult(world_size=self.plan.world_size, losses=[], eval_losses=[], tokens_per_s=speed,
                             checkpoint=str(path), resumed_from=self.resumed_from)  # fmt: skip
        draw_curve(run_dir(self.plan) / "loss.png", log.losses, log.evaluations, title=self.plan.recipe.name)
        log.append("end", step=self.train.steps, tokens_per_s=round(speed, 1), sample=sample)
        log.close()
        return RunResult(world_size=self.plan.world_size, losses=log.losses,
                         eval_losses=[{"step": step, "loss": loss} for step, loss in log.evaluations], tokens_per_s=speed,
                         checkpoint=str(path), resumed_from=self.resumed_from, sample=sample)  # fmt: skip

    def _steps(self) -> float:
        """All steps; tokens a second without the first step, which compiles."""
        train, tokens = self.train, self.plan.global_batch_size * self.train.seq_length
        pending: list[float] = []
        seconds, counted = 0.0, 0
        bar = tqdm(
            total=train.steps, initial=self.start, desc=self.plan.recipe.name, unit="step", disable=not self.reports
        )
        for step in range(self.start, train.steps):
            began = time.perf_counter()
            result = self.step(self._inputs(step))
            took = time.perf_counter() - began
            if not math.isfinite(result.loss):
                raise RunError(self._not_finite(step + 1, result))
            if step > self.start or train.steps - self.start == 1:
                seconds, counted = seconds + took, counted + tokens
            pending.append(result.loss)
            bar.set_postfix_str(f"loss {result.loss:.4f}, {tokens / took:,.0f} tokens/s", refresh=False)
            bar.update()
            done = step + 1
            last = done == train.steps
            saves = last or (train.checkpoint_interval is not None and done % train.checkpoint_interval == 0)
            if self.log and (done % train.log_interval == 0 or saves):
                rate = learning_rate_at(self.plan.recipe.optimizer, train.steps, step)
                overflow = {"overflow": result.overflow} if self.loss_scale else {}
                self.log.train(done, losses=pending, grad_norm=result.grad_norm, learning_rate=rate,
                               tokens_per_s=round(tokens / took, 1), **overflow)  # fmt: skip
                pending = []
            if last or (train.eval_interval is not None and done % train.eval_interval == 0):
                self._evaluate(done)
            if saves:
                self._save(done)
        bar.close()
        return counted / seconds if seconds else 0.0

    def _inputs(self, step: int) -> list[tuple[ms.Tensor, ...]]:
        """This rank's micro-batches of one step."""
        batch = self.loader.global_batch(step)
        valid = batch.valid_tokens
        return [model_inputs(shard(part, data_parallel=self.plan.mesh.dp, dp_rank=self.dp_rank), valid)
                for part in micro_batches(batch, self.plan.micro_batch_num)]  # fmt: skip

    def _evaluate(self, step: int) -> None:
        loss = self.evaluate()
        if self.log:
            self.log.evaluation(step, loss)
            tqdm.write(f"step {step}: evaluation loss {loss:.4f}", file=sys.stderr)

    def _save(self, step: int) -> None:
        if self.log:
            self.log.sync()
        if self.rank and not self.plan.shards:
            return
        began = time.perf_counter()
        weights = {parameter.name: parameter.asnumpy() for parameter in self.optimizer.parameters}
        state = {parameter.name: parameter.asnumpy() for parameter in self._state_parameters()}
        path = self.checkpoints.write(step, {"model": weights, "optimizer": state}, self._state(step))
        if self.log:
            self.log.append("checkpoint", step=step, path=str(path), seconds=round(time.perf_counter() - began, 3))

    def _state_parameters(self) -> list[ms.Parameter]:
        scale = [self.loss_scale.value, self.loss_scale.good_steps] if self.loss_scale else []
        return [*self.optimizer.moments1, *self.optimizer.moments2, self.optimizer.global_step, *scale]

    def _state(self, step: int) -> dict[str, Any]:
        """What `state.json` keeps beside the arrays."""
        return {"identity": resume.identity(self.plan), "free": resume.free_choices(self.plan),
                "cutting": resume.cutting(self.plan), "data": self.loader.state(step),
                "vocab_size": self.plan.shape.vocab_size, "padded_vocab_size": self.plan.shape.padded_vocab_size,
                "loss_scale": float(self.loss_scale.value.asnumpy()) if self.loss_scale else None,
                "recipe": self.plan.recipe.name, "versions": versions()}  # fmt: skip

    def _description(self) -> dict[str, Any]:
        """The log's first record."""
        recipe, plan = self.plan.recipe, self.plan
        return {"recipe": recipe.name, "path": recipe.path, "overrides": list(recipe.overrides),
                "sections": recipe.sections.model_dump(exclude_none=True),
                "plan": {"mesh": str(plan.mesh), "world_size": plan.world_size, "mode": recipe.parallel.mode,
                         "global_batch_size": plan.global_batch_size, "micro_batch_size": plan.micro_batch_size,
                         "micro_batch_num": plan.micro_batch_num, "parameters": plan.shape.parameters()},
                "corpus": self.data.corpus.source, "corpus_sha256": self.data.corpus_sha256,
                "tokenizer": recipe.data.tokenizer, "tokenizer_sha256": self.data.tokenizer.sha256,
                "train_tokens": self.data.train_tokens, "eval_tokens": self.data.eval_tokens,
                "versions": versions(), "resumed_from": self.resumed_from}  # fmt: skip

    def _sample(self) -> str:
        if not self.train.sample_tokens or not self.reports or self.plan.shards:
            return ""
        return sample_text(self.model, self.data.tokenizer, prompt=self.train.sample_prompt, tokens=self.train.sample_tokens,
                           seq_length=self.train.seq_length, vocab_size=self.data.tokenizer.vocab_size,
                           seed=self.train.seed)  # fmt: skip

    def _not_finite(self, step: int, result: StepResult) -> str:
        return (f"{run_dir(self.plan)}\n  The loss of step {step} is {result.loss} (gradient norm {result.grad_norm}). The run "
                f"stopped before it wrote that into a checkpoint.\n  Try: optimizer.learning_rate="
                f"{self.plan.recipe.optimizer.learning_rate / 3:.2g}, or a longer optimizer.warmup_steps")  # fmt: skip
