"""Rules of pods, whoever starts them: devices, mounts, names.

In: a Document of any kind. Out: Problems. Sources: Kubernetes' own validation of names and extended resources
(kubernetes.io, Managing Resources; Object Names and IDs), Ascend/mind-cluster's task YAML description for devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from msparallel.errors import Problem, short
from msparallel.schedule.chips import CHIPS, PREFIX, RESOURCES
from msparallel.schedule.read_manifest import Document, Path
from msparallel.schedule.request import MOST_LABEL, SUBDOMAIN
from msparallel.schedule.rule import whole

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"(?:[a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_FIELD = re.compile(r"metadata\.annotations\['([^']*)'\]")
_SECRET = re.compile(r"(?i)passw|secret|token|api_?key|credential")
_TABLE = "rings-config-"
MOST_ON_A_NODE = 16
CLUSTER_SCOPED = {("scheduling.volcano.sh", "Queue"), ("scheduling.k8s.io", "PriorityClass")}
_TEMPLATES: dict[tuple[str, str], tuple[str, ...]] = {
    ("", "Pod"): (),
    ("apps", "Deployment"): ("spec", "template"),
    ("apps", "StatefulSet"): ("spec", "template"),
    ("apps", "DaemonSet"): ("spec", "template"),
    ("batch", "Job"): ("spec", "template"),
}


def pod_templates(document: Document) -> list[Path]:
    """Paths of what has metadata and spec of a pod."""
    key = (document.api, document.kind)
    if key in _TEMPLATES:
        return [_TEMPLATES[key]]
    if key == ("batch.volcano.sh", "Job"):
        return [(*path, "template") for path, _ in document.items("spec", "tasks")]
    field = {
        ("mindxdl.gitee.com", "AscendJob"): "replicaSpecs",
        ("mindspore.gitee.com", "MSJob"): "msReplicaSpecs",
    }.get(key)
    return [("spec", field, kind, "template") for kind in document.mapping("spec", field)] if field else []


def names(document: Document) -> Iterator[Problem]:
    """Rules of metadata, the object's and its pods'."""
    if not document.get("kind") or not document.get("apiVersion"):
        yield document.problem((), "no_kind", "An object has kind and apiVersion.")
        return
    name = document.get("metadata", "name")
    if not isinstance(name, str) or not SUBDOMAIN.fullmatch(name) or len(name) > 253:
        near = re.sub(r"[^a-z0-9.]+", "-", str(name or "").lower()).strip("-.")[:60].strip("-.")
        yield document.problem(
            ("metadata", "name"),
            "name",
            "An object has a name of small letters, digits, dashes and dots, at most 253 characters.",
            f"name: {near}" if near else "",
        )
    space = document.get("metadata", "namespace")
    if (document.api, document.kind) in CLUSTER_SCOPED:
        if space is not None:
            yield document.problem(
                ("metadata", "namespace"),
                "namespace_ignored",
                f"A {document.kind} belongs to the whole cluster; it has no namespace.",
            )
    elif space is not None and (not isinstance(space, str) or not _NAME.fullmatch(space) or len(space) > MOST_LABEL):
        yield document.problem(
            ("metadata", "namespace"),
            "namespace",
            f"Small letters, digits and dashes, at most {MOST_LABEL} characters.",
        )
    for path in [(), *pod_templates(document)]:
        yield from _labels(document, (*path, "metadata", "labels"))


def _labels(document: Document, path: Path) -> Iterator[Problem]:
    for key, value in document.mapping(*path).items():
        if not _LABEL_KEY.fullmatch(key):
            yield document.problem(
                (*path, key),
                "label_key",
                "A label is NAME or PREFIX/NAME; the name has letters, digits, "
                f"dashes, dots and underscores, at most {MOST_LABEL}.",
            )
        if not isinstance(value, str):
            yield document.problem(
                (*path, key), "label_text", "The value of a label is text.", f'{short(key, 80)}: "{short(value, 63)}"'
            )
        elif len(value) > MOST_LABEL or not _LABEL_VALUE.fullmatch(value):
            yield document.problem(
                (*path, key),
                "label_value",
                f"Letters, digits, dashes, dots and underscores, at most {MOST_LABEL}, between letters or digits.",
            )


def pods(document: Document) -> Iterator[Problem]:
    """All rules of an object's pods."""
    for path in pod_templates(document):
        spec: Path = (*path, "spec")
        containers = [*document.items(*spec, "initContainers"), *document.items(*spec, "containers")]
        yield from _container_names(document, containers)
        yield from _devices(document, spec, containers)
        yield from _mounts(document, spec, containers)
        yield from _environment(document, spec, containers)


def npus(document: Document, container: Path) -> dict[str, Any]:
    """Resources of the device plugin that a container asks for: the limits, else the requests."""
    asked = {
        **document.mapping(*container, "resources", "requests"),
        **document.mapping(*container, "resources", "limits"),
    }
    return {name: count for name, count in asked.items() if isinstance(name, str) and name.startswith(PREFIX)}


def has_npus(document: Document, spec: Path) -> bool:
    """Whether a pod asks for devices."""
    return any(npus(document, path) for path, _ in document.items(*spec, "containers"))


def _container_names(document: Document, containers: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for path, container in containers:
        name = container.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MOST_LABEL:
            yield document.problem(
                (*path, "name"),
                "container_name",
                f"A container has a name of small letters, digits and dashes, at most {MOST_LABEL} characters.",
            )
            continue
        if name in seen:
            yield document.problem((*path, "name"), "container_twice", "Another container of the pod has this name.")
        seen.add(name)


def _devices(document: Document, spec: Path, containers: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    kinds: dict[str, Path] = {}
    for path, _ in containers:
        requests = document.mapping(*path, "resources", "requests")
        limits = document.mapping(*path, "resources", "limits")
        for name, count in npus(document, path).items():
            where: Path = (*path, "resources", "limits" if name in limits else "requests", name)
            yield from _resource(document, where, name)
            if name not in limits:
                yield document.problem(
                    where,
                    "limits_missing",
                    "Devices are asked for in limits; requests must be the same.",
                    f"limits: {{{name}: {short(count, 20)}}}",
                )
            elif name in requests and whole(requests[name]) != whole(limits[name]):
                yield document.problem(
                    (*path, "resources", "requests", name),
                    "requests_limits",
                    f"limits say {short(limits[name], 20)}; of devices both are the same.",
                    f"{name}: {short(limits[name], 20)}",
                )
            yield from _count(document, spec, where, name, count)
            if name in kinds:
                continue
            if kinds:
                yield document.problem(
                    where, "two_resources", f"The pod asks for {next(iter(kinds))} too; a pod has devices of one kind."
                )
            kinds[name] = where


def _resource(document: Document, where: Path, name: str) -> Iterator[Problem]:
    cut = re.fullmatch(r"huawei\.com/Ascend(?:910|310P)-\d+c(?:\.\w+)*", name)
    if name not in RESOURCES and not cut:
        near = get_close_matches(name, RESOURCES, n=1)
        yield document.problem(
            where,
            "resource_name",
            "The device plugin has no such resource; training cards of every kind "
            f"are huawei.com/Ascend910. It has {', '.join(RESOURCES)}.",
            near[0] if near else "",
        )


def _count(document: Document, spec: Path, where: Path, name: str, count: Any) -> Iterator[Problem]:
    number = whole(count)
    if number is None or number < 1:
        yield document.problem(where, "device_count", "A whole number of devices, at least 1.", f"{name}: 1")
        return
    label = document.get(*spec, "nodeSelector", "accelerator-type")
    chip = next((chip for chip in CHIPS.values() if chip.accelerator == label), None)
    most = chip.alone[-1] if chip else MOST_ON_A_NODE
    if name != "huawei.com/npu-core" and number > most:
        yield document.problem(
            where, "more_than_a_node", f"{number} devices in a pod; a node has {most}.", f"{name}: {most}"
        )
    elif chip and name == chip.resource and number not in chip.alone:
        yield document.problem(
            where,
            "device_count",
            f"On {label} a pod has {', '.join(map(str, chip.alone))} devices: {chip.why}.",
            f"{name}: {min(chip.alone, key=lambda fit: abs(fit - number))}",
        )


def _mounts(document: Document, spec: Path, containers: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    volumes: set[Any] = set()
    for path, volume in document.items(*spec, "volumes"):
        name = volume.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > MOST_LABEL:
            yield document.problem(
                (*path, "name"),
                "volume_name",
                f"A volume has a name of small letters, digits and dashes, at most {MOST_LABEL} characters.",
            )
        elif name in volumes:
            yield document.problem((*path, "name"), "volume_name_twice", "Another volume of the pod has this name.")
        volumes.add(name if isinstance(name, str) else None)
        table = document.get(*path, "configMap", "name")
        if isinstance(table, str) and table.startswith(_TABLE) and table != f"{_TABLE}{document.name}":
            yield document.problem(
                (*path, "configMap", "name"),
                "rank_table_name",
                "MindCluster writes a job's rank table into the ConfigMap of the job's name; this one stays empty.",
                f"name: {_TABLE}{short(document.name, 63)}",
            )
    named = (document.get(*path, "metadata", "name") for path, _ in document.items("spec", "volumeClaimTemplates"))
    claims = {name for name in named if isinstance(name, str)}
    for container, _ in containers:
        seen: set[str] = set()
        for path, mount in document.items(*container, "volumeMounts"):
            name, place = mount.get("name"), mount.get("mountPath")
            if isinstance(name, str) and name not in volumes and name not in claims:
                near = get_close_matches(name, [one for one in volumes if one], n=1)
                yield document.problem(
                    (*path, "name"),
                    "mount_without_volume",
                    "The pod has no volume of this name.",
                    f"name: {near[0]}" if near else "",
                )
            if isinstance(place, str):
                if place in seen:
                    yield document.problem((*path, "mountPath"), "mount_twice", "Another volume is mounted there.")
                seen.add(place)


def _environment(document: Document, spec: Path, containers: list[tuple[Path, dict[str, Any]]]) -> Iterator[Problem]:
    on_host = document.get(*spec, "hostNetwork") is True
    if on_host and document.get(*spec, "dnsPolicy") in (None, "ClusterFirst") and document.kind != "Job":
        yield document.problem(
            (*spec, "hostNetwork"),
            "dns_policy",
            "On the host network a pod does not know the names of Services unless it is told to.",
            "dnsPolicy: ClusterFirstWithHostNet",
        )
    for path, _ in containers:
        if document.get(*path, "securityContext", "privileged") is True:
            yield document.problem(
                (*path, "securityContext", "privileged"),
                "privileged",
                "The container sees all devices of its node, also those of other jobs.",
                "privileged: false",
            )
        asked = npus(document, path)
        for where, variable in document.items(*path, "env"):
            name = variable.get("name")
            if isinstance(name, str) and variable.get("value") and _SECRET.search(name):
                yield document.problem(
                    (*where, "name"),
                    "secret_in_manifest",
                    "What looks like a secret stands in the manifest; valueFrom.secretKeyRef keeps it out.",
                )
            source = document.get(*where, "valueFrom", "fieldRef", "fieldPath")
            if name == "HCCL_IF_IP" and source == "status.hostIP" and not on_host:
                yield document.problem(
                    (*where, "valueFrom"),
                    "hccl_if_ip",
                    "The host's address, in a pod that is not on the "
                    "host network: HCCL would listen on an address that the pod does not have. Leave it "
                    "out, or put the pod on the host network.",
                    "hostNetwork: true",
                )
            found = _FIELD.fullmatch(source) if isinstance(source, str) else None
            if name == "ASCEND_VISIBLE_DEVICES" and found and asked and found[1] not in asked:
                yield document.problem(
                    (*where, "valueFrom"),
                    "visible_devices",
                    f"The scheduler writes the annotation of the resource that was asked for: {next(iter(asked))}.",
                    f"fieldPath: metadata.annotations['{next(iter(asked))}']",
                )
