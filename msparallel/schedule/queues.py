"""Queues and priorities: whose devices they are, and who lends them.

In: names and numbers. Out: Queue, PriorityClass, and the scheduler configuration without which both do nothing.
Volcano's own default runs only `enqueue, allocate, backfill`; `preempt` lets a job take the place of a lower one in
its queue, `reclaim` lets a queue take back what another one borrowed.

Sources, volcano-sh/volcano: installer/helm/chart/volcano/config, pkg/scheduler/actions/{preempt,reclaim},
pkg/scheduler/plugins/{gang,capacity,proportion,overcommit}, pkg/scheduler/framework/session_plugins.go (the first tier
in which a plugin names victims decides alone).
"""

from __future__ import annotations

from typing import Any

from msparallel.schedule.yaml_text import Noted

TRAIN, STAND_BY = "train", "stand-by"
TRAIN_PRIORITY, STAND_BY_PRIORITY = 100_000, 1_000


def queue(name: str, *, weight: int, reclaimable: bool, deserved: dict[str, Any] | None = None) -> dict[str, Any]:
    """A Volcano Queue.

    Args:
        weight: share of the cluster, beside other queues' weights, where the scheduler has the plugin proportion.
        reclaimable: other queues may take what this one has beyond its share.
        deserved: its share by resource, where the scheduler has the plugin capacity; None: nothing, all is borrowed.
    """
    spec: dict[str, Any] = {"weight": weight, "reclaimable": reclaimable}
    if deserved:
        spec["deserved"] = deserved
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": spec,
    }


def priority_class(name: str, value: int, *, preempts: bool, description: str) -> dict[str, Any]:
    """A PriorityClass; one that does not preempt waits for what is free."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "globalDefault": False,
        "preemptionPolicy": "PreemptLowerPriority" if preempts else "Never",
        "description": description,
    }


def two_queues(resource: str, devices: int) -> list[Any]:
    """Priorities and queues: training owns `devices` of `resource`, inference borrows them while they are idle."""
    return [
        priority_class(
            "train-high", TRAIN_PRIORITY, preempts=True, description="training; takes the place of lower jobs"
        ),
        priority_class("stand-by-low", STAND_BY_PRIORITY, preempts=False, description="inference that gives way"),
        queue(TRAIN, weight=9, reclaimable=False, deserved={resource: Noted(str(devices), "all that there are")}),
        Noted(queue(STAND_BY, weight=1, reclaimable=True), "owns nothing: whatever it has is borrowed"),
    ]


SCHEDULER_CONF = """\
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
    enableReclaimable: false
  - name: conformance
  - name: capacity
- plugins:
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: nodeorder
  - name: binpack
"""


def scheduler_config() -> dict[str, Any]:
    """Volcano's scheduler configuration, for a Volcano that is not MindCluster's."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": Noted(SCHEDULER_CONF, _WHY)},
    }


_WHY = "\n".join(
    (
        "preempt and reclaim: not in the default. Without them priorities and reclaimable queues change nothing.",
        "gang, enableReclaimable: else the last pod of a server is never taken, since its group must keep one.",
        "capacity instead of proportion: proportion lets a queue have no more than its weighted share while another "
        "one asks, so that a job which needs all devices would wait for ever. It is in the first tier, since the first "
        "tier that names victims decides alone.",
        "no overcommit: it leaves a job outside of the queue while the cluster is full, and then nothing is reclaimed "
        "for it.",
    )
)
