"""Rules of queues, priorities, and of the scheduler that should heed them.

In: a Document of a Queue, a PriorityClass, or the ConfigMap of Volcano's scheduler. Out: Problems. Sources:
volcano-sh/volcano pkg/webhooks/admission/queues/validate/validate_queue.go, pkg/scheduler/actions and
pkg/scheduler/plugins; Kubernetes' validation of PriorityClass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from msparallel.errors import Problem, RecipeError, short
from msparallel.schedule.read_manifest import Document, Path, read_documents
from msparallel.schedule.rule import number, quantity

ACTIONS = ("enqueue", "allocate", "preempt", "reclaim", "backfill", "shuffle", "gangpreempt", "gangreclaim")
MOST_PRIORITY = 1_000_000_000
"""Higher ones are the system's own."""
CONF = "volcano-scheduler.conf"
CONFIG_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
MOST_CONFIG_BYTES = 1024 * 1024


def queue(one: Document) -> Iterator[Problem]:
    """guarantee <= deserved <= capability, and what else admission wants."""
    weight = number(one.get("spec", "weight"))
    if "weight" in one.mapping("spec") and (weight is None or not 1 <= weight <= 65535):
        yield one.problem(("spec", "weight"), "queue_weight", "A whole number from 1 to 65535.", "weight: 1")
    reclaimable = one.get("spec", "reclaimable")
    if reclaimable is not None and not isinstance(reclaimable, bool):
        yield one.problem(
            ("spec", "reclaimable"), "queue_reclaimable", "true or false, without quotes.", "reclaimable: true"
        )
    amounts: dict[str, dict[str, float]] = {}
    for key, path in (
        ("capability", ("spec", "capability")),
        ("deserved", ("spec", "deserved")),
        ("guarantee", ("spec", "guarantee", "resource")),
    ):
        amounts[key] = {}
        for name, value in one.mapping(*path).items():
            amount = quantity(value)
            if amount is None:
                yield one.problem((*path, name), "queue_quantity", "A quantity, for example 32, 500m or 64Gi.")
            else:
                amounts[key][name] = amount
    for name, amount in amounts["guarantee"].items():
        if amount > amounts["deserved"].get(name, -1):
            yield one.problem(
                ("spec", "guarantee", "resource", name),
                "guarantee_deserved",
                "What is guaranteed must be deserved too: deserved must have at least as much of it.",
            )
    for name, amount in amounts["deserved"].items():
        if amount > amounts["capability"].get(name, amount):
            yield one.problem(
                ("spec", "deserved", name),
                "deserved_capability",
                "More than capability, the most that the queue may ever have.",
            )
    if one.name == one.get("spec", "parent") and one.name:
        yield one.problem(("spec", "parent"), "queue_parent", "A queue is not its own parent.", "parent: root")


def priority_class(one: Document) -> Iterator[Problem]:
    """Value, policy and name."""
    value = number(one.get("value"))
    if value is None or not -(2**31) <= value <= MOST_PRIORITY:
        yield one.problem(
            ("value",),
            "priority_value",
            f"A whole number up to {MOST_PRIORITY:,}; higher ones are the system's.",
            "value: 1000",
        )
    policy = one.get("preemptionPolicy")
    if policy not in (None, "Never", "PreemptLowerPriority"):
        yield one.problem(
            ("preemptionPolicy",),
            "preemption_policy",
            "Never or PreemptLowerPriority.",
            "preemptionPolicy: PreemptLowerPriority",
        )
    if one.name.startswith("system-"):
        yield one.problem(("metadata", "name"), "system_priority", "Names that begin with system- are Kubernetes' own.")


def config_map(one: Document) -> Iterator[Problem]:
    """Names and size of what a ConfigMap holds; the scheduler's configuration, where it is that."""
    size = 0
    for field in ("data", "binaryData"):
        for key, value in one.mapping(field).items():
            size += len(value.encode("utf-8", "replace")) if isinstance(value, str) else 0
            if not CONFIG_KEY.fullmatch(key):
                yield one.problem(
                    (field, key),
                    "config_key",
                    "A key of a ConfigMap becomes a file name: letters, digits, dots, "
                    "dashes and underscores, at most 253.",
                )
            if not isinstance(value, str):
                yield one.problem(
                    (field, key),
                    "config_text",
                    "A ConfigMap holds text; a number is written in quotes.",
                    f'{short(key, 80)}: "{short(value, 80)}"',
                )
    if size > MOST_CONFIG_BYTES:
        yield one.problem(("data",), "config_size", f"{size:,} bytes; a ConfigMap has {MOST_CONFIG_BYTES:,} at most.")
    yield from _scheduler_config(one)


def _scheduler_config(one: Document) -> Iterator[Problem]:
    """The configuration of Volcano's scheduler, which is text inside of a ConfigMap."""
    text = one.get("data", CONF)
    if not isinstance(text, str):
        return
    path: Path = ("data", CONF)
    try:
        conf = read_documents(text, CONF)[0]
    except RecipeError as error:
        first = error.problems[0]
        yield one.problem(path, "scheduler_conf", f"Line {first.line or 1} of it: {first.message}")
        return
    words = conf.get("actions")
    actions = [word.strip() for word in words.split(",")] if isinstance(words, str) else []
    for action in actions:
        if action.lower() not in ACTIONS:
            near = get_close_matches(action, ACTIONS, n=1)
            yield one.problem(
                path,
                "scheduler_action",
                f"{short(action, 40)} is no action of the scheduler; it has {', '.join(ACTIONS)}.",
                near[0] if near else "",
            )
    known = [action.lower() for action in actions]
    plugins = _plugins(conf)
    missing = [action for action in ("preempt", "reclaim") if not {action, f"gang{action}"} & set(known)]
    if missing:
        yield one.problem(
            path,
            "no_preemption",
            f"No {' and no '.join(missing)} among the actions: without preempt a "
            "PriorityClass decides only who is next, without reclaim a queue never gets back what another one "
            "borrowed.",
            'actions: "enqueue, allocate, preempt, reclaim, backfill"',
        )
    if {"proportion", "capacity"} <= set(plugins):
        yield one.problem(
            path, "two_shares", "proportion and capacity both say what a queue deserves; have one of them."
        )
    if "reclaim" in known or "gangreclaim" in known:
        yield from _reclaim(one, path, known, plugins)


def _plugins(conf: Document) -> dict[str, dict[str, Any]]:
    return {
        plugin["name"]: plugin
        for tier, _ in conf.items("tiers")
        for _, plugin in conf.items(*tier, "plugins")
        if isinstance(plugin.get("name"), str)
    }


def _reclaim(one: Document, path: Path, actions: list[str], plugins: dict[str, dict[str, Any]]) -> Iterator[Problem]:
    """What keeps reclaim from doing what it is there for."""
    if "overcommit" in plugins and "enqueue" in actions:
        yield one.problem(
            path,
            "overcommit_blocks_reclaim",
            "overcommit keeps a job out of the queue while the cluster is "
            "full (beyond 1.2 times its resources), and nothing is reclaimed for a job that is not in it. Leave "
            "overcommit out, or raise overcommit-factor.",
        )
    if "proportion" in plugins:
        yield one.problem(
            path,
            "proportion_caps",
            "With proportion a queue has no more than its weighted share while another "
            "one asks: a job that needs all devices waits for ever. capacity has `deserved` instead.",
        )
    gang = plugins.get("gang")
    if gang is not None and gang.get("enableReclaimable") is not False and "gangreclaim" not in actions:
        yield one.problem(
            path,
            "gang_keeps_last",
            "gang lets no job fall below its minAvailable, so that the last pod of a "
            "server, or any pod of a whole job, is never reclaimed.",
            "enableReclaimable: false",
        )
