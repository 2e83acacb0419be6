"""A run's folder, written as `run` writes it."""

from __future__ import annotations

import json
from pathlib import Path


def write_log(folder: Path, *, now_s: float, steps: int = 100, done: int = 40, every: int = 10, step_s: float = 2.0,
              resumed: bool = False, ended: bool = False) -> Path:  # fmt: skip
    """log.jsonl of a run that is at step `done`; its last record was written at now_s."""
    folder.mkdir(parents=True, exist_ok=True)

    def at(step: int) -> float:
        return now_s - (done - step) * step_s

    start = {"event": "start", "time": at(0) - 5, "recipe": "tiny", "plan": {"mesh": "dp2 (2)", "world_size": 2},
             "sections": {"train": {"steps": steps}}}  # fmt: skip
    records = [start, {"event": "eval", "time": at(0), "step": 0, "eval_loss": 8.0, "eval_perplexity": 2981.0}]
    if resumed:
        records.append({**start, "resumed_from": 20})
    for step in range(every, done + 1, every):
        records.append({"event": "train", "time": at(step), "step": step, "loss": 8.0 - step / 20, "grad_norm": 0.7,
                        "learning_rate": 0.002, "tokens_per_s": 4096.0})  # fmt: skip
    if ended:
        records.append({"event": "end", "time": now_s, "step": done})
    path = folder / "log.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_rank(folder: Path, rank: int, *, now_s: float, step: int = 40, age_s: float = 1.0, phase: str = "step",
               state: str = "running", pid: int = 1, text: str = "", loss: float = 6.0) -> None:  # fmt: skip
    """rank_N.json and rank_N.beat."""
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    (logs / f"rank_{rank}.json").write_text(json.dumps({"rank": rank, "pid": pid, "state": state, "text": text,
                                                        "time": now_s - 100, "exit_code": 0}))  # fmt: skip
    (logs / f"rank_{rank}.beat").write_bytes(json.dumps({"rank": rank, "step": step, "phase": phase, "loss": loss,
                                                         "time": now_s - age_s, "step_s": 2.0}).encode().ljust(255)
                                             + b"\n")  # fmt: skip


def write_checkpoint(folder: Path, step: int) -> Path:
    """A whole checkpoint, as far as its folder and state.json go."""
    checkpoint = folder / "checkpoints" / f"step_{step:06d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    return checkpoint
