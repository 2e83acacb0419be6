"""What ascend-operator and ms-operator refuse, or take and never start.

In: a Document of an AscendJob or MSJob. Out: Problems. Sources: Ascend/mind-cluster component/ascend-operator
pkg/controllers/v1/ascendjob_validate.go and pkg/api/v1; mindspore-ai/ms-operator pkg/apis/v1 and its CRD.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from msparallel.errors import Problem, short
from msparallel.schedule.pod_rules import has_npus, npus
from msparallel.schedule.read_manifest import Document, Path
from msparallel.schedule.request import LABEL, MOST_LABEL
from msparallel.schedule.rule import number, whole

LEADERS = {"mindspore": "Scheduler", "pytorch": "Master", "tensorflow": "Chief"}
RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
MOST_REPLICAS = 20_000
Replica = tuple[str, Path, int]
"""Its type, its path, how many."""


def ascendjob(job: Document) -> Iterator[Problem]:
    """All rules of an AscendJob."""
    replicas = _replicas(job, "replicaSpecs")
    framework = job.get("metadata", "labels", "framework")
    framework = framework if isinstance(framework, str) else None
    if framework not in LEADERS:
        yield job.problem(
            ("metadata", "labels", "framework"),
            "framework",
            f"The operator reads what the job is from this label: {', '.join(LEADERS)}.",
            "framework: mindspore",
        )
    leader = LEADERS.get(str(framework), "Scheduler")
    yield from _types(job, replicas, "replicaSpecs", (leader, "Worker"))
    yield from _counts(job, replicas, leader)
    yield from _containers(job, replicas, "ascend", "ascendjob-port")
    yield from _leader(job, replicas, framework, leader)
    yield from _gang(job, replicas)
    policy = job.get("spec", "successPolicy")
    if policy is not None and policy not in ("", "AllWorkers"):
        yield job.problem(
            ("spec", "successPolicy"), "success_policy", 'Either "" or AllWorkers.', "successPolicy: AllWorkers"
        )
    scheduler = job.get("spec", "schedulerName")
    if scheduler not in (None, "", "volcano"):
        yield job.problem(
            ("spec", "schedulerName"),
            "scheduler_name",
            "Pods of NPUs are placed by MindCluster's plugin of Volcano.",
            "schedulerName: volcano",
        )
    for kind, path, _ in replicas:
        spec: Path = (*path, "template", "spec")
        told = {
            variable.get("name")
            for container, _ in job.items(*spec, "containers")
            for _, variable in job.items(*container, "env")
            if isinstance(variable.get("name"), str)
        }
        if job.get(*spec, "hostNetwork") is True and has_npus(job, spec) and "HCCL_IF_IP" not in told:
            yield job.problem(
                (*spec, "hostNetwork"),
                "hccl_if_ip_missing",
                f"Pods of {short(kind, 40)} are on the host "
                "network: MindCluster wants HCCL_IF_IP from status.hostIP there.",
            )


def msjob(job: Document) -> Iterator[Problem]:
    """All rules of an MSJob."""
    replicas = _replicas(job, "msReplicaSpecs")
    yield from _types(job, replicas, "msReplicaSpecs", ("Scheduler", "PS", "Worker"))
    yield from _counts(job, replicas, "Scheduler")
    yield from _containers(job, replicas, "mindspore", "msjob-port")
    for kind, path, _ in replicas:
        if job.mapping(*path, "template", "metadata"):
            yield job.problem(
                (*path, "template", "metadata"),
                "metadata_dropped",
                "The CRD of MSJob knows no field here, so the API server drops labels and annotations without a word.",
            )
        if has_npus(job, (*path, "template", "spec")):
            yield job.problem(
                (*path, "template", "spec"),
                "msjob_devices",
                f"{short(kind, 40)} asks for NPUs: ms-operator's "
                "own samples are for GPU only, and it has not changed since August 2022; an AscendJob or a "
                "Volcano Job is made for them.",
            )


def _replicas(job: Document, field: str) -> list[Replica]:
    return [
        (
            kind,
            ("spec", field, kind),
            count if (count := number(job.get("spec", field, kind, "replicas"))) is not None else 1,
        )
        for kind in job.mapping("spec", field)
    ]


def _types(job: Document, replicas: list[Replica], field: str, known: tuple[str, ...]) -> Iterator[Problem]:
    if not replicas:
        yield job.problem(("spec", field), "no_replicas", f"A job has at least one of {', '.join(known)}.")
    for kind, path, _ in replicas:
        same = next((one for one in known if one.lower() == kind.lower()), None)
        if same is None:
            near = get_close_matches(kind, known, n=1, cutoff=0.3)
            yield job.problem(
                path,
                "replica_type",
                f"{short(kind, 40)} is no kind of pod of such a job: {', '.join(known)}.",
                near[0] if near else "",
            )
        policy = job.get(*path, "restartPolicy")
        if policy is not None and policy not in RESTARTS:
            yield job.problem(
                (*path, "restartPolicy"), "restart_policy", f"One of {', '.join(RESTARTS)}.", "restartPolicy: Never"
            )


def _counts(job: Document, replicas: list[Replica], leader: str) -> Iterator[Problem]:
    for kind, path, count in replicas:
        if not 0 <= count <= MOST_REPLICAS:
            yield job.problem((*path, "replicas"), "replica_count", f"From 0 to {MOST_REPLICAS:,}.", "replicas: 1")
        elif kind.lower() == leader.lower() and count != 1:
            yield job.problem((*path, "replicas"), "one_leader", f"A job has one {leader}.", "replicas: 1")
        pod = f"{job.name}-{kind.lower()}-{max(0, min(count, MOST_REPLICAS) - 1)}"
        if len(pod) > MOST_LABEL:
            yield job.problem(
                ("metadata", "name"),
                "pod_name_length",
                f"A pod would be {short(pod, 300)}: {len(pod)} "
                f"characters; host names and labels have {MOST_LABEL} at most.",
            )
    if job.name and not LABEL.fullmatch(job.name):
        yield job.problem(
            ("metadata", "name"),
            "service_name",
            "The operator makes a Service of this name, which has small "
            "letters, digits and dashes and begins with a letter (RFC 1035).",
        )


def _containers(job: Document, replicas: list[Replica], name: str, port: str) -> Iterator[Problem]:
    for _, path, _ in replicas:
        spec: Path = (*path, "template", "spec")
        containers = job.items(*spec, "containers")
        named = [(where, one) for where, one in containers if one.get("name") == name]
        if not named:
            where: Path = (*containers[0][0], "name") if containers else (*spec, "containers")
            yield job.problem(
                where,
                "operator_container",
                f"The operator looks for a container named {name}: it sets that one's variables.",
                f"name: {name}",
            )
        for where, container in named:
            if not container.get("image"):
                yield job.problem((*where, "image"), "no_image", "The container has no image.")
            for place, entry in job.items(*where, "ports"):
                if entry.get("containerPort") == 2222 and entry.get("name") != port:
                    yield job.problem(
                        (*place, "name"),
                        "port_name",
                        "The operator knows the port of MindSpore's scheduler "
                        f"by its name, and would add 2222 once more as {port}.",
                        f"name: {port}",
                    )


def _leader(job: Document, replicas: list[Replica], framework: Any, leader: str) -> Iterator[Problem]:
    led = [(path, kind) for kind, path, _ in replicas if kind.lower() == leader.lower()]
    if not led and replicas:
        devices = sum(
            count * (whole(one) or 0)
            for kind, path, count in replicas
            if kind.lower() == "worker"
            for container, _ in job.items(*path, "template", "spec", "containers")
            for one in npus(job, container).values()
        )
        if framework != "mindspore":
            yield job.problem(("spec", "replicaSpecs"), "no_leader", f"A job of this framework has a {leader}.")
        elif devices > 1:
            yield job.problem(
                ("spec", "replicaSpecs"),
                "no_scheduler",
                f"{devices} devices without a Scheduler; only a job of one device has none.",
            )
    for path, _ in led if framework == "mindspore" else ():
        if has_npus(job, (*path, "template", "spec")):
            yield job.problem(
                path,
                "scheduler_has_devices",
                "The Scheduler asks for devices: its pod is then node 0 and must "
                "train as well, and Workers count from 1.",
            )


def _gang(job: Document, replicas: list[Replica]) -> Iterator[Problem]:
    path: Path = ("spec", "runPolicy", "schedulingPolicy", "minAvailable")
    least, total = number(job.get(*path)), sum(count for _, _, count in replicas)
    if least is None or not replicas:
        return
    if least > total:
        yield job.problem(
            path,
            "min_available",
            f"The job has {total} pod{'s' * (total != 1)}; it would never be scheduled.",
            f"minAvailable: {total}",
        )
    elif least < total:
        yield job.problem(
            path,
            "gang_partial",
            f"{least} of {total} pods are enough to start the job: they hold devices "
            "while they wait for ranks that may never come.",
            f"minAvailable: {total}",
        )
