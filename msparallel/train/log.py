"""The run's log: one JSON object a line, appended as things happen.

In: records. Out: `log.jsonl`. Every record has `event` and `time` (Unix seconds); the events are
  start       what runs: recipe, plan, versions, corpus hash, tokenizer, resumed_from
  train       step, loss, grad_norm, learning_rate, tokens_per_s; `losses` of the steps since the last record
  eval        step, eval_loss, eval_perplexity
  checkpoint  step, path, seconds
  end         step
A resumed run cuts off what came after its checkpoint, so that every step stands in the log once.

>>> log = RunLog(Path("output/quickstart/log.jsonl"), keep_steps=100)
>>> log.train(101, losses=[5.2], grad_norm=0.7, learning_rate=1e-3, tokens_per_s=9000.0)
"""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

from msparallel.errors import RunError


class RunLog:
    """Attributes:
    losses: of each optimizer step so far, None for a step whose record is lost.
    evaluations: (step, loss).
    """

    def __init__(self, path: Path, *, keep_steps: int):
        """Open `path`, keeping the records up to step `keep_steps` (0: none but those of `start`).

        Raises RunError where it cannot be written.
        """
        self.path = path
        kept = [record for record in read_records(path) if record.get("step", 0) <= keep_steps]
        if not keep_steps:
            kept = [record for record in kept if record.get("event") == "start"]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f"{path.name}.partial")
            partial.write_text("".join(_line(record) for record in kept), encoding="utf-8")
            partial.replace(path)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            raise RunError(
                f"{path}\n  The log cannot be written: {error}. Set train.output_dir to another place."
            ) from error
        self.losses, self.evaluations = losses_of(kept, keep_steps), evaluations_of(kept)

    def append(self, event: str, **fields: Any) -> None:
        """Write one record. Raises RunError where the disk is full."""
        try:
            self._file.write(_line({"event": event, "time": round(time.time(), 3), **fields}))
            self._file.flush()
        except OSError as error:
            raise RunError(f"{self.path}\n  The log cannot be written: {error}.") from error

    def train(self, step: int, *, losses: list[float], **fields: float | bool) -> None:
        """Record of the steps that end with `step` (counted from 1)."""
        self.losses.extend(losses)
        self.append("train", step=step, loss=losses[-1], **fields, **({"losses": losses} if len(losses) > 1 else {}))

    def evaluation(self, step: int, loss: float) -> None:
        """Record of an evaluation after `step` optimizer steps."""
        self.evaluations.append((step, loss))
        self.append("eval", step=step, eval_loss=loss, eval_perplexity=perplexity(loss))

    def sync(self) -> None:
        """Have all records on the disk: called before a checkpoint that counts on them."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def perplexity(loss: float) -> float:
    """exp of a mean cross entropy in nats; inf beyond what a float holds."""
    return math.exp(loss) if loss < 700 else math.inf


def read_records(path: Path) -> list[dict[str, Any]]:
    """Records of a log; a last line that a kill cut short is left out. Empty where there is no log.

    Raises RunError where a line before the last is not a record.
    """
    try:
        lines = path.read_bytes().splitlines()  # bytes: a text's lines would also end at characters inside a string
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path}\n  The log cannot be read: {error}. Set train.output_dir to another place.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or not isinstance(record.get("step", 0), int):
                raise ValueError("no record")
            records.append(record)
        except ValueError as error:
            if number < len(lines):
                raise RunError(
                    f"{path}:{number}\n  The line is not JSON ({error}). Move the log away; the run goes on without "
                    f"its earlier losses."
                ) from error
    return records


def losses_of(records: list[dict[str, Any]], steps: int) -> list[float | None]:
    """Loss of each step 1..steps; None where no record tells."""
    losses: list[float | None] = [None] * steps
    for record in records:
        if record.get("event") == "train":
            of_steps = record.get("losses", [record.get("loss")])
            losses[record["step"] - len(of_steps) : record["step"]] = of_steps
    return losses


def evaluations_of(records: list[dict[str, Any]]) -> list[tuple[int, float]]:
    """(step, loss) of every evaluation."""
    return [
        (record["step"], record["eval_loss"])
        for record in records
        if record.get("event") == "eval" and record.get("eval_loss") is not None
    ]


def _line(record: dict[str, Any]) -> str:
    """JSON has no infinity: a number that is not finite becomes null."""
    values = {key: None if isinstance(v, float) and not math.isfinite(v) else v for key, v in record.items()}
    return json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n"
