"""What somebody wants of a cluster for a recipe, and whether it can be had.

In: a Plan, a Request. Out: `problems`: everything that Kubernetes, Volcano, an operator or a node would refuse, each
with a value that works. Rules of chips are in `chips.py`, of names here.

>>> [problem.rule for problem in problems(plan, Request(kind="msjob", name="a_b", claim="data"))]  # doctest: +SKIP
['msjob_ascend', 'name_label']
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Literal

from msparallel.errors import Problem
from msparallel.plan import Plan
from msparallel.schedule.chips import CHIPS, Chip

Kind = Literal["vcjob", "ascendjob", "msjob", "deployment"]
JOB_DIR = "/job"
"""Where the volume with data, output and models stands in every pod; relative paths of a recipe begin there."""
RECIPE_DIR = "/etc/msparallel/recipe"
MASTER_PORT = 8118
OPERATOR_PORT = 2222
"""Both operators' default for the port of MindSpore's scheduler."""
LABEL = re.compile(r"[a-z](?:[-a-z0-9]*[a-z0-9])?")
"""RFC 1035: a job's Service has its name, and a Service may not begin with a digit."""
SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_IMAGE = re.compile(
    r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::[0-9]{1,5})?(?:/[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_FILE_NAME = re.compile(r"[-._a-zA-Z0-9]{1,248}")
_PATH = re.compile(r"(?:/[A-Za-z0-9._@+-]+)+")
MOST_LABEL = 63


@dataclass(frozen=True, kw_only=True)
class Request:
    """Attributes:
    name: of the job and of all that belongs to it.
    queue: Volcano queue.
    priority_class: None: the cluster's default.
    claim, host_path: PersistentVolumeClaim, or folder of every node, that becomes JOB_DIR; one of the two.
    host_network: pods have their node's network.
    rank_table: pods wait for MindCluster's rank table and read it.
    arch: of the nodes.
    cpu: cores of a pod, 0 for none asked for.
    retries: how often a failed or evicted job is started again.
    with_queue: the Queue and the PriorityClass are written too.
    """

    kind: Kind
    name: str
    image: str = "registry.example/msparallel:latest"
    namespace: str = "default"
    queue: str = "default"
    priority_class: str | None = None
    claim: str | None = None
    host_path: str | None = None
    host_network: bool = False
    rank_table: bool = False
    arch: Literal["arm", "x86"] = "arm"
    cpu: int = 0
    retries: int = 10
    with_queue: bool = False


def default_name(recipe_name: str) -> str:
    """A recipe's name as a label, where that is only a matter of its letters; else the name, which is then refused.

    >>> default_name("llama2_13b_dp4_tp4_pp2")
    'llama2-13b-dp4-tp4-pp2'
    """
    name = recipe_name.lower().replace("_", "-").replace(".", "-")
    return name if LABEL.fullmatch(name) else recipe_name


def chip_of(plan: Plan) -> Chip | None:
    """None for a recipe that runs on processors."""
    return CHIPS.get(plan.hardware.chip)


def pod_names(kind: Kind, name: str, nodes: int) -> list[str]:
    """The longest names of pods and of what bears a pod's name."""
    tails = {
        "vcjob": [f"-worker-{nodes - 1}", "-svc"],  # the svc plugin's volume
        "ascendjob": [f"-worker-{nodes - 1}", "-scheduler-0"],
        "msjob": [f"-worker-{nodes - 1}"],
        "deployment": ["-0123456789-01234"],  # ReplicaSet and pod
    }[kind]
    return [name + tail for tail in tails]


def problems(plan: Plan, request: Request) -> list[Problem]:
    """All that is wrong with a request."""
    return [*_kind(plan, request), *_devices(plan, request), *_names(plan, request), *_volume(plan, request)]


def _option(option: str, value: object, rule: str, message: str, suggestion: str = "") -> Problem:
    return Problem(key=option, value=value, rule=rule, message=message, suggestion=suggestion, file="command line")


def _kind(plan: Plan, request: Request) -> list[Problem]:
    kind, found = request.kind, []
    target, recipe = plan.hardware.target, plan.recipe

    def refuse(rule: str, message: str, suggestion: str) -> None:
        found.append(_option("--kind", kind, rule, message, suggestion))

    if kind == "deployment" and recipe.serve is None:
        refuse("kind_fits", f"{recipe.name} has no `serve` section: a job trains it and ends.", "--kind vcjob")
    if kind != "deployment" and recipe.train is None:
        refuse(
            "kind_fits", f"{recipe.name} has no `train` section: it serves until it is stopped.", "--kind deployment"
        )
    if kind == "msjob" and target == "Ascend":
        refuse(
            "msjob_ascend",
            "MSJob is for processors here: the samples of mindspore-ai/ms-operator are for GPU only, "
            "none asks for a huawei.com resource, and its last commit is of August 2022. MindCluster's AscendJob "
            "and Volcano's Job know Ascend.",
            "--kind ascendjob",
        )
    if kind == "msjob" and plan.nodes > 1:
        refuse(
            "msjob_nodes",
            f"{plan.nodes} nodes: ms-operator counts a pod as one process and tells no pod which node "
            "it is, so only a job of one pod can be started by msrun.",
            "--kind vcjob",
        )
    if kind == "ascendjob" and target != "Ascend":
        refuse(
            "ascendjob_cpu",
            "ascend-operator tells pods where the scheduler is only if they ask for NPUs; this recipe "
            "runs on processors.",
            "--kind vcjob",
        )
    if kind == "deployment" and plan.nodes > 1:
        refuse(
            "deployment_nodes",
            f"{plan.nodes} nodes: the pods of a Deployment are copies of one another, not the parts of one server.",
            f"cluster.nodes=1 cluster.devices_per_node={plan.world_size}"
            if plan.world_size <= plan.hardware.devices_per_node
            else "",
        )
    if request.rank_table and (target != "Ascend" or kind not in ("vcjob", "ascendjob")):
        found.append(
            _option(
                "--rank-table",
                True,
                "rank_table_ascend",
                "ascend-operator makes rank tables for AscendJobs and Volcano jobs with NPUs. Leave --rank-table out.",
            )
        )
    if request.host_network and kind in ("msjob", "deployment"):
        found.append(
            _option(
                "--host-network",
                True,
                "host_network_kind",
                f"A {kind} here is one pod behind its own "
                "address and gains nothing by its node's. Leave --host-network out.",
            )
        )
    return found


def _devices(plan: Plan, request: Request) -> list[Problem]:
    chip, count = chip_of(plan), plan.devices_per_node
    if chip is None:
        return []
    allowed = chip.alone if plan.nodes == 1 else chip.together
    if count in allowed:
        return []
    total = plan.world_size
    fits = [(n, total // n) for n in chip.together if total % n == 0 and total > n]
    if total in chip.alone:
        fits.append((total, 1))
    fits.sort(key=lambda fit: (abs(fit[0] - count), fit[1]))
    told = ", ".join(map(str, allowed))
    message = (
        f"{count} devices a pod on {plan.nodes} node{'s' * (plan.nodes > 1)}: MindCluster schedules {told} of "
        f"{plan.hardware.chip} to a pod of such a job, since {chip.why}."
    )
    if not fits:
        message += f" {total} devices cannot be had so; change a degree."
    key = "cluster.devices_per_node"
    suggestion = f"cluster.nodes={fits[0][1]} {key}={fits[0][0]}" if fits else ""
    return [plan.recipe.problem("devices_a_pod", key, message, suggestion)]


def _names(plan: Plan, request: Request) -> list[Problem]:
    found = []
    if not _FILE_NAME.fullmatch(plan.recipe.name):
        found.append(
            Problem(
                key="recipe",
                value=plan.recipe.path,
                rule="recipe_file_name",
                message="The recipe becomes a file of a ConfigMap, whose names have letters, digits, dots, dashes and "
                "underscores. Rename it.",
                file=plan.recipe.path,
            )
        )
    name = request.name
    if not LABEL.fullmatch(name):
        better = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].rstrip("-")
        better = better if LABEL.fullmatch(better) else f"job-{better}".rstrip("-")
        found.append(
            _option(
                "--name",
                name,
                "name_label",
                "The name of a job is the name of its Service: small letters, "
                "digits and dashes, from a letter to a letter or digit (RFC 1035).",
                f"--name {better}",
            )
        )
    else:
        longest = max(pod_names(request.kind, name, plan.nodes), key=len)
        if len(longest) > MOST_LABEL:
            room = MOST_LABEL - (len(longest) - len(name))
            found.append(
                _option(
                    "--name",
                    name,
                    "name_length",
                    f"{longest} has {len(longest)} characters; a pod's name "
                    f"is a host name of at most {MOST_LABEL}. {room} are left for the job's.",
                    f"--name {name[:room].rstrip('-')}",
                )
            )
    for option, value, most in (
        ("--namespace", request.namespace, MOST_LABEL),
        ("--queue", request.queue, 253),
        ("--priority-class", request.priority_class, 253),
        ("--pvc", request.claim, 253),
    ):
        pattern = LABEL if option == "--namespace" else SUBDOMAIN
        if value is not None and (not pattern.fullmatch(value) or len(value) > most):
            found.append(
                _option(option, value, "object_name", f"Small letters, digits and dashes, at most {most} (RFC 1123).")
            )
    if request.queue == "root":
        found.append(
            _option("--queue", "root", "root_queue", "Volcano refuses jobs in the root queue.", "--queue default")
        )
    if not _IMAGE.fullmatch(request.image) or len(request.image) > 512:
        found.append(
            _option(
                "--image",
                request.image,
                "image_name",
                "REGISTRY/NAME:TAG, or NAME@sha256:DIGEST, in small letters but for the tag.",
                "--image registry.example/msparallel:latest",
            )
        )
    if request.with_queue and request.queue == "default":
        found.append(
            _option(
                "--with-queue",
                True,
                "default_queue",
                "Volcano makes the queue `default` itself; name the one that is to be made.",
                "--with-queue --queue train",
            )
        )
    return found


def _volume(plan: Plan, request: Request) -> list[Problem]:
    found = []
    if (request.claim is None) == (request.host_path is None):
        what = "is gone with its pod" if request.claim is None else "is on one volume"
        found.append(
            _option(
                "--pvc",
                request.claim,
                "one_volume",
                f"Output {what}: checkpoints, data and models stand in "
                f"{JOB_DIR}, on a PersistentVolumeClaim that all pods share (--pvc) or in a folder that is "
                "the same on all nodes (--host-path); one of the two.",
                "--pvc msparallel-data",
            )
        )
    path = request.host_path
    if path is not None and (not _PATH.fullmatch(path) or ".." in path.split("/") or len(path) > 1024):
        found.append(
            _option(
                "--host-path",
                path,
                "host_path",
                "An absolute path without `..`, of letters, digits and ._@+- .",
                "--host-path /mnt/msparallel",
            )
        )
    output = plan.recipe.train.output_dir if plan.recipe.train else None
    if output is not None and posixpath.normpath(posixpath.join(JOB_DIR, output)).split("/")[1:2] != [JOB_DIR[1:]]:
        found.append(
            plan.recipe.problem(
                "output_on_volume",
                "train.output_dir",
                f"Outside of {JOB_DIR}, the volume: checkpoints would be gone with their pod.",
                "train.output_dir=output",
            )
        )
    return found
