"""What Volcano's admission refuses of a Job, and the webhook's schema does not.

In: a Document of batch.volcano.sh. Out: Problems. Source: volcano-sh/volcano pkg/webhooks/admission/jobs/validate
(admit_job.go, util.go) and installer/helm/chart/volcano/policy/jobs-validating.yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from msparallel.errors import Problem, short
from msparallel.schedule.pod_rules import has_npus
from msparallel.schedule.read_manifest import Document, Path, dotted
from msparallel.schedule.request import MOST_LABEL
from msparallel.schedule.rule import number

EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "Unknown", "TaskCompleted", "TaskFailed", "JobUpdated")
ACTIONS = (
    "AbortJob",
    "RestartJob",
    "RestartTask",
    "RestartPod",
    "RestartPartition",
    "TerminateJob",
    "CompleteJob",
    "ResumeJob",
)
PLUGINS = ("env", "svc", "ssh", "pytorch", "tensorflow", "mpi", "ray", "hcclrank")


def volcano_job(job: Document) -> Iterator[Problem]:
    """All rules of a Job."""
    tasks = job.items("spec", "tasks")
    if not tasks:
        yield job.problem(("spec", "tasks"), "no_task", "A Job has at least one task.")
    yield from _replicas(job, tasks)
    yield from _task_names(job, tasks)
    yield from policies(job, ("spec", "policies"))
    for path, _ in tasks:
        yield from policies(job, (*path, "policies"))
        if job.get(*path, "template", "spec", "restartPolicy") not in ("Never", "OnFailure"):
            yield job.problem(
                (*path, "template", "spec", "restartPolicy"),
                "restart_policy_always",
                "Always, which is the default: the kubelet starts a failed container again in its pod, the "
                "pod never fails, and no policy hears of it.",
                "restartPolicy: Never",
            )
    yield from _plugins(job)
    yield from _volumes(job)
    yield from _dependencies(job, tasks)
    if job.get("spec", "queue") == "root":
        yield job.problem(("spec", "queue"), "root_queue", "Jobs are not taken in the root queue.", "queue: default")


def _replicas(job: Document, tasks: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    total = 0
    for path, task in tasks:
        replicas = number(task.get("replicas", 0))
        least = number(task.get("minAvailable"))
        if replicas is None:
            continue
        total += replicas
        if replicas < 0:
            yield job.problem((*path, "replicas"), "replicas_negative", "At least 0 pods.", "replicas: 1")
        if least is not None and least > replicas:
            yield job.problem(
                (*path, "minAvailable"),
                "task_min_available",
                f"More than the task's {replicas} replica{'s' * (replicas != 1)}.",
                f"minAvailable: {replicas}",
            )
    for where in (("spec",), *(path for path, _ in tasks)):
        if (least := number(job.get(*where, "minAvailable"))) is not None and least < 0:
            yield job.problem(
                (*where, "minAvailable"), "min_available_negative", "At least 0.", f"minAvailable: {total}"
            )
    least = number(job.get("spec", "minAvailable"))
    if least is not None and tasks and least > total:
        yield job.problem(
            ("spec", "minAvailable"),
            "min_available",
            f"The tasks have {total} replica{'s' * (total != 1)} together; the job could never begin.",
            f"minAvailable: {total}",
        )
    elif (
        least is not None and 0 < least < total and any(has_npus(job, (*path, "template", "spec")) for path, _ in tasks)
    ):
        yield job.problem(
            ("spec", "minAvailable"),
            "gang_partial",
            f"{least} of {total} pods are enough to start the "
            "job: they hold devices while they wait for ranks that may never come.",
            f"minAvailable: {total}",
        )


def _task_names(job: Document, tasks: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    seen: dict[str, Path] = {}
    for at, (path, task) in enumerate(tasks):
        name = task.get("name", f"default{at}")
        if not isinstance(name, str):
            continue
        if name in seen:
            yield job.problem(
                (*path, "name"),
                "duplicate_task",
                f"{dotted(seen[name])} has this name too; each task has its own.",
                f"name: {name[:40]}-{at}",
            )
        seen.setdefault(name, path)
        replicas = number(task.get("replicas")) or 1
        pod = f"{job.name}-{name}-{max(0, replicas - 1)}"
        if len(pod) > MOST_LABEL:
            yield job.problem(
                (*path, "name"),
                "pod_name_length",
                f"Its last pod is {short(pod, 300)}: {len(pod)} "
                f"characters, and a pod of a Job has {MOST_LABEL} at most.",
            )


def policies(job: Document, where: Path) -> Iterator[Problem]:
    """Rules of a list of policies, of a job or a task."""
    events: dict[str, Path] = {}
    codes: dict[int, Path] = {}
    for path, policy in job.items(*where):
        listed = policy.get("events") if isinstance(policy.get("events"), list) else []
        named = dict.fromkeys(one for one in [*listed, policy.get("event")] if isinstance(one, str) and one)
        code = number(policy.get("exitCode"))
        if named and code is not None:
            yield job.problem((*path, "exitCode"), "policy_both", "A policy has events or an exitCode, not both.")
        if not named and code is None:
            yield job.problem(path, "policy_neither", "A policy has an event or an exitCode.", "event: PodFailed")
        yield from _words(job, path, policy, list(named))
        for event in named:
            if event in events:
                yield job.problem(
                    (*path, "event" if policy.get("event") == event else "events"),
                    "duplicate_event",
                    f"{event} is in {dotted(events[event])} too; an event has one action.",
                )
            events.setdefault(event, path)
        if code == 0:
            yield job.problem((*path, "exitCode"), "policy_code_zero", "0 is success and no code of an error.")
        elif code is not None and code in codes:
            yield job.problem((*path, "exitCode"), "duplicate_code", f"{dotted(codes[code])} has {code} too.")
        if code is not None:
            codes.setdefault(code, path)
    if "*" in events and len(events) > 1:
        yield job.problem(
            events["*"],
            "any_event",
            f"`*` is every event, so no other may be named beside it: {', '.join(sorted(set(events) - {'*'}))}.",
        )


def _words(job: Document, path: Path, policy: dict[str, Any], events: list[str]) -> Iterator[Problem]:
    for event in events:
        if event not in EVENTS:
            near = get_close_matches(event, EVENTS, n=1)
            yield job.problem(
                (*path, "event" if "event" in policy else "events"),
                "policy_event",
                f"{short(event, 40)} is no event of a policy; those are {', '.join(EVENTS)}.",
                f"event: {near[0]}" if near else "",
            )
    action = policy.get("action")
    if action not in ACTIONS:
        near = get_close_matches(str(action), ACTIONS, n=1)
        yield job.problem(
            (*path, "action"),
            "policy_action",
            f"The actions of a policy are {', '.join(ACTIONS)}.",
            f"action: {near[0] if near else 'RestartJob'}",
        )


def _plugins(job: Document) -> Iterator[Problem]:
    for name in job.mapping("spec", "plugins"):
        if name not in PLUGINS:
            near = get_close_matches(name, PLUGINS, n=1)
            yield job.problem(
                ("spec", "plugins", name),
                "plugin",
                f"Volcano has no such plugin of jobs; it has {', '.join(PLUGINS)}.",
                f"{near[0]}: []" if near else "",
            )


def _volumes(job: Document) -> Iterator[Problem]:
    seen: set[str] = set()
    for path, volume in job.items("spec", "volumes"):
        mount = volume.get("mountPath")
        if not mount:
            yield job.problem((*path, "mountPath"), "volume_mount_path", "A volume of a Job has a mountPath.")
        elif isinstance(mount, str):
            if mount in seen:
                yield job.problem((*path, "mountPath"), "volume_twice", "Another volume is mounted there.")
            seen.add(mount)
        named, made = volume.get("volumeClaimName"), volume.get("volumeClaim")
        if bool(named) == (made is not None):
            yield job.problem(
                path,
                "volume_claim",
                "A volume of a Job has volumeClaimName, for a claim that exists, or "
                "volumeClaim, for one that is made: one of the two.",
            )


def _dependencies(job: Document, tasks: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    """Tasks that wait for one another must not wait in a circle."""
    names = {task["name"]: path for path, task in tasks if isinstance(task.get("name"), str)}
    waits: dict[str, list[str]] = {}
    for name, path in names.items():
        listed = job.get(*path, "dependsOn", "name")
        waits[name] = [one for one in listed if isinstance(one, str)] if isinstance(listed, list) else []
        for one in waits[name]:
            if one not in names:
                yield job.problem((*path, "dependsOn", "name"), "depends_on", f"There is no task {short(one, 63)}.")
    left = {name: {one for one in needed if one in names} for name, needed in waits.items()}
    while ready := [name for name, needed in left.items() if not needed]:
        for name in ready:
            del left[name]
        for needed in left.values():
            needed.difference_update(ready)
    if left:
        first = next(iter(left))
        yield job.problem(
            (*names[first], "dependsOn"),
            "depends_circle",
            f"These tasks wait for one another: {short(', '.join(left), 200)}.",
        )
