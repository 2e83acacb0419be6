"""Which sequences each step trains on, and which are evaluated.

In: packed sequences, a seed, a batch size. Out: batches by step number. A step's batch is a pure function of seed and
step, so a run continues from a step number alone, and every rank can compute the same global batch by itself.

Training reads an endless row of samples: epoch e is all sequences in an order drawn from (seed, e), and step s takes
samples s*B .. s*B+B-1, across the border of two epochs where it falls inside. Rows keep that order; `batch.py` says how
accumulation steps and ranks share them.

>>> loader = TrainLoader(sequences, global_batch_size=8, seed=1, fingerprint=dataset.fingerprint)   # doctest: +SKIP
>>> loader.global_batch(0).input_ids.shape                                                          # doctest: +SKIP
(8, 256)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from msparallel.data.batch import Batch
from msparallel.data.packing import PackedSequences
from msparallel.errors import UserError


class TrainLoader:
    """Global batches of a training split, by step.

    Attributes:
        global_batch_size: B, sequences of one optimizer step over all ranks and accumulation steps.
        num_sequences: sequences of one epoch.
    """

    def __init__(self, sequences: PackedSequences, *, global_batch_size: int, seed: int, fingerprint: str) -> None:
        """`fingerprint` names the data in the state (Dataset.fingerprint).

        Raises UserError where one epoch has fewer sequences than one batch.
        """
        self.global_batch_size = global_batch_size
        self.num_sequences = len(sequences)
        if self.num_sequences < global_batch_size:
            seq_length = (sequences.num_tokens - 1) // global_batch_size
            other = f"\n  Try: train.seq_length={seq_length}" if seq_length else ""
            raise UserError(
                f"train.global_batch_size: {global_batch_size}\n  The training data has {sequences.num_tokens:,} "
                f"tokens: {self.num_sequences:,} sequences of {sequences.seq_length:,}, fewer than one batch.\n"
                f"  train.global_batch_size can be at most {self.num_sequences:,} here, and is a multiple of "
                f"data_parallel x micro_batch_size.{other}"
            )
        self._sequences = sequences
        self._seed = seed
        self._fingerprint = fingerprint
        self._orders: dict[int, np.ndarray] = {}

    def global_batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0: arrays [B, S]. Needs no earlier step."""
        samples = np.arange(step * self.global_batch_size, (step + 1) * self.global_batch_size)
        epochs, positions = np.divmod(samples, self.num_sequences)
        numbers = np.empty_like(samples)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            numbers[of_epoch] = self._order(int(epoch))[positions[of_epoch]]
        return self._sequences.batch(numbers)

    def state(self, step: int) -> dict[str, int | str]:
        """Where the data stands before `step`, as JSON values: epoch, position in it (sequences), seed, fingerprint."""
        epoch, position = divmod(step * self.global_batch_size, self.num_sequences)
        return {"epoch": epoch, "position": position, "seed": self._seed, "fingerprint": self._fingerprint}

    def restore(self, state: Mapping[str, int | str]) -> int:
        """The step that goes on from `state`.

        Another global_batch_size than the one that wrote it is fine where the sequences read so far are whole steps.
        Raises UserError: other data, another seed, not a whole step, an incomplete state.
        """
        missing = [key for key in ("epoch", "position", "seed", "fingerprint") if key not in state]
        if missing:
            raise UserError(f"The data position of the checkpoint is incomplete: it has no {', '.join(missing)}.")
        if state["fingerprint"] != self._fingerprint:
            raise UserError(_other_data(str(state["fingerprint"]), self._fingerprint))
        if state["seed"] != self._seed:
            raise UserError(
                f"train.seed: {self._seed}\n  The checkpoint was trained with seed {state['seed']}; another one gives "
                f"another order of the data, so the run cannot continue.\n  Try: train.seed={state['seed']}"
            )
        samples = int(state["epoch"]) * self.num_sequences + int(state["position"])
        step, rest = divmod(samples, self.global_batch_size)
        if rest:
            works = max(size for size in range(1, self.global_batch_size) if samples % size == 0)
            raise UserError(
                f"train.global_batch_size: {self.global_batch_size}\n  The checkpoint has read {samples:,} sequences, "
                f"which is not a whole number of steps of {self.global_batch_size} ({samples:,} % "
                f"{self.global_batch_size} = {rest}).\n  train.global_batch_size must divide {samples:,}, as {works} "
                "does, and be a multiple of data_parallel x micro_batch_size."
            )
        return step

    def _order(self, epoch: int) -> np.ndarray:
        """The epoch's sequence numbers in training order.

        A sort of raw Philox output, not Generator.permutation: NumPy keeps the former's stream for good, the latter's
        only within a version, and a run must continue after an upgrade.
        """
        if epoch not in self._orders:
            key = np.array([self._seed, epoch], dtype=np.uint64)
            draws = np.random.Philox(key=key).random_raw(self.num_sequences)
            # A batch touches few epochs, and steps usually move on: older orders are not needed again soon.
            self._orders = {kept: order for kept, order in self._orders.items() if kept == epoch - 1}
            self._orders[epoch] = np.argsort(draws, kind="stable")
        return self._orders[epoch]


def eval_batches(sequences: PackedSequences, *, batch_size: int, max_sequences: int | None = None) -> Iterator[Batch]:
    """The first `max_sequences` sequences (all without it), always the same, in batches [batch_size, S].

    The last batch is filled up with rows whose loss_mask is 0, so that every batch has the same shape.
    """
    count = len(sequences) if max_sequences is None else min(max_sequences, len(sequences))
    for start in range(0, count, batch_size):
        yield sequences.batch(np.arange(start, min(start + batch_size, count))).filled_up(batch_size)


def _other_data(was: str, now: str) -> str:
    """The parts of two fingerprints that differ, in words."""
    before, after = (dict(part.split("=", 1) for part in text.split() if "=" in part) for text in (was, now))
    changes = [
        f"{name}: {before.get(name, 'absent')} in the checkpoint, {after.get(name, 'absent')} now"
        for name in [*after, *(name for name in before if name not in after)]
        if before.get(name) != after.get(name)
    ]
    return (
        "The checkpoint was trained on other data than the recipe names, so its place in it means nothing here.\n  "
        + "\n  ".join(changes)
        + "\n  Use the same data section and sequence length, or start anew with another train.output_dir."
    )
