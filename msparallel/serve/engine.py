"""The model of one process with its cache: tokens in, logits out.

In: a ModelShape, weights, how many requests of how many tokens. Out: `prefill`, which reads a part of one prompt, and
`decode`, one step of many requests. What runs when is for the scheduler; a request is a slot here.

>>> engine = Engine(shape, slots=8, length=1024)  # doctest: +SKIP
>>> engine.load(weights)  # doctest: +SKIP
>>> logits = engine.prefill(slot=0, start=0, tokens=[72, 105])  # doctest: +SKIP
>>> logits = engine.decode([Row(slot=0, position=2, token=int(logits.argmax()))])  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor

from msparallel.model.packed import parts_of
from msparallel.model.served import ServedTransformer
from msparallel.model.shape import ModelShape
from msparallel.serve.buckets import Buckets, buckets, fit
from msparallel.serve.row import Row
from msparallel.weights.hugging_face import EMBEDDING, HEAD
from msparallel.weights.source import Source


class Engine:
    """Attributes:
    slots, length: requests that have room at once, tokens of each.
    """

    def __init__(self, shape: ModelShape, *, slots: int, length: int, sizes: Buckets | None = None):
        self.shape, self.slots, self.length = shape, slots, length
        self.sizes = sizes or buckets(slots, length)
        # One position more: whatever only fills a batch up is written there, and nobody looks.
        self._model = ServedTransformer(shape, ms.float32, slots=slots, length=length + 1)
        self._turned = self._model.hold_weights_transposed()
        self._model.set_train(False)
        self._step = _compiled(self._model)
        self._windows = {size: Tensor(np.arange(size, dtype=np.int32)) for _, _, size in self.sizes.shapes()}

    @property
    def parameter_count(self) -> int:
        """Of what `load` fills in."""
        return len(self._parameters())

    def _parameters(self) -> list[ms.Parameter]:
        return [one for one in self._model.get_parameters() if not one.name.endswith("_cache")]

    def load(self, weights: Source, progress: Callable[[str], object] = lambda name: None) -> None:
        """Fill in every parameter; `progress` is told their names.

        Raises UserError: weights that are not there or of another shape.
        """
        for parameter in self._parameters():
            parameter.set_data(Tensor(self._values(parameter, weights)))
            progress(parameter.name)

    def _values(self, parameter: ms.Parameter, weights: Source) -> np.ndarray:
        """In the form that the model holds them: packed, and matrices as [in, out]."""
        turned = parameter.name in self._turned
        rows, *width = parameter.shape[::-1] if turned else parameter.shape
        found = []
        for part in parts_of(parameter.name, self.shape):
            one = weights.read(part.name, whole=(part.rows, *width) if part.rows else tuple(width))
            found.append(one if part.rows else np.tile(one, (part.copies, 1)))
        if found:
            values = np.concatenate(found)
        else:
            name = EMBEDDING if parameter.name == HEAD and self.shape.tie_embeddings else parameter.name
            values = weights.read(name, whole=(rows, *width))
        return np.ascontiguousarray(values.T if turned else values, np.float32)

    def warm_up(self, progress: Callable[[tuple[int, int, int]], object] = lambda shape: None) -> None:
        """Compile every graph that will be used; `progress` is told its (rows, new tokens, window)."""
        for rows, new, window in self.sizes.shapes():
            outside = np.full((rows, new), self.length, np.int32)
            self._run(np.zeros((rows, new), np.int32), outside, np.zeros(rows, np.int32), np.zeros(rows, np.int32),
                      window)  # fmt: skip
            progress((rows, new, window))

    def prefill(self, *, slot: int, start: int, tokens: Sequence[int]) -> np.ndarray:
        """Read `tokens`, at most a chunk, which stand at `start` and behind it in a slot whose earlier positions are
        filled. Returns logits float32 [vocab_size] behind the last."""
        count = len(tokens)
        seen = start + count
        chunk = fit(self.sizes.chunks, count)
        window = fit(self.sizes.windows, seen)
        if window != self.sizes.windows[0]:
            chunk = self.sizes.chunks[-1]
        ids, positions = np.zeros((1, chunk), np.int32), np.full((1, chunk), self.length, np.int32)
        ids[0, :count], positions[0, :count] = tokens, np.arange(start, seen)
        return self._run(ids, positions, np.array([slot], np.int32), np.array([count - 1], np.int32), window)[0]

    def decode(self, batch: Sequence[Row]) -> np.ndarray:
        """One token more for every request. Returns logits float32 [requests, vocab_size]."""
        rows = fit(self.sizes.rows, len(batch))
        window = fit(self.sizes.windows_of(rows), 1 + max(row.position for row in batch))
        ids, positions = np.zeros((rows, 1), np.int32), np.full((rows, 1), self.length, np.int32)
        slots = np.zeros(rows, np.int32)
        for place, row in enumerate(batch):
            ids[place, 0], positions[place, 0], slots[place] = row.token, row.position, row.slot
        return self._run(ids, positions, slots, np.zeros(rows, np.int32), window)[: len(batch)]

    def _run(self, ids: np.ndarray, positions: np.ndarray, slots: np.ndarray, last: np.ndarray,
             window: int) -> np.ndarray:  # fmt: skip
        inputs = (Tensor(array) for array in (ids, positions, slots, last))
        return self._step(*inputs, self._windows[window]).asnumpy()[:, : self.shape.vocab_size]


def _compiled(model: ServedTransformer):
    """A function that runs the model's graphs. A call of the cell itself would visit all its cells before each step,
    which takes as long as a layer."""

    @ms.jit
    def step(input_ids, positions, slots, last, window):
        return model(input_ids, positions, slots, last, window)

    return step
