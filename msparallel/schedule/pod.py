"""The pods of a job: containers, volumes, what they are told.

In: a Plan, a Request, a command. Out: a pod template as plain values, with comments. Nothing runs through a shell:
`$(NAME)` in an argument is put in by Kubernetes from the container's environment, and a `$` of a recipe's own is
doubled.

>>> words(["msrun", Env("VC_TASK_INDEX"), "data.corpus=$HOME/x"])
['msrun', '$(VC_TASK_INDEX)', 'data.corpus=$$HOME/x']
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msparallel.launch.msrun import logs_dir, msrun_command
from msparallel.plan import Plan
from msparallel.schedule.chips import Chip
from msparallel.schedule.request import JOB_DIR, RECIPE_DIR, Request, chip_of
from msparallel.schedule.yaml_text import Noted

GRACE_S = 60
"""From SIGTERM to SIGKILL. MindCluster's grace-over-time (900) must be longer."""
SHARED_MEMORY_GIB = 8
"""Of /dev/shm for each device. Docker's default of 64 MiB is for all of a container."""
TABLE_DIR = "/user/serverid/devindex/config"
TABLE_COPY = "/run/msparallel/hccl.json"
WAIT_S = 1800

DRIVER = (
    ("driver", "/usr/local/Ascend/driver", "Directory"),
    ("dcmi", "/usr/local/dcmi", "Directory"),
    ("npu-smi", "/usr/local/bin/npu-smi", "File"),
    ("hccn", "/etc/hccn.conf", "File"),
    ("install-info", "/etc/ascend_install.info", "File"),
)
"""Of the node: volume, path, kind."""


@dataclass(frozen=True)
class Env:
    """A variable of the container, in an argument."""

    name: str


def words(parts: Sequence[str | Env]) -> list[str]:
    """Arguments as Kubernetes takes them."""
    return [f"$({part.name})" if isinstance(part, Env) else part.replace("$", "$$") for part in parts]


def in_pod(plan: Plan) -> Plan:
    """The plan, its recipe where pods have it."""
    return replace(plan, recipe=replace(plan.recipe, path=f"{RECIPE_DIR}/{plan.recipe.name}.yaml"))


def train_command(plan: Plan, *, rank: Env | str, address: Env | str, port: Env | int) -> list[str]:
    """What starts this node's part: msrun, or Python alone where there is one device."""
    plan = in_pod(plan)
    if plan.world_size == 1:
        return words(["python", "-m", "msparallel", "run", plan.recipe.path, *plan.recipe.overrides])
    parts: list[str | Env] = list(msrun_command(plan))
    shown = {_after(msrun_command(plan, node_rank=node), "--tail_worker_log") for node in range(plan.nodes)}
    for option, value in (
        ("--node_rank", rank),
        ("--master_addr", address),
        ("--master_port", port if isinstance(port, Env) else str(port)),
        ("--tail_worker_log", ",".join(sorted(shown, key=int))),  # one template for all pods: each shows its own
    ):
        parts[parts.index(option) + 1] = value
    return words(parts)


def _after(command: Sequence[str], option: str) -> str:
    return command[command.index(option) + 1]


def labels(request: Request, component: str) -> dict[str, Any]:
    """The recommended labels of Kubernetes."""
    return {
        "app.kubernetes.io/name": "msparallel",
        "app.kubernetes.io/instance": request.name,
        "app.kubernetes.io/component": component,
    }


def template(
    plan: Plan,
    request: Request,
    command: list[str],
    *,
    container: str = "ascend",
    component: str = "worker",
    ports: list[dict[str, Any]] | None = None,
    npus: bool = True,
    wait_for: str | None = None,
    extra: dict[str, Any] | None = None,
    annotations: dict[str, Any] | None = None,
    environment: list[dict[str, Any]] | None = None,
    probes: dict[str, Any] | None = None,
    grace_s: int = GRACE_S,
) -> dict[str, Any]:
    """metadata and spec of a pod.

    Args:
        container: its name.
        npus: whether it is a node of the plan, with its devices; MindSpore's scheduler is none.
        wait_for: host name that must resolve before the command starts.
        extra: further fields of the pod's spec.
        environment: further variables.
        probes: fields of the container that tell whether it is ready, whether it lives.
        grace_s: between SIGTERM and SIGKILL.
    """
    chip = chip_of(plan) if npus else None
    host = request.host_network and npus
    waits = _before_start(request, wait_for, rank_table=request.rank_table and chip is not None)
    main = _container(plan, request, command, container, chip, npus)
    variables = [*_environment(plan, request, chip, host), *(environment or [])]
    for key, value in (("env", variables), ("ports", ports), *(probes or {}).items()):
        if value:
            main[key] = value
    spec: dict[str, Any] = {
        **(extra or {}),
        "terminationGracePeriodSeconds": grace_s,
        "shareProcessNamespace": Noted(
            True, "process 1 does not hear SIGTERM unless it asks to, and msrun does not: so another one is process 1"
        ),
        "automountServiceAccountToken": Noted(False, "training has nothing to ask the API server"),
        "enableServiceLinks": False,
    }
    if host:
        spec["hostNetwork"] = True
        spec["dnsPolicy"] = Noted(
            "ClusterFirstWithHostNet", "else the names of Services are not known on the host network"
        )
    spec["nodeSelector"] = _node_selector(request, chip)
    if npus and plan.nodes > 1:
        spec["affinity"] = _apart(request)
    if waits:
        spec["initContainers"] = [waits]
    spec["containers"] = [main]
    spec["volumes"] = _volumes(plan, request, chip, npus)
    told: dict[str, Any] = {"labels": {**labels(request, component), **_ring(chip)}}
    return {"metadata": {**told, **({"annotations": annotations} if annotations else {})}, "spec": spec}


def _ring(chip: Chip | None) -> dict[str, Any]:
    return {"ring-controller.atlas": chip.ring} if chip else {}


def _container(
    plan: Plan, request: Request, command: list[str], name: str, chip: Chip | None, trains: bool
) -> dict[str, Any]:
    needs: dict[str, Any] = {"cpu": str(request.cpu)} if request.cpu and trains else {}
    if chip:
        needs[chip.resource] = plan.devices_per_node
    found: dict[str, Any] = {
        "name": name,
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "workingDir": Noted(JOB_DIR, "relative paths of the recipe begin here"),
    }
    if needs:
        found["resources"] = {"requests": needs, "limits": dict(needs)}
    found["securityContext"] = {
        "privileged": Noted(False, "device plugin and Ascend Docker Runtime hand in the devices that were asked for"),
        "allowPrivilegeEscalation": False,
    }
    mounts: list[dict[str, Any]] = [
        {"name": "recipe", "mountPath": RECIPE_DIR, "readOnly": True},
        {"name": "job", "mountPath": JOB_DIR},
    ]
    if trains:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if chip:
        mounts += [{"name": volume, "mountPath": path, "readOnly": True} for volume, path, _ in DRIVER]
        if request.rank_table:
            mounts.append({"name": "run", "mountPath": posixpath.dirname(TABLE_COPY)})
    found["volumeMounts"] = mounts
    return found


def _environment(plan: Plan, request: Request, chip: Chip | None, host: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if chip:
        found.append(
            {
                "name": "ASCEND_VISIBLE_DEVICES",
                "valueFrom": Noted(
                    {"fieldRef": {"fieldPath": f"metadata.annotations['{chip.resource}']"}},
                    "MindCluster's scheduler writes what it chose; with another one leave this out",
                ),
            }
        )
        if plan.recipe.train is not None:
            found.append(
                {
                    "name": "ASCEND_PROCESS_LOG_PATH",
                    "value": Noted(posixpath.join(JOB_DIR, str(logs_dir(plan)), "plog"), "CANN's logs outlive the pod"),
                }
            )
    elif request.cpu and plan.hardware.target == "CPU":
        share = max(1, request.cpu // plan.devices_per_node)
        found.append(
            {"name": "OMP_NUM_THREADS", "value": Noted(str(share), "else each process takes the node's cores")}
        )
    if host:
        found.append(
            {
                "name": "HCCL_IF_IP",
                "valueFrom": Noted(
                    {"fieldRef": {"fieldPath": "status.hostIP"}},
                    "only on the host network: a pod's own is not its host's",
                ),
            }
        )
    return found


def _node_selector(request: Request, chip: Chip | None) -> dict[str, Any]:
    if chip:
        return {"host-arch": f"huawei-{request.arch}", "accelerator-type": chip.accelerator}
    return {"kubernetes.io/arch": {"arm": "arm64", "x86": "amd64"}[request.arch]}


def _apart(request: Request) -> dict[str, Any]:
    """Each pod on a node of its own."""
    return {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": labels(request, "worker")}, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }


def _before_start(request: Request, wait_for: str | None, *, rank_table: bool) -> dict[str, Any] | None:
    """The container that waits for what the first does not."""
    if wait_for is None and not rank_table:
        return None
    command = ["python", "-m", "msparallel.schedule.before_start", "--wait", str(WAIT_S)]
    mounts: list[dict[str, Any]] = []
    why = []
    if wait_for is not None:
        command += ["--host", wait_for]
        why.append("msrun fails at once where its master's name does not resolve yet")
    if rank_table:
        command += ["--table", f"{TABLE_DIR}/hccl.json", "--copy", TABLE_COPY]
        mounts = [
            {"name": "rank-table", "mountPath": TABLE_DIR, "readOnly": True},
            {"name": "run", "mountPath": posixpath.dirname(TABLE_COPY)},
        ]
        why.append(
            "A rank table is `initializing` at first; in a ConfigMap's volume it is a symbolic link, which is not "
            "read as a rank table: a file is made of it"
        )
    found: dict[str, Any] = {
        "name": "before-start",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": Noted(words(command), ".\n".join(why)),
        "securityContext": {"privileged": False, "allowPrivilegeEscalation": False},
    }
    return {**found, "volumeMounts": mounts} if mounts else found


def _volumes(plan: Plan, request: Request, chip: Chip | None, trains: bool) -> list[dict[str, Any]]:
    gib = SHARED_MEMORY_GIB * plan.devices_per_node
    job = (
        {"persistentVolumeClaim": {"claimName": request.claim}}
        if request.claim
        else {"hostPath": {"path": request.host_path, "type": "Directory"}}
    )
    found: list[dict[str, Any]] = [
        {"name": "recipe", "configMap": {"name": f"{request.name}-recipe"}},
        {"name": "job", **job},
    ]
    if trains:
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{gib}Gi"}})
    for volume, path, kind in DRIVER if chip else ():
        item: Any = {"name": volume, "hostPath": {"path": path, "type": kind}}
        found.append(Noted(item, _WHY_DRIVER) if volume == "driver" else item)
    if chip and request.rank_table:
        found.append({"name": "rank-table", "configMap": {"name": f"rings-config-{request.name}"}})
        found.append({"name": "run", "emptyDir": {}})
    return found


_WHY_DRIVER = (
    "Where the runtime is Ascend Docker Runtime it mounts driver/lib64, dcmi and npu-smi itself; driver/tools and "
    "version.info, hccn.conf and ascend_install.info it does not."
)
