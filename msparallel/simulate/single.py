"""The process that trains the same recipe alone: `python -m msparallel.simulate.single REQUEST.json`.

In: a `SingleRequest`. Out, in its folder: the first values of all weights, the gradients of the first step
as the optimizer got them, the weights after the last step (safetensors, whole), and the losses. This is MindSpore on
this machine's processor: the truth that the virtual cluster is measured against.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msparallel.compile.request import write_json
from msparallel.simulate.alone import Says, run_alone
from msparallel.simulate.truth import FINAL, GRADIENTS, INITIAL, LOSSES_FILE


@dataclass(frozen=True, kw_only=True)
class SingleRequest:
    """Attributes:
    source, overrides: of the recipe on one device.
    random_tokens: whether tokens are drawn; otherwise they are the recipe's text.
    """

    source: str
    overrides: list[str]
    random_tokens: bool


def train_alone(request: SingleRequest, folder: Path, says: Says) -> None:
    """Train every step of the recipe and write what came out."""
    says("importing MindSpore")
    from mindspore import Tensor
    from safetensors.numpy import save_file

    from msparallel import context
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.simulate.data import random_batches, recipe_batches
    from msparallel.train.assemble import assemble
    from msparallel.train.rank_inputs import rank_inputs

    plan = resolve(load_recipe(request.source, request.overrides))
    context.apply(plan, 0)
    says("building the model")
    parts = assemble(plan)
    batches = random_batches(plan) if request.random_tokens else recipe_batches(plan)
    weights, moments = parts.optimizer.parameters, parts.optimizer.moments1
    assert plan.recipe.train is not None, "only recipes with a train section are simulated"

    def arrays(parameters: Any, factor: float = 1.0) -> dict[str, Any]:
        return {w.name: p.asnumpy() * p.asnumpy().dtype.type(factor) for w, p in zip(weights, parameters, strict=True)}

    save_file(arrays(weights), folder / INITIAL)
    losses = []
    for step in range(plan.recipe.train.steps):
        says(f"step {step + 1} of {plan.recipe.train.steps}")
        fed = [tuple(map(Tensor, inputs)) for inputs in rank_inputs(plan, 0, batches(step))]
        result = parts.step(fed)
        losses.append(result.loss)
        if step == 0:
            # The first moment after one step is (1 - beta1) times the gradient.
            save_file(arrays(moments, 1 / (1 - plan.recipe.optimizer.beta1)), folder / GRADIENTS)
    save_file(arrays(weights), folder / FINAL)
    write_json(folder / LOSSES_FILE, {"losses": losses})


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[1], SingleRequest, train_alone))
