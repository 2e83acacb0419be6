"""Anybody's manifest against the rules: each is broken once, and the good ones pass."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.errors import RecipeError, UserError
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.schedule.check_manifest import check, check_file, check_text
from msparallel.schedule.manifest import documents
from msparallel.schedule.queues import priority_class, queue, scheduler_config
from msparallel.schedule.read_manifest import Document
from msparallel.schedule.request import Request
from msparallel.schedule.rule import ADVICE, number, quantity, whole
from msparallel.schedule.yaml_text import plain

pytestmark = pytest.mark.pure
NPU = "huawei.com/Ascend910"


@cache
def _made(kind: str, recipe: str) -> Any:
    plan = resolve(load_recipe(recipe))
    request = Request(kind=kind, name="demo", claim="data", host_network=kind == "ascendjob")  # type: ignore[arg-type]
    return plain(documents(plan, request, "a: 1\n"))[-1]


def good(kind: str) -> Any:
    """A manifest that breaks no rule, to be changed."""
    made = {
        "vcjob": lambda: _made("vcjob", "llama2_13b_dp4_tp4_pp2"),
        "ascendjob": lambda: _made("ascendjob", "llama2_13b_dp4_tp4_pp2"),
        "msjob": lambda: _made("msjob", "gpt_tiny_dp2_cpu"),
        "queue": lambda: plain(queue("q", weight=1, reclaimable=True, deserved={NPU: "8"})),
        "priority": lambda: plain(priority_class("p", 1000, preempts=True, description="")),
        "conf": lambda: plain(scheduler_config()),
    }[kind]()
    return copy.deepcopy(made)


def spec(job: Any) -> Any:
    if job["kind"] == "Job":
        return job["spec"]["tasks"][0]["template"]["spec"]
    replicas = job["spec"].get("replicaSpecs") or job["spec"]["msReplicaSpecs"]
    return replicas["Worker"]["template"]["spec"]


def main(job: Any) -> Any:
    return spec(job)["containers"][0]


def put(path: str, value: Any) -> Callable[[Any], None]:
    """`a.b.0.c` gets a value; None takes it away. Keys of the device plugin's name are written NPU."""

    def change(found: Any) -> None:
        *way, last = [int(part) if part.isdigit() else part.replace("NPU", NPU) for part in path.split(".")]
        for part in way:
            found = found[part]
        if value is None:
            del found[last]
        elif isinstance(found, list) and last == len(found):
            found.append(value)
        else:
            found[last] = value

    return change


def both(*changes: Callable[[Any], None]) -> Callable[[Any], None]:
    return lambda found: [change(found) for change in changes] and None


def conf(old: str, new: str) -> Callable[[Any], None]:
    def change(found: Any) -> None:
        text = found["data"]["volcano-scheduler.conf"]
        assert old in text
        found["data"]["volcano-scheduler.conf"] = text.replace(old, new)

    return change


def in_spec(path: str, value: Any) -> Callable[[Any], None]:
    return lambda job: put(path, value)(spec(job))


def in_main(path: str, value: Any) -> Callable[[Any], None]:
    return lambda job: put(path, value)(main(job))


def task(**more: Any) -> dict[str, Any]:
    return {
        "name": "other",
        "replicas": 1,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}},
        **more,
    }


POLICIES = "spec.policies"
WORKER, SCHEDULER = "spec.replicaSpecs.Worker", "spec.replicaSpecs.Scheduler"
CASES: list[tuple[str, str, Callable[[Any], None]]] = [
    # Volcano's admission
    ("no_task", "vcjob", put("spec.tasks", [])),
    ("task_min_available", "vcjob", put("spec.tasks.0.minAvailable", 5)),
    ("replicas_negative", "vcjob", put("spec.tasks.0.replicas", -1)),
    ("min_available_negative", "vcjob", put("spec.minAvailable", -1)),
    ("min_available", "vcjob", put("spec.minAvailable", 5)),
    ("min_available", "vcjob", put("spec.tasks.0.replicas", None)),
    ("gang_partial", "vcjob", put("spec.minAvailable", 2)),
    ("duplicate_task", "vcjob", put("spec.tasks.1", task(name="worker"))),
    ("pod_name_length", "vcjob", put("metadata.name", "a" * 60)),
    ("policy_both", "vcjob", put(f"{POLICIES}.0.exitCode", 3)),
    ("policy_neither", "vcjob", put(f"{POLICIES}.0.events", [])),
    ("policy_event", "vcjob", put(f"{POLICIES}.0.events", ["PodFail"])),
    ("policy_event", "vcjob", put(f"{POLICIES}.0.events", ["PodRunning"])),
    ("policy_action", "vcjob", put(f"{POLICIES}.0.action", "Restart")),
    ("policy_action", "vcjob", put(f"{POLICIES}.0.action", None)),
    ("duplicate_event", "vcjob", put(f"{POLICIES}.1", {"event": "PodFailed", "action": "AbortJob"})),
    ("duplicate_event", "vcjob", put("spec.tasks.0.policies.1", {"event": "TaskCompleted", "action": "AbortJob"})),
    ("policy_code_zero", "vcjob", put(f"{POLICIES}.1", {"exitCode": 0, "action": "AbortJob"})),
    (
        "duplicate_code",
        "vcjob",
        both(
            put(f"{POLICIES}.1", {"exitCode": 3, "action": "AbortJob"}),
            put(f"{POLICIES}.2", {"exitCode": 3, "action": "RestartJob"}),
        ),
    ),
    ("any_event", "vcjob", put(f"{POLICIES}.1", {"event": "*", "action": "AbortJob"})),
    ("plugin", "vcjob", put("spec.plugins.svv", [])),
    ("volume_mount_path", "vcjob", put("spec.volumes", [{"volumeClaimName": "a"}])),
    ("volume_twice", "vcjob", put("spec.volumes", [{"volumeClaimName": "a", "mountPath": "/a"}] * 2)),
    ("volume_claim", "vcjob", put("spec.volumes", [{"mountPath": "/a"}])),
    ("volume_claim", "vcjob", put("spec.volumes", [{"mountPath": "/a", "volumeClaimName": "a", "volumeClaim": {}}])),
    ("depends_on", "vcjob", put("spec.tasks.0.dependsOn", {"name": ["nobody"]})),
    (
        "depends_circle",
        "vcjob",
        both(
            put("spec.tasks.0.dependsOn", {"name": ["other"]}),
            put("spec.tasks.1", task(dependsOn={"name": ["worker"]})),
        ),
    ),
    ("root_queue", "vcjob", put("spec.queue", "root")),
    ("restart_policy_always", "vcjob", in_spec("restartPolicy", None)),
    # ascend-operator
    ("framework", "ascendjob", put("metadata.labels.framework", "torch")),
    ("framework", "ascendjob", put("metadata.labels.framework", None)),
    ("success_policy", "ascendjob", put("spec.successPolicy", "All")),
    ("scheduler_name", "ascendjob", put("spec.schedulerName", "default-scheduler")),
    ("hccl_if_ip_missing", "ascendjob", in_main("env", [])),
    ("no_replicas", "ascendjob", put("spec.replicaSpecs", {})),
    ("replica_type", "ascendjob", put("spec.replicaSpecs.Master", {"replicas": 1})),
    ("restart_policy", "ascendjob", put(f"{WORKER}.restartPolicy", "Sometimes")),
    ("replica_count", "ascendjob", put(f"{WORKER}.replicas", 20_001)),
    ("one_leader", "ascendjob", put(f"{SCHEDULER}.replicas", 2)),
    ("pod_name_length", "ascendjob", put("metadata.name", "a" * 55)),
    ("service_name", "ascendjob", put("metadata.name", "7b")),
    ("operator_container", "ascendjob", in_main("name", "mindspore")),
    ("no_image", "ascendjob", in_main("image", None)),
    ("port_name", "ascendjob", put(f"{SCHEDULER}.template.spec.containers.0.ports.0.name", "port")),
    ("no_scheduler", "ascendjob", put(SCHEDULER, None)),
    ("no_leader", "ascendjob", both(put("metadata.labels.framework", "pytorch"), put(SCHEDULER, None))),
    (
        "scheduler_has_devices",
        "ascendjob",
        put(f"{SCHEDULER}.template.spec.containers.0.resources", {"limits": {NPU: 8}}),
    ),
    ("min_available", "ascendjob", put("spec.runPolicy.schedulingPolicy.minAvailable", 6)),
    ("gang_partial", "ascendjob", put("spec.runPolicy.schedulingPolicy.minAvailable", 4)),
    # ms-operator
    ("operator_container", "msjob", in_main("name", "ascend")),
    ("port_name", "msjob", in_main("ports", [{"name": "p", "containerPort": 2222}])),
    ("metadata_dropped", "msjob", put("spec.msReplicaSpecs.Worker.template.metadata", {"labels": {"a": "b"}})),
    ("msjob_devices", "msjob", in_main("resources", {"limits": {NPU: 1}})),
    ("one_leader", "msjob", put("spec.msReplicaSpecs.Scheduler", {"replicas": 2})),
    # pods
    ("container_name", "vcjob", in_main("name", "Ascend_1")),
    ("container_twice", "vcjob", in_spec("containers.1", {"name": "ascend", "image": "x"})),
    ("limits_missing", "vcjob", in_main("resources", {"requests": {NPU: 8}})),
    ("requests_limits", "vcjob", in_main("resources.requests.NPU", 4)),
    ("two_resources", "vcjob", in_main("resources.limits", {NPU: 8, "huawei.com/npu": 8})),
    ("resource_name", "vcjob", in_main("resources", {"limits": {"huawei.com/Ascend910B": 8}})),
    ("device_count", "vcjob", in_main("resources", {"limits": {NPU: 0}})),
    ("device_count", "vcjob", in_main("resources", {"limits": {NPU: 1.5}})),
    (
        "device_count",
        "vcjob",
        both(in_spec("nodeSelector.accelerator-type", "module"), in_main("resources", {"limits": {NPU: 3}})),
    ),
    ("more_than_a_node", "vcjob", in_main("resources", {"limits": {NPU: 16}})),
    ("more_than_a_node", "vcjob", both(in_spec("nodeSelector", {}), in_main("resources", {"limits": {NPU: 32}}))),
    ("volume_name", "vcjob", in_spec("volumes.0.name", "A")),
    ("volume_name_twice", "vcjob", in_spec("volumes.1.name", "recipe")),
    (
        "rank_table_name",
        "ascendjob",
        in_spec("volumes.0", {"name": "recipe", "configMap": {"name": "rings-config-other"}}),
    ),
    ("mount_without_volume", "vcjob", in_main("volumeMounts.0.name", "recipes")),
    ("mount_twice", "vcjob", in_main("volumeMounts.0.mountPath", "/job")),
    ("dns_policy", "ascendjob", in_spec("dnsPolicy", None)),
    ("privileged", "vcjob", in_main("securityContext.privileged", True)),
    ("secret_in_manifest", "vcjob", in_main("env.0", {"name": "HF_TOKEN", "value": "hf_x"})),
    ("hccl_if_ip", "ascendjob", in_spec("hostNetwork", None)),
    (
        "visible_devices",
        "vcjob",
        in_main("env.0.valueFrom.fieldRef.fieldPath", "metadata.annotations['huawei.com/Ascend310P']"),
    ),
    # names
    ("no_kind", "vcjob", put("kind", None)),
    ("name", "vcjob", put("metadata.name", "Job_1")),
    ("name", "vcjob", put("metadata.name", None)),
    ("namespace", "vcjob", put("metadata.namespace", "A")),
    ("namespace_ignored", "queue", put("metadata.namespace", "a")),
    ("label_key", "vcjob", lambda job: job["metadata"]["labels"].update({"a b": "c"})),
    ("label_text", "vcjob", lambda job: job["metadata"]["labels"].update({"a": 1})),
    ("label_value", "vcjob", lambda job: job["metadata"]["labels"].update({"a": "x" * 64})),
    # queues, priorities, the scheduler
    ("queue_weight", "queue", put("spec.weight", 0)),
    ("queue_reclaimable", "queue", put("spec.reclaimable", "yes")),
    ("queue_quantity", "queue", put("spec.capability", {NPU: "many"})),
    ("guarantee_deserved", "queue", put("spec.guarantee", {"resource": {NPU: "9"}})),
    ("guarantee_deserved", "queue", put("spec.guarantee", {"resource": {"cpu": "1"}})),
    ("deserved_capability", "queue", put("spec.capability", {NPU: "4"})),
    ("queue_parent", "queue", put("spec.parent", "q")),
    ("priority_value", "priority", put("value", 1_000_000_001)),
    ("priority_value", "priority", put("value", "1000")),
    ("preemption_policy", "priority", put("preemptionPolicy", "Always")),
    ("system_priority", "priority", put("metadata.name", "system-mine")),
    ("config_key", "conf", lambda found: found["data"].update({"a b.yaml": "x"})),
    ("config_text", "conf", put("data.number", 8)),
    ("config_size", "conf", put("data.big", "x" * 2**20)),
    ("scheduler_conf", "conf", conf("tiers:", "tiers: [")),
    ("scheduler_action", "conf", conf("preempt, ", "premept, ")),
    ("no_preemption", "conf", conf("preempt, reclaim, ", "")),
    ("two_shares", "conf", conf("- name: capacity", "- name: capacity\n  - name: proportion")),
    ("overcommit_blocks_reclaim", "conf", conf("- name: drf", "- name: overcommit\n  - name: drf")),
    ("proportion_caps", "conf", conf("- name: capacity", "- name: proportion")),
    ("gang_keeps_last", "conf", conf("    enableReclaimable: false\n", "")),
]


def rules_of(values: Any) -> set[str]:
    checked = check_text(yaml.safe_dump(values, sort_keys=False), "x.yaml")
    return {problem.rule for problem in [*checked.problems, *checked.advice]}


@pytest.mark.parametrize("kind", ["vcjob", "ascendjob", "msjob", "queue", "priority", "conf"])
def test_what_the_others_are_made_of_is_good(kind: str) -> None:
    assert rules_of(good(kind)) == set()


@pytest.mark.parametrize(("rule", "kind", "change"), CASES, ids=[f"{at}-{case[0]}" for at, case in enumerate(CASES)])
def test_each_rule_is_found_with_its_line(rule: str, kind: str, change: Callable[[Any], None]) -> None:
    broken = good(kind)
    change(broken)
    text = yaml.safe_dump(broken, sort_keys=False)
    checked = check_text(text, "x.yaml")
    found = next(problem for problem in [*checked.problems, *checked.advice] if problem.rule == rule)
    assert found in (checked.advice if rule in ADVICE else checked.problems)
    assert (
        found.file == "x.yaml" and found.line and found.line <= len(text.splitlines()) and found.message.endswith(".")
    )


def test_every_rule_has_a_case(repo: Path) -> None:
    written = set()
    for name in ("volcano_rules", "operator_rules", "pod_rules", "queue_rules"):
        tree = ast.parse((repo / "msparallel" / "schedule" / f"{name}.py").read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "problem":
                written.add(node.args[1].value)  # type: ignore[attr-defined]
    assert written == {rule for rule, _, _ in CASES}
    assert written >= ADVICE


def test_the_shared_samples(shared: Path) -> None:
    folder = shared / "data" / "samples" / "k8s"
    for path in sorted(folder.glob("*.yaml")):
        checked = check_file(str(path))
        assert bool(checked.problems) == ("bad" in path.name), path.name
    bad = check_file(str(folder / "volcano_bad_min_available__derived.yaml")).problems
    assert {(problem.rule, problem.line) for problem in bad} == {("min_available", 8), ("duplicate_task", 13)}


def test_lines_are_those_of_the_file() -> None:
    text = """\
# a comment
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: a}
spec:
  minAvailable: 2
  policies:
  - {event: PodFailed, action: RestartJob}
  - event: PodFailed
    action: AbortJob
  tasks:
  - name: t
    replicas: 1
    template: &pod {spec: {restartPolicy: Never, containers: [{name: c, image: x}]}}
"""
    found = {problem.rule: problem for problem in check_text(text, "job.yaml").problems}
    assert {rule: problem.line for rule, problem in found.items()} == {"min_available": 6, "duplicate_event": 9}
    assert str(found["min_available"]).startswith("job.yaml:6  spec.minAvailable: 2\n")
    assert found["duplicate_event"].key == "spec.policies[1].event"


def test_a_list_is_its_items_and_the_same_object_twice_is_told() -> None:
    one = "- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n"
    checked = check_text(f"apiVersion: v1\nkind: List\nitems:\n{one}{one}", "l.yaml")
    assert checked.objects == ["ConfigMap a", "ConfigMap a"]
    assert [(problem.rule, problem.line) for problem in checked.problems] == [("object_twice", 5)]


def test_a_kind_without_rules_of_its_own_is_said_to_have_none() -> None:
    checked = check_text("apiVersion: v1\nkind: Service\nmetadata: {name: a, namespace: b}\n", "x.yaml")
    assert (checked.objects, checked.problems) == (["Service b/a (names only)"], [])


REFUSED = {
    "yaml_syntax": ["a: [", "a: !!python/object:os.system x", "a: \x01", "[" * 100, "{a: " * 60, "a: *b"],
    "not_an_object": ["- a", "text"],
    "empty": ["", "---\n---\n", "# nothing\n"],
    "yaml_feature": ["a: &x {b: 1}\nc: {<<: *x}"],
    "odd_key": ["? [a]\n: b"],
    "duplicate_key": ["a: 1\na: 2"],
    "odd_value": ["a: 2001-99-99"],
    "too_large": [
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{chr(98 + at)}: &{chr(98 + at)} [{','.join([f'*{chr(97 + at)}'] * 10)}]\n" for at in range(8)),
        "a: &a [*a]",
    ],
}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in REFUSED.items() for text in texts])
def test_what_is_no_manifest_is_refused_with_a_reason(rule: str, text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        check_text(text, "x.yaml")
    assert [problem.rule for problem in caught.value.problems] == [rule]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"#" * (4 * 1024 * 1024 + 1))
    (tmp_path / "latin").write_bytes(b"a: 1\nb: \xe9\n")
    for name in ("none", "big", "latin", ".", "a\0b"):
        with pytest.raises(UserError) as caught:
            check_file(str(tmp_path / name))
        assert str(caught.value)
    assert ":2" in str(pytest.raises(RecipeError, check_file, str(tmp_path / "latin")).value)


def test_numbers_of_anybody_s() -> None:
    assert [whole(one) for one in (8, "8", 8.0, True, "8Gi", None, -1, "9" * 30, 1e300)] == [
        8,
        8,
        8,
        None,
        None,
        None,
        -1,
        None,
        None,
    ]
    assert [number(one) for one in (8, "8", True, 8.0)] == [8, None, None, None]
    assert [quantity(one) for one in ("500m", "2Gi", "1k", 3, "x", None, True, "1.5")] == [
        0.5,
        2 * 2**30,
        1000.0,
        3.0,
        None,
        None,
        None,
        1.5,
    ]


WORDS = st.sampled_from(
    [
        "Job",
        "AscendJob",
        "MSJob",
        "Queue",
        "PriorityClass",
        "ConfigMap",
        "Deployment",
        "batch.volcano.sh/v1alpha1",
        "v1",
        "mindxdl.gitee.com/v1",
        "mindspore.gitee.com/v1",
        "scheduling.volcano.sh/v1beta1",
        "scheduling.k8s.io/v1",
        "apps/v1",
        NPU,
        "PodFailed",
        "*",
        "worker",
        "Scheduler",
        "Worker",
        "\x1b[31m",
        "8",
        "a" * 300,
    ]
)
KEYS = st.sampled_from(
    [
        "apiVersion",
        "kind",
        "metadata",
        "name",
        "namespace",
        "labels",
        "spec",
        "tasks",
        "replicas",
        "minAvailable",
        "policies",
        "event",
        "events",
        "exitCode",
        "action",
        "plugins",
        "volumes",
        "mountPath",
        "dependsOn",
        "template",
        "containers",
        "env",
        "initContainers",
        "resources",
        "limits",
        "requests",
        NPU,
        "volumeMounts",
        "hostNetwork",
        "nodeSelector",
        "valueFrom",
        "accelerator-type",
        "fieldRef",
        "fieldPath",
        "securityContext",
        "privileged",
        "replicaSpecs",
        "msReplicaSpecs",
        "Worker",
        "Scheduler",
        "runPolicy",
        "schedulingPolicy",
        "weight",
        "deserved",
        "guarantee",
        "resource",
        "capability",
        "value",
        "data",
        "volcano-scheduler.conf",
        "items",
        "framework",
        "ports",
        "containerPort",
        "volumeClaimTemplates",
    ]
)
ANY = st.recursive(
    WORDS | st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)
QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}


def _told(text: str) -> None:
    try:
        checked = check_text(text, "x.yaml")
    except RecipeError as error:
        assert error.problems and str(error)
        return
    assert all(str(problem) and problem.line for problem in [*checked.problems, *checked.advice])


def _shaken(kind: str, path: list[int], value: Any) -> str:
    """A good manifest, something in which is something else."""
    made = good(kind)
    found = made
    for step in path:
        keys = list(found) if isinstance(found, dict) else list(range(len(found)))
        if not keys:
            break
        key = keys[step % len(keys)]
        if not isinstance(found[key], (dict, list)) or step == path[-1]:
            found[key] = value
            break
        found = found[key]
    return yaml.safe_dump(made, sort_keys=False)


def everywhere(found: Any) -> Any:
    """(mapping or list, key) of every value inside."""
    for key in list(found) if isinstance(found, dict) else range(len(found)):
        yield found, key
        if isinstance(found[key], (dict, list)):
            yield from everywhere(found[key])


@pytest.mark.parametrize("kind", ["vcjob", "ascendjob", "msjob", "queue", "priority", "conf", "stateful"])
def test_anything_in_any_place_gets_an_answer(kind: str) -> None:
    """Each value of a good manifest, one after another, as every other type."""
    made = good("vcjob") if kind == "stateful" else good(kind)
    if kind == "stateful":
        claims = [{"metadata": {"name": "data"}}]
        pods = {"metadata": {}, "spec": spec(made)}
        made = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}}
        made["spec"] = {"template": pods, "volumeClaimTemplates": claims}
    elif kind == "vcjob":
        made["spec"]["tasks"].append(task(dependsOn={"name": ["worker"]}))
        made["spec"]["volumes"] = [{"mountPath": "/a", "volumeClaimName": "a"}]
        made["spec"]["minAvailable"] = 5
    for holder, key in everywhere(made):
        before = holder[key]
        for value in ([], {}, [[]], [{}], {"a": {}}, None, True, 8, 1.5, "", "x\ny"):
            holder[key] = value
            for problem in check(Document(file="x.yaml", start=1, values=made)):
                assert str(problem)
        holder[key] = before
    assert not list(check(Document(file="x.yaml", start=1, values=made)))


@settings(max_examples=80, **QUIET)
@given(st.dictionaries(KEYS, ANY, max_size=8))
def test_any_shape_gets_an_answer(values: Any) -> None:
    _told(yaml.safe_dump(values, sort_keys=False))


@settings(max_examples=80, **QUIET)
@given(
    st.sampled_from(["vcjob", "ascendjob", "msjob", "queue", "conf"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    ANY,
)
def test_a_good_manifest_with_anything_in_it_gets_an_answer(kind: str, path: list[int], value: Any) -> None:
    _told(_shaken(kind, path, value))


@settings(max_examples=80, **QUIET)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_gets_an_answer(text: str) -> None:
    _told(text)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(st.dictionaries(KEYS, ANY, max_size=8), st.text(max_size=400))
def test_any_shape_and_text_gets_an_answer_at_length(values: Any, text: str) -> None:
    _told(yaml.safe_dump(values, sort_keys=False))
    _told(text)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(
    st.sampled_from(["vcjob", "ascendjob", "msjob", "queue", "conf"]),
    st.lists(st.integers(0, 40), min_size=1, max_size=9),
    ANY,
)
def test_a_good_manifest_with_anything_in_it_at_length(kind: str, path: list[int], value: Any) -> None:
    _told(_shaken(kind, path, value))
