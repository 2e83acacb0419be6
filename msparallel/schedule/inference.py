"""A recipe's server as a Deployment that waits in a queue and gives way.

In: a Plan with a `serve` section, a Request. Out: the recipe's ConfigMap, a Deployment, a Service. Its pods are
scheduled by Volcano, which puts pods without a job into a group of their own and reads their queue from an annotation
(source: volcano-sh/volcano pkg/controllers/podgroup).
"""

from __future__ import annotations

from typing import Any

from msparallel.plan import Plan
from msparallel.schedule.jobs import metadata, recipe_map
from msparallel.schedule.pod import in_pod, labels, template, words
from msparallel.schedule.request import Request
from msparallel.schedule.yaml_text import Noted


def inference_documents(plan: Plan, request: Request, recipe_text: str) -> list[Any]:
    """What `msparallel serve` needs to run in a cluster."""
    recipe = in_pod(plan).recipe
    assert recipe.serve is not None
    port = recipe.serve.port
    listens = [] if any(word.startswith("serve.host=") for word in recipe.overrides) else ["serve.host=0.0.0.0"]
    command = words(["python", "-m", "msparallel", "serve", recipe.path, *recipe.overrides, *listens])
    spec: dict[str, Any] = {"schedulerName": "volcano"}
    if request.priority_class:
        spec["priorityClassName"] = request.priority_class
    pods = template(
        plan,
        request,
        command,
        container="server",
        component="server",
        extra=spec,
        annotations={
            "scheduling.volcano.sh/queue-name": request.queue,
            "volcano.sh/preemptable": Noted("true", "a job that is entitled to the devices may have them"),
        },
        ports=[{"name": "http", "containerPort": port}],
        probe={"tcpSocket": {"port": "http"}, "periodSeconds": 5},
    )
    return [
        recipe_map(plan, request, recipe_text),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata(request, "server"),
            "spec": {
                "replicas": 1,
                "strategy": Noted({"type": "Recreate"}, "a rolling update needs the devices of two servers at once"),
                "selector": {"matchLabels": labels(request, "server")},
                "template": pods,
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(request, "server"),
            "spec": {
                "selector": labels(request, "server"),
                "ports": [{"name": "http", "port": port, "targetPort": "http"}],
            },
        },
    ]
