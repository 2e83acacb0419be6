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
from msparallel.model.served_kernels import KernelLinear, panels_of
from msparallel.model.shape import ModelShape
from msparallel.serve.buckets import Buckets, buckets, fit
from msparallel.serve.row import Row
from msparallel.weights.hugging_face import EMBEDDING, HEAD
from msparallel.weights.source import Source, read_finite


class Engine:
    """Attributes:
    slots, length: requests that have room at once, tokens of each.
    """

    def __init__(self, shape: ModelShape, *, slots: int, length: int, sizes: Buckets | None = None):
        self.shape, self.slots, self.length = shape, slots, length
        self.sizes = sizes or buckets(slots, length)
        self._model = ServedTransformer(shape, slots=slots, length=length)
        self._matrices = {
            cell.weight.name: (cell.out_features, cell.in_features)
            for _, cell in self._model.cells_and_names() if isinstance(cell, KernelLinear)
        }  # fmt: skip
        self._model.set_train(False)
        self._step = _compiled(self._model)

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
        """As the model holds them: what reads the same input is one matrix, and a matrix stands in panels. A tied head
        becomes a matrix of its own."""
        rows, *width = self._matrices.get(parameter.name, parameter.shape)
        found = []
        for part in parts_of(parameter.name, self.shape):
            one = read_finite(weights, part.name, whole=(part.rows, *width) if part.rows else tuple(width))
            found.append(one if part.rows else one[None])
        if found:
            values = np.concatenate(found)
        else:
            name = EMBEDDING if parameter.name == HEAD and self.shape.tie_embeddings else parameter.name
            values = read_finite(weights, name, whole=(rows, *width))
        return panels_of(values) if parameter.name in self._matrices else np.ascontiguousarray(values, np.float32)

    def warm_up(self, progress: Callable[[tuple[int, int]], object] = lambda shape: None) -> None:
        """Compile every graph that will be used; `progress` is told its (rows, new tokens)."""
        for rows, new in self.sizes.shapes():
            self._run(*self._filled_up(rows, new))
            progress((rows, new))

    def prefill(self, *, slot: int, start: int, tokens: Sequence[int]) -> np.ndarray:
        """Read `tokens`, at most a chunk, which stand at `start` and behind it in a slot whose earlier positions are
        filled. Returns logits float32 [vocab_size] behind the last."""
        count = len(tokens)
        ids, positions, slots, last = self._filled_up(1, fit(self.sizes.chunks, count))
        ids[0, :count], positions[0, :count] = tokens, np.arange(start, start + count)
        slots[0], last[0] = slot, count - 1
        return self._run(ids, positions, slots, last)[0]

    def decode(self, batch: Sequence[Row]) -> np.ndarray:
        """One token more for every request. Returns logits float32 [requests, vocab_size]."""
        ids, positions, slots, last = self._filled_up(fit(self.sizes.rows, len(batch)), 1)
        for place, row in enumerate(batch):
            ids[place, 0], positions[place, 0], slots[place] = row.token, row.position, row.slot
        return self._run(ids, positions, slots, last)[: len(batch)]

    def _filled_up(self, rows: int, new: int) -> list[np.ndarray]:
        """Token ids, positions, slots and last places of nothing but fillers, which stand behind all that is held."""
        return [np.zeros((rows, new), np.int32), np.full((rows, new), self.length, np.int32),
                np.zeros(rows, np.int32), np.zeros(rows, np.int32)]  # fmt: skip

    def _run(self, *inputs: np.ndarray) -> np.ndarray:
        return self._step(*map(Tensor, inputs)).asnumpy()[:, : self.shape.vocab_size]


def _compiled(model: ServedTransformer):
    """A function that runs the model's graphs. A call of the cell itself would visit all its cells before each step,
    which takes as long as a layer."""

    @ms.jit
    def step(input_ids, positions, slots, last):
        return model(input_ids, positions, slots, last)

    return step
