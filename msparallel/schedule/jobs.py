"""A recipe as a job: Volcano's Job, MindCluster's AscendJob, MSJob.

In: a Plan, a Request without problems. Out: the documents of its manifest, in the order in which they are applied.

What each tells its pods (sources: volcano-sh/volcano pkg/controllers/job/plugins/{env,svc}; Ascend/mind-cluster
component/ascend-operator/pkg/controllers/v1/{env,pod}.go; mindspore-ai/ms-operator pkg/controllers/v1): Volcano
VC_TASK_INDEX, and a Service so that pod i is NAME-worker-i.NAME; ascend-operator MS_SCHED_HOST (the address of a
Service), MS_SCHED_PORT, MS_WORKER_NUM, MS_NODE_RANK and MS_ROLE, all of them only where there is a Scheduler.
"""

from __future__ import annotations

from typing import Any

from msparallel.launch.msrun import CLUSTER_TIMEOUT_S
from msparallel.plan import Plan
from msparallel.schedule.chips import super_pod_block
from msparallel.schedule.pod import TABLE_COPY, Env, in_pod, labels, template, train_command, words
from msparallel.schedule.request import MASTER_PORT, OPERATOR_PORT, Request, chip_of
from msparallel.schedule.yaml_text import Noted


def job_documents(plan: Plan, request: Request, recipe_text: str) -> list[Any]:
    """ConfigMaps, Service where one is needed, and the job."""
    found: list[Any] = [recipe_map(plan, request, recipe_text)]
    if request.rank_table:
        found.append(_rank_table_map(plan, request))
    if request.kind == "ascendjob":
        return [*found, *_ascendjob(plan, request)]
    return [*found, _vcjob(plan, request) if request.kind == "vcjob" else _msjob(plan, request)]


def metadata(request: Request, component: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    """metadata of an object that belongs to the job."""
    return {
        "name": name or request.name,
        "namespace": request.namespace,
        "labels": {**labels(request, component), **more},
    }


def recipe_map(plan: Plan, request: Request, text: str) -> dict[str, Any]:
    """The recipe, as it was written."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(request, "recipe", f"{request.name}-recipe"),
        "data": {f"{plan.recipe.name}.yaml": text},
    }


def _rank_table_map(plan: Plan, request: Request) -> dict[str, Any]:
    chip = chip_of(plan)
    assert chip is not None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": Noted(f"rings-config-{request.name}", "ascend-operator looks for this name and fills it in"),
            "namespace": request.namespace,
            "labels": {"ring-controller.atlas": chip.ring},
        },
        "data": {"hccl.json": '{\n    "status": "initializing"\n}\n'},
    }


def _job_labels(plan: Plan, request: Request) -> dict[str, Any]:
    chip = chip_of(plan)
    if chip is None:
        return {}
    found: dict[str, Any] = {
        "ring-controller.atlas": chip.ring,
        "fault-scheduling": Noted(
            "grace", "MindCluster: a pod on a device that fails is deleted, with its time to end"
        ),
    }
    if chip.retries:
        found["fault-retry-times"] = Noted(str(request.retries), "and a job whose process failed starts again")
    return found


def _job_annotations(plan: Plan) -> dict[str, Any]:
    chip = chip_of(plan)
    if chip is None or not chip.block:
        return {}
    block = super_pod_block(plan.world_size, chip)
    return {"annotations": {"sp-block": Noted(str(block), "devices that share a SuperPoD")}}


def _with_table(request: Request, command: list[str]) -> list[str]:
    """msrun sets RANK_TABLE_FILE for its workers."""
    if not request.rank_table or command[0] != "msrun":
        return command
    return [command[0], "--rank_table_file", TABLE_COPY, *command[1:]]


def _vcjob(plan: Plan, request: Request) -> dict[str, Any]:
    several = plan.nodes > 1
    master = f"{request.name}-worker-0.{request.name}" if several else "127.0.0.1"
    rank = Env("VC_TASK_INDEX") if several else "0"
    command = _with_table(request, train_command(plan, rank=rank, address=master, port=MASTER_PORT))
    pods = template(plan, request, command, wait_for=master if several else None, extra={"restartPolicy": "Never"})
    plugins: dict[str, Any] = {
        "env": Noted([], "VC_TASK_INDEX: which pod of the task this is"),
        "svc": Noted(["--publish-not-ready-addresses=true"], "pod 0's name is known before pod 0 is ready"),
    }
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": request.queue,
        **({"priorityClassName": request.priority_class} if request.priority_class else {}),
        "minAvailable": Noted(plan.nodes, "all pods or none: a part of them would wait for the rest and hold devices"),
        "maxRetry": Noted(request.retries, "failures and evictions together; then the job has failed"),
        **({"plugins": plugins} if several else {}),
        "policies": Noted(
            [{"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"}],
            "ranks cannot go on without one another; all start again, and go on from the last checkpoint",
        ),
        "tasks": [
            {
                "name": "worker",
                "replicas": plan.nodes,
                "minAvailable": plan.nodes,
                "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
                "template": pods,
            }
        ],
    }
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {**metadata(request, "job", **_job_labels(plan, request)), **_job_annotations(plan)},
        "spec": spec,
    }


def _ascendjob(plan: Plan, request: Request) -> list[dict[str, Any]]:
    alone = plan.world_size == 1  # the operator then needs no scheduler, and sets no variables
    head = f"{request.name}.{request.namespace}"
    host: Env | str = head if request.host_network and not alone else Env("MS_SCHED_HOST")
    command = train_command(plan, rank=Env("MS_NODE_RANK"), address=host, port=Env("MS_SCHED_PORT"))
    worker = template(plan, request, _with_table(request, command), wait_for=head if host == head else None)
    replicas: dict[str, Any] = {}
    documents: list[dict[str, Any]] = []
    if not alone:
        replicas["Scheduler"] = Noted(
            _replica(1, _scheduler(plan, request)), "MindSpore's scheduler, which has no use for devices"
        )
    if host == head:
        documents.append(_scheduler_service(request))
    replicas["Worker"] = _replica(plan.nodes, worker)
    policy: dict[str, Any] = {
        "minAvailable": Noted(plan.nodes + (not alone), "all pods or none"),
        "queue": request.queue,
        **({"priorityClass": request.priority_class} if request.priority_class else {}),
    }
    documents.append(
        {
            "apiVersion": "mindxdl.gitee.com/v1",
            "kind": "AscendJob",
            "metadata": {
                **metadata(request, "job", framework="mindspore", **_job_labels(plan, request)),
                **_job_annotations(plan),
            },
            "spec": {
                "schedulerName": "volcano",
                "runPolicy": {
                    "backoffLimit": request.retries,
                    "schedulingPolicy": Noted(policy, "read where ascend-operator runs with gang scheduling on"),
                },
                "successPolicy": "AllWorkers",
                "replicaSpecs": replicas,
            },
        }
    )
    return documents


def _replica(count: int, pods: dict[str, Any]) -> dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": Noted("Never", "the job starts again, not a single pod"),
        "template": pods,
    }


def _scheduler(plan: Plan, request: Request) -> dict[str, Any]:
    recipe = in_pod(plan).recipe
    command = words(["python", "-m", "msparallel.launch.worker", recipe.path, *recipe.overrides])
    port = {"name": "ascendjob-port", "containerPort": OPERATOR_PORT}
    waits = {"name": "MS_TOPO_TIMEOUT", "value": Noted(str(CLUSTER_TIMEOUT_S), "as long as msrun's --cluster_time_out")}
    return template(plan, request, command, component="scheduler", npus=False, ports=[port], environment=[waits])


def _scheduler_service(request: Request) -> dict[str, Any]:
    """On the host network a Service's address must not be used: with kube-proxy in IPVS mode it is an address of every
    node, so that every msrun would take its own node for the master. A Service without one gives the pod's."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(request, "scheduler"),
        "spec": {
            "clusterIP": Noted(
                "None",
                "the name resolves to the scheduler pod itself. An address of a Service is local to "
                "every node where kube-proxy runs in IPVS mode, and msrun would be master on each",
            ),
            "publishNotReadyAddresses": True,
            "selector": labels(request, "scheduler"),
            "ports": [{"name": "scheduler", "port": OPERATOR_PORT}],
        },
    }


def _msjob(plan: Plan, request: Request) -> dict[str, Any]:
    command = train_command(plan, rank="0", address="127.0.0.1", port=MASTER_PORT)
    pods = template(plan, request, command, container="mindspore")
    del pods["metadata"]  # its CRD knows no field of it, so the API server would drop them
    return {
        "apiVersion": "mindspore.gitee.com/v1",
        "kind": "MSJob",
        "metadata": metadata(request, "job"),
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": request.retries},
            "successPolicy": "AllWorkers",
            "msReplicaSpecs": {"Worker": {"replicas": 1, "restartPolicy": "OnFailure", "template": pods}},
        },
    }
