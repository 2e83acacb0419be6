"""The manifest of a recipe: YAML for `kubectl apply`.

In: a Plan, a Request, the recipe's text. Out: text, the same for the same input; or RecipeError with all that is wrong.

>>> text = manifest(plan, Request(kind="vcjob", name="demo", claim="data"), recipe_text)  # doctest: +SKIP
"""

from __future__ import annotations

from typing import Any

from msparallel.errors import RecipeError
from msparallel.plan import Plan
from msparallel.schedule.inference import inference_documents
from msparallel.schedule.jobs import job_documents
from msparallel.schedule.queues import TRAIN_PRIORITY, priority_class, queue
from msparallel.schedule.request import JOB_DIR, Request, chip_of, problems
from msparallel.schedule.yaml_text import dump_all


def documents(plan: Plan, request: Request, recipe_text: str) -> list[Any]:
    """The objects, in the order in which they are applied. Raises RecipeError."""
    if found := problems(plan, request):
        raise RecipeError(found)
    made = inference_documents if request.kind == "deployment" else job_documents
    return [*_shared(plan, request), *made(plan, request, recipe_text)]


def manifest(plan: Plan, request: Request, recipe_text: str) -> str:
    """The objects as text. Raises RecipeError."""
    return dump_all(documents(plan, request, recipe_text), head(plan, request))


def head(plan: Plan, request: Request) -> str:
    """What the file begins with."""
    where = f"{plan.nodes} node{'s' * (plan.nodes > 1)} x {plan.devices_per_node}"
    return (
        f"{plan.recipe.name}: {plan.mesh} on {where} ({plan.hardware.chip}), {_AS[request.kind]}. "
        "Not yet run on hardware: schemas and admission rules were checked, no cluster has seen it.\n"
        f"The image holds msparallel, MindSpore and, for Ascend, CANN. {JOB_DIR} is the shared volume."
    )


_AS = {"vcjob": "a Volcano Job", "ascendjob": "an AscendJob", "msjob": "an MSJob", "deployment": "a Deployment"}


def notes(plan: Plan, request: Request) -> list[str]:
    """What whoever applies it should know."""
    found = list(plan.recipe.notes)
    if request.image.startswith("registry.example/"):
        found.append(f"{request.image} is an example: --image names yours, with msparallel, MindSpore and CANN in it.")
    paths = [("data.corpus", plan.recipe.data.corpus), ("data.tokenizer", plan.recipe.data.tokenizer)]
    if plan.recipe.serve is not None:
        paths.append(("serve.weights", plan.recipe.serve.weights))
    for key, value in paths:
        if isinstance(value, str) and value.startswith("/") and not value.startswith(f"{JOB_DIR}/"):
            found.append(f"{key}: {value} is not below {JOB_DIR}, the volume of the pods.")
    if request.host_path and plan.nodes > 1:
        found.append(f"--host-path {request.host_path}: must be the same shared folder on all {plan.nodes} nodes.")
    if request.queue != "default" and not request.with_queue:
        found.append(f"The queue {request.queue} must exist; --with-queue writes it too.")
    if request.priority_class and not request.with_queue:
        found.append(f"The PriorityClass {request.priority_class} must exist; --with-queue writes it too.")
    return found


def _shared(plan: Plan, request: Request) -> list[Any]:
    """Objects of the whole cluster, where they are asked for."""
    if not request.with_queue:
        return []
    found: list[Any] = []
    chip = chip_of(plan)
    if request.priority_class:
        found.append(
            priority_class(
                request.priority_class, TRAIN_PRIORITY, preempts=True, description="takes the place of lower jobs"
            )
        )
    deserved = {chip.resource: str(plan.world_size)} if chip else None
    return [*found, queue(request.queue, weight=1, reclaimable=True, deserved=deserved)]
