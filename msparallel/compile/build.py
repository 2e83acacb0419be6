"""The cells that a request is about, built but not compiled.

In: a Request; the simulated target's process. Out: the graphs of one step with placeholder inputs, and what each kept
value is for.

>>> build(Request(source="quickstart", overrides=[], rank=0, world_size=1, folder="..."))  # doctest: +SKIP
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import mindspore as ms

from msparallel import context
from msparallel.compile.request import STRATEGY_FILE, Request, Role
from msparallel.compile.serving import ServedForm
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.assemble import StepGraph, assemble, step_graphs


@dataclass(frozen=True, kw_only=True)
class Built:
    """Attributes:
    roles: kept value -> what it is for.
    notes: what a reader of the result must know.
    input_names: columns that the first graph's inputs are, where MindFormers names them.
    """

    graphs: list[StepGraph]
    roles: dict[str, Role]
    notes: list[str] = field(default_factory=list)
    input_names: list[str] = field(default_factory=list)


def build(request: Request) -> Built:
    """Apply the context of the request's rank and put the step together."""
    if request.kind == "mindformers":
        from msparallel.compile.mindformers import build_mindformers

        return build_mindformers(request)
    plan = resolve(load_recipe(request.source, request.overrides))
    kwargs = context.context_kwargs(plan, request.rank, serving=request.kind == "serving")
    files = dict(kwargs.pop("strategy_ckpt_config", {}))
    files.pop("save_file", None)  # a dry run leaves nothing where the run will write
    if request.save_strategy and plan.shards:
        files["save_file"] = str(Path(request.folder) / STRATEGY_FILE)
    if files:
        kwargs["strategy_ckpt_config"] = files
    ms.set_auto_parallel_context(**kwargs)
    return _serving(plan, request) if request.kind == "serving" else _training(plan)


def _training(plan: Plan) -> Built:
    parts = assemble(plan, draw=False)
    graphs = step_graphs(plan, parts)
    weights: dict[str, Role] = {parameter.name: "weight" for parameter in parts.model.trainable_params()}
    state: dict[str, Role] = {parameter.name: "optimizer" for parameter in parts.state_parameters()}
    sums: dict[str, Role] = {
        parameter.name: "gradient" for graph in graphs for parameter in graph.cell.get_parameters()
        if parameter.name not in weights and parameter.name not in state
    }  # fmt: skip
    return Built(graphs=graphs, roles=weights | state | sums)


def _serving(plan: Plan, request: Request) -> Built:
    """The graphs of a served model."""
    from msparallel.compile.served import build_served

    graphs, roles = build_served(plan, ServedForm.of_json(request.serving))
    return Built(graphs=graphs, roles=roles)
