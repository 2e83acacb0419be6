"""The model of one rank on an Ascend device with its blocks of keys and values: tokens in, logits out.

In: the Plan of a recipe that serves, whose context has been applied; a rank; weights. Out: what `engine.Engine` has for
a processor. Every rank of a server is asked the same and answers the same: MindSpore's engine cuts the graphs, and the
logits are whole everywhere. **Not yet run on hardware**: graphs, inputs and answers are proven by `msparallel dryrun`
and `msparallel simulate`, which compile and execute them without a device.

>>> engine = PagedEngine(plan, rank=0)  # doctest: +SKIP
>>> engine.load(weights)  # doctest: +SKIP
>>> engine.warm_up()  # doctest: +SKIP
>>> logits = engine.prefill(slot=0, start=0, tokens=[72, 105])  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import JitConfig, Tensor

from msparallel.mesh import Mesh
from msparallel.model.cache_blocks import SERVED_DTYPE, Blocks
from msparallel.model.served import PagedTransformer
from msparallel.plan import Plan
from msparallel.serve.buckets import paged_buckets
from msparallel.serve.paged_batches import PagedBatches
from msparallel.serve.paged_inputs import Arrays, input_shapes
from msparallel.slice import Slice
from msparallel.train.slices import parameter_slices
from msparallel.weights.source import Source, read_finite


class PagedEngine(PagedBatches):
    """Attributes:
    sizes: what is compiled.
    """

    def __init__(self, plan: Plan, rank: int):
        serve = plan.recipe.serve
        assert serve is not None, "only recipes that serve have an engine"
        self.sizes = paged_buckets(serve.max_concurrency, serve.max_length)
        self._blocks = Blocks(slots=serve.max_concurrency, length=serve.max_length)
        self._mesh, self._rank, self._shards = plan.mesh, rank, plan.shards
        self._model = PagedTransformer(plan.shape, plan.op_parallel, getattr(ms, SERVED_DTYPE), self._blocks)
        self._model.set_train(False)
        # The kernels of PagedAttention and ReshapeAndCache belong to this mode (MindSpore's "infer boost").
        self._model.set_jit_config(JitConfig(jit_level="O0", infer_boost="on"))
        super().__init__(self._blocks, self.sizes, plan.shape.vocab_size, self._answer)

    @property
    def parameter_count(self) -> int:
        """Of what `load` fills in."""
        return len(self._parameters())

    def _parameters(self) -> list[ms.Parameter]:
        return [one for one in self._model.get_parameters() if not one.name.endswith("_cache")]

    def load(self, weights: Source, progress: Callable[[str], object] = lambda name: None) -> None:
        """Fill in this rank's slice of every parameter; `progress` is told their names.

        Raises UserError: weights that are not there or of another shape.
        """
        layouts: Mapping[str, Any] = {}
        if self._shards:  # only a compilation says which slices this rank holds
            self._model.compile(*map(Tensor, _zeros(self._blocks, 1, self.sizes.chunks[0])))
            layouts = self._model.parameter_layout_dict
        fill(self._parameters(), layouts, weights, mesh=self._mesh, rank=self._rank, progress=progress)

    def warm_up(self, progress: Callable[[tuple[int, int]], object] = lambda shape: None) -> None:
        """Compile every graph that will be used; `progress` is told its (rows, new tokens)."""
        for rows, new in self.sizes.shapes():
            self._answer(_outside(self._blocks, rows, new))
            progress((rows, new))

    def _answer(self, fed: Arrays) -> np.ndarray:
        return self._model(*map(Tensor, fed)).asnumpy()


def fill(
    parameters: Iterable[ms.Parameter],
    layouts: Mapping[str, Sequence[Any]],
    weights: Source,
    *,
    mesh: Mesh,
    rank: int,
    progress: Callable[[str], object] = lambda name: None,
) -> None:
    """Give every parameter, as it is after the compilation, its part of the whole. One without a layout is whole.

    Raises UserError: weights that are not there or of another shape.
    """
    parameters = list(parameters)
    parts = parameter_slices(layouts, {one.name: one.shape for one in parameters}, mesh=mesh, rank=rank)
    for parameter in parameters:
        part = parts.get(parameter.name) or _whole(parameter.shape)
        values = np.asarray(read_finite(weights, parameter.name, part.bounds, part.shape), np.float32)
        parameter.set_data(Tensor(np.ascontiguousarray(values), parameter.dtype))
        progress(parameter.name)


def _whole(shape: Sequence[int]) -> Slice:
    return Slice(shape=tuple(shape), bounds=tuple((0, length) for length in shape), cut_by=((),) * len(shape))


def _zeros(blocks: Blocks, rows: int, new: int) -> Arrays:
    return tuple(np.zeros(shape, np.int32) for shape in input_shapes(blocks, rows, new))


def _outside(blocks: Blocks, rows: int, new: int) -> Arrays:
    """Inputs that touch the spare block only."""
    ids, positions, last, slot_mapping, tables, _, _ = _zeros(blocks, rows, new)
    length = np.full(rows, new, np.int32)
    return (ids, positions, last, np.full_like(slot_mapping, blocks.spare_row),
            np.full_like(tables, blocks.spare_table[0]), length, length)  # fmt: skip
