"""A recipe's server as a Deployment that waits in a queue and gives way.

In: a Plan with a `serve` section, a Request. Out: the recipe's ConfigMap, a Deployment, a Service. Its pods are
scheduled by Volcano, which puts pods without a job into a group of their own and reads their queue from an annotation
(source: volcano-sh/volcano pkg/controllers/podgroup).
"""

from __future__ import annotations

import math
from typing import Any

from msparallel.plan import Plan
from msparallel.schedule.jobs import metadata, recipe_map
from msparallel.schedule.pod import in_pod, labels, template, words
from msparallel.schedule.request import Request
from msparallel.schedule.yaml_text import Noted

ENDS_S = 30
"""Of a server after serve.drain_s: answers are told that it ends, the engine gives its devices back."""


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
        probes={
            "readinessProbe": Noted(
                {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 5},
                "the port is open while weights are loaded and graphs compiled, without taking requests",
            ),
            "livenessProbe": Noted(
                {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 10, "timeoutSeconds": 5},
                "also 200 while it loads; 503 where the engine has ended, and a restart is the remedy",
            ),
        },
        grace_s=math.ceil(recipe.serve.drain_s) + ENDS_S,
        environment=[
            {
                "name": "MSPARALLEL_API_KEYS",
                "valueFrom": {
                    "secretKeyRef": Noted(
                        {"name": f"{request.name}-keys", "key": "keys", "optional": True},
                        "keys of clients, separated by commas; without this Secret none is asked for",
                    )
                },
            }
        ],
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
