"""The graphs of a served model, built for Ascend but not compiled.

In: a Request of kind `serving`; the simulated target's process, the recipe's context. Out: the served cell once for
every graph, with placeholder inputs, and which kept value is a weight and which a cache.

>>> build_served(plan, ServedForm(dtype="bfloat16", graphs=(ServedGraph(name="decode", rows=16, new=1),)))
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from msparallel.compile.request import Role
from msparallel.compile.serving import ServedForm
from msparallel.model.served import PagedTransformer
from msparallel.plan import Plan
from msparallel.serve.paged_inputs import input_shapes
from msparallel.train.assemble import StepGraph


class _Undrawn(PagedTransformer):
    """Compiled only: on one device MindSpore would fill every weight and cache with zeros, gigabytes of them."""

    def init_parameters_data(self, auto_parallel_mode=False):
        """Nothing to replace."""
        return {}


def build_served(plan: Plan, form: ServedForm) -> tuple[list[StepGraph], dict[str, Role]]:
    """The graphs in the form's order, and what each kept value is for."""
    blocks = form.blocks(plan)
    ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")  # parameters are made without memory
    model = _Undrawn(plan.shape, plan.op_parallel, getattr(ms, form.dtype), blocks).set_train(False)
    ms.set_auto_parallel_context(parallel_mode=plan.recipe.parallel.mode)
    graphs = [
        StepGraph(
            cell=model,
            inputs=tuple(Tensor(np.zeros(shape, np.int32)) for shape in input_shapes(blocks, graph.rows, graph.new)),
            executions=1,
        )
        for graph in form.graphs
    ]
    roles: dict[str, Role] = {
        parameter.name: "cache" if parameter.name.endswith("_cache") else "weight"
        for parameter in model.get_parameters()
    }
    return graphs, roles
