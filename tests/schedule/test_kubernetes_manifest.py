"""Manifests of recipes: their makers' schemas take them, our own rules hold, and they say what the recipe says."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
import yaml
from crd_schemas import errors

from msparallel.launch.msrun import msrun_command
from msparallel.plan import Plan, resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe
from msparallel.schedule.check_manifest import check_text
from msparallel.schedule.chips import CHIPS, super_pod_block
from msparallel.schedule.manifest import documents, manifest, notes
from msparallel.schedule.pod import DRIVER, Env, words
from msparallel.schedule.queues import scheduler_config, two_queues
from msparallel.schedule.request import Request, default_name
from msparallel.schedule.yaml_text import dump_all, plain

pytestmark = pytest.mark.pure
RECIPES = sorted(shipped_recipes())
VARIANTS: list[dict[str, Any]] = [
    {},
    {"host_network": True, "rank_table": True, "priority_class": "train-high", "queue": "train", "with_queue": True},
    {"arch": "x86", "cpu": 32, "claim": None, "host_path": "/mnt/shared"},
]


@cache
def plan_of(name: str, *overrides: str) -> Plan:
    return resolve(load_recipe(name, overrides))


def kinds(plan: Plan) -> list[str]:
    if plan.recipe.train is None:
        return ["deployment"]
    if plan.hardware.target == "Ascend":
        return ["vcjob", "ascendjob"]
    return ["vcjob", "msjob"] if plan.nodes == 1 else ["vcjob"]


def request(plan: Plan, kind: str, **more: Any) -> Request:
    given = {"claim": "team-data", **more}
    if plan.hardware.target != "Ascend" or kind == "deployment":
        given["rank_table"] = False
    if kind in ("msjob", "deployment"):
        given["host_network"] = False
    return Request(kind=kind, name=default_name(plan.recipe.name), **given)


def objects(plan: Plan, kind: str, **more: Any) -> dict[str, dict[str, Any]]:
    """Kind -> object; ConfigMaps by their name."""
    made = [plain(one) for one in documents(plan, request(plan, kind, **more), "model: {}\n")]
    return {one["metadata"]["name"] if one["kind"] == "ConfigMap" else one["kind"]: one for one in made}


def pod_specs(made: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Role -> pod spec, of whatever kind."""
    if "Job" in made:
        return {task["name"]: task["template"]["spec"] for task in made["Job"]["spec"]["tasks"]}
    if "Deployment" in made:
        return {"server": made["Deployment"]["spec"]["template"]["spec"]}
    job = made.get("AscendJob") or made["MSJob"]
    replicas = job["spec"].get("replicaSpecs") or job["spec"]["msReplicaSpecs"]
    return {role.lower(): replica["template"]["spec"] for role, replica in replicas.items()}


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_as_every_kind(name: str) -> None:
    plan = plan_of(name)
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    for kind in kinds(plan):
        for variant in VARIANTS:
            made = manifest(plan, request(plan, kind, **variant), text)
            assert made == manifest(plan, request(plan, kind, **variant), text)
            loaded = list(yaml.safe_load_all(made))
            assert [problem for one in loaded for problem in errors(one)] == []
            checked = check_text(made, "job.yaml")
            assert checked.problems == [] and checked.advice == []
            assert next(one for one in loaded if one["metadata"]["name"].endswith("-recipe"))["data"] == {
                f"{name}.yaml": text
            }


def test_the_job_has_the_recipe_s_pods_and_devices() -> None:
    for nodes, devices, hardware in ((4, 8, "atlas_800t_a2"), (8, 4, "atlas_900_a2"), (2, 16, "atlas_900_a3")):
        plan = plan_of(
            "llama2_13b_dp4_tp4_pp2",
            f"cluster.nodes={nodes}",
            f"cluster.devices_per_node={devices}",
            f"cluster.hardware={hardware}",
        )
        job = objects(plan, "vcjob")["Job"]
        task = job["spec"]["tasks"][0]
        assert job["spec"]["minAvailable"] == task["minAvailable"] == task["replicas"] == nodes
        spec = task["template"]["spec"]
        need = {"huawei.com/Ascend910": devices}
        assert spec["containers"][0]["resources"] == {"requests": need, "limits": need}
        assert spec["nodeSelector"]["accelerator-type"] == CHIPS[plan.hardware.chip].accelerator
        ascend = objects(plan, "ascendjob")["AscendJob"]["spec"]
        assert ascend["replicaSpecs"]["Worker"]["replicas"] == nodes
        assert ascend["runPolicy"]["schedulingPolicy"]["minAvailable"] == nodes + 1
        told = yaml.safe_dump(ascend["replicaSpecs"]["Scheduler"])
        assert "huawei.com" not in told and "/usr/local" not in told, "the scheduler has no use for devices"


def test_each_pod_starts_its_node_s_workers() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2")
    ours = msrun_command(plan)
    for kind, rank, address, port in (
        ("vcjob", "$(VC_TASK_INDEX)", "llama2-13b-dp4-tp4-pp2-worker-0.llama2-13b-dp4-tp4-pp2", "8118"),
        ("ascendjob", "$(MS_NODE_RANK)", "$(MS_SCHED_HOST)", "$(MS_SCHED_PORT)"),
    ):
        spec = pod_specs(objects(plan, kind))["worker"]
        command = spec["containers"][0]["command"]
        assert len(command) == len(ours)
        differs = {word for word, theirs in zip(command, ours, strict=True) if word != theirs}
        assert differs == {
            rank,
            address,
            port,
            "0,8,16,24",
            "/etc/msparallel/recipe/llama2_13b_dp4_tp4_pp2.yaml",
        } - set(ours)
        assert option(command, "--node_rank") == rank and option(command, "--master_addr") == address
        assert option(command, "--tail_worker_log") == "0,8,16,24", "every pod shows a rank of its own"
        waits = spec.get("initContainers", [{}])[0].get("command", [])
        assert (option(waits, "--host") == address) if kind == "vcjob" else waits == []


def test_one_device_needs_no_msrun_and_an_ascendjob_no_scheduler() -> None:
    plan = plan_of(
        "qwen3_8b_dp2_tp4",
        "parallel.mode=stand_alone",
        "parallel.data_parallel=1",
        "parallel.model_parallel=1",
        "parallel.sequence_parallel=false",
        "parallel.optimizer_shard=null",
        "cluster.devices_per_node=1",
        "train.global_batch_size=8",
    )
    for kind in ("vcjob", "ascendjob"):
        specs = pod_specs(objects(plan, kind))
        assert list(specs) == ["worker"]
        assert specs["worker"]["containers"][0]["command"][:5] == [
            "python",
            "-m",
            "msparallel",
            "run",
            "/etc/msparallel/recipe/qwen3_8b_dp2_tp4.yaml",
        ]
    assert check_text(manifest(plan, request(plan, "ascendjob"), "a: 1\n"), "f").problems == []


def test_overrides_reach_the_pods_and_a_dollar_is_no_variable() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2", "train.steps=60000", "data.corpus=$(HOME)/$HOME/$$.txt")
    command = pod_specs(objects(plan, "vcjob"))["worker"]["containers"][0]["command"]
    assert command[-2:] == ["train.steps=60000", "data.corpus=$$(HOME)/$$HOME/$$$$.txt"]
    assert [expanded(word, {"HOME": "wrong"}) for word in command[-2:]] == list(plan.recipe.overrides)
    assert expanded(words([Env("VC_TASK_INDEX")])[0], {"VC_TASK_INDEX": "3"}) == "3"


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of an argument: $$ is $, $(NAME) a variable that is known."""
    return re.sub(r"\$\$|\$\(([^()]*)\)", lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


def test_pods_are_not_privileged_and_hold_no_secret() -> None:
    for name in ("llama2_13b_dp4_tp4_pp2", "qwen3_8b_serve_tp1", "gpt_tiny_dp2_cpu"):
        plan = plan_of(name)
        for kind in kinds(plan):
            for role, spec in pod_specs(objects(plan, kind, host_network=True)).items():
                assert spec["automountServiceAccountToken"] is False
                for container in [*spec["containers"], *spec.get("initContainers", [])]:
                    told = container["securityContext"]
                    assert told["privileged"] is False and told["allowPrivilegeEscalation"] is False
                    for variable in container.get("env", []):
                        held = str(variable.get("value", "")) + str(variable["name"])
                        assert "secret" not in held.lower(), role
                        assert "value" not in variable or "KEY" not in variable["name"], role  # only by reference


def test_the_driver_is_mounted_where_there_are_devices() -> None:
    spec = pod_specs(objects(plan_of("llama2_13b_dp4_tp4_pp2"), "vcjob"))["worker"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for name, path, kind in DRIVER:
        assert mounts[path]["readOnly"] and volumes[name]["hostPath"] == {"path": path, "type": kind}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"} and "/dev/shm" in mounts
    plain_pod = pod_specs(objects(plan_of("gpt_tiny_dp2_cpu"), "vcjob"))["worker"]
    assert not any("hostPath" in volume for volume in plain_pod["volumes"])


def test_hccl_is_told_the_host_s_address_on_the_host_network_only() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2")
    for kind in ("vcjob", "ascendjob"):
        for on_host in (False, True):
            made = objects(plan, kind, host_network=on_host)
            spec = pod_specs(made)["worker"]
            told = {variable["name"]: variable for variable in spec["containers"][0]["env"]}
            assert ("HCCL_IF_IP" in told) == on_host == spec.get("hostNetwork", False)
            assert (spec.get("dnsPolicy") == "ClusterFirstWithHostNet") == on_host
            assert ("Service" in made) == (on_host and kind == "ascendjob")
    service = objects(plan, "ascendjob", host_network=True)["Service"]
    specs = objects(plan, "ascendjob", host_network=True)["AscendJob"]["spec"]["replicaSpecs"]
    labels = specs["Scheduler"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items() and service["spec"]["clusterIP"] == "None"
    worker = specs["Worker"]["template"]["spec"]
    command, waits = worker["containers"][0]["command"], worker["initContainers"][0]["command"]
    address = f"{service['metadata']['name']}.{service['metadata']['namespace']}"
    assert option(command, "--master_addr") == option(waits, "--host") == address
    assert not specs["Scheduler"]["template"]["spec"].get("hostNetwork")


def test_a_rank_table_is_waited_for_and_copied_to_a_file() -> None:
    for kind in ("vcjob", "ascendjob"):
        plan = plan_of("llama2_13b_dp4_tp4_pp2")
        made = objects(plan, kind, rank_table=True)
        table = made["rings-config-llama2-13b-dp4-tp4-pp2"]
        assert table["metadata"]["labels"] == {"ring-controller.atlas": "ascend-910b"}
        assert yaml.safe_load(table["data"]["hccl.json"]) == {"status": "initializing"}
        spec = pod_specs(made)["worker"]
        waits, main = spec["initContainers"][0], spec["containers"][0]
        mounts = {mount["name"]: mount["mountPath"] for mount in waits["volumeMounts"]}
        assert mounts["rank-table"] == "/user/serverid/devindex/config"
        assert option(waits["command"], "--table") == mounts["rank-table"] + "/hccl.json"
        assert option(waits["command"], "--copy") == option(main["command"], "--rank_table_file")
        assert option(waits["command"], "--copy").startswith(mounts["run"] + "/")
        assert {"name": "run", "mountPath": mounts["run"]} in main["volumeMounts"]


def test_cores_are_asked_for_by_those_that_compute() -> None:
    made = pod_specs(objects(plan_of("llama2_13b_dp4_tp4_pp2"), "ascendjob", cpu=96))
    assert made["worker"]["containers"][0]["resources"]["requests"]["cpu"] == "96"
    assert "resources" not in made["scheduler"]["containers"][0]
    tiny = pod_specs(objects(plan_of("gpt_tiny_dp2_cpu"), "vcjob", cpu=8))["worker"]["containers"][0]
    assert {"name": "OMP_NUM_THREADS", "value": "4"} in tiny["env"], "two processes share eight cores"


def test_a_failed_or_evicted_job_starts_again_from_its_checkpoint() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2")
    spec = objects(plan, "vcjob", retries=4)["Job"]["spec"]
    assert (
        spec["policies"] == [{"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"}] and spec["maxRetry"] == 4
    )
    assert spec["tasks"][0]["template"]["spec"]["restartPolicy"] == "Never"
    job = objects(plan, "ascendjob", retries=4)["AscendJob"]
    assert job["spec"]["runPolicy"]["backoffLimit"] == 4 and job["metadata"]["labels"]["fault-retry-times"] == "4"
    old = plan_of("llama2_13b_dp4_tp4_pp2", "cluster.hardware=atlas_800_a1", "train.dtype=float16")
    assert "fault-retry-times" not in objects(old, "ascendjob")["AscendJob"]["metadata"]["labels"], "A2 only"


def test_a_super_pod_is_told_its_blocks() -> None:
    plan = plan_of(
        "llama2_13b_dp4_tp4_pp2", "cluster.nodes=2", "cluster.devices_per_node=16", "cluster.hardware=atlas_900_a3"
    )
    for kind, name in (("vcjob", "Job"), ("ascendjob", "AscendJob")):
        assert objects(plan, kind)[name]["metadata"]["annotations"] == {"sp-block": "32"}
    chip = CHIPS["Ascend 910C"]
    for devices in range(16, 4097, 16):
        block = super_pod_block(devices, chip)
        assert devices % block == 0 and block % 16 == 0 and block <= 768
    assert super_pod_block(768, chip) == 768 and super_pod_block(8, chip) == 8


def test_pods_of_a_job_are_on_nodes_of_their_own() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2", "cluster.nodes=8", "cluster.devices_per_node=4")
    task = objects(plan, "vcjob")["Job"]["spec"]["tasks"][0]["template"]
    term = task["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert term["labelSelector"]["matchLabels"].items() <= task["metadata"]["labels"].items()
    assert term["topologyKey"] == "kubernetes.io/hostname"
    scheduler = objects(plan, "ascendjob")["AscendJob"]["spec"]["replicaSpecs"]["Scheduler"]["template"]
    assert not term["labelSelector"]["matchLabels"].items() <= scheduler["metadata"]["labels"].items()


def test_the_server_listens_for_its_service_and_gives_way() -> None:
    made = objects(plan_of("qwen3_8b_serve_tp1"), "deployment", queue="stand-by", priority_class="stand-by-low")
    pods = made["Deployment"]["spec"]["template"]
    assert pods["spec"]["containers"][0]["command"][-1] == "serve.host=0.0.0.0"
    assert pods["metadata"]["annotations"]["scheduling.volcano.sh/queue-name"] == "stand-by"
    assert pods["spec"]["schedulerName"] == "volcano" and pods["spec"]["priorityClassName"] == "stand-by-low"
    assert made["Service"]["spec"]["selector"].items() <= pods["metadata"]["labels"].items()
    server = pods["spec"]["containers"][0]
    assert server["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert server["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    (keys,) = [one["valueFrom"]["secretKeyRef"] for one in server["env"] if one["name"] == "MSPARALLEL_API_KEYS"]
    assert keys == {"name": f"{made['Deployment']['metadata']['name']}-keys", "key": "keys", "optional": True}
    for drain, seconds in (("0", 30), ("0.5", 31), ("120", 150), ("600", 630)):
        spec = pod_specs(objects(plan_of("qwen3_8b_serve_tp1", f"serve.drain_s={drain}"), "deployment"))["server"]
        assert spec["terminationGracePeriodSeconds"] == seconds
    own = objects(plan_of("qwen3_8b_serve_tp1", "serve.host=192.0.2.1"), "deployment")
    assert "serve.host=0.0.0.0" not in pod_specs(own)["server"]["containers"][0]["command"]


def test_two_queues_and_the_scheduler_that_heeds_them() -> None:
    made = [*two_queues("huawei.com/Ascend910", 32), scheduler_config()]
    loaded = list(yaml.safe_load_all(dump_all(made)))
    assert [problem for one in loaded for problem in errors(one)] == []
    checked = check_text(dump_all(made), "queues.yaml")
    assert checked.problems == [] and checked.advice == []
    named = {one["metadata"]["name"]: one for one in loaded}
    assert named["train-high"]["value"] > named["stand-by-low"]["value"]
    assert named["stand-by"]["spec"]["reclaimable"] and not named["train"]["spec"]["reclaimable"]
    assert named["stand-by"]["spec"]["weight"] < named["train"]["spec"]["weight"]
    conf = yaml.safe_load(named["volcano-scheduler-configmap"]["data"]["volcano-scheduler.conf"])
    assert {"preempt", "reclaim"} <= set(conf["actions"].split(", "))


def test_the_shared_samples_pass_the_schemas(shared: Any) -> None:
    for path in sorted((shared / "data" / "samples" / "k8s").glob("*.yaml")):
        for one in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            assert errors(one) == [], path.name


def test_a_schema_refuses_what_it_does_not_know() -> None:
    job = objects(plan_of("llama2_13b_dp4_tp4_pp2"), "vcjob")["Job"]
    container = job["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    container["imagePullPolice"] = "Always"
    job["spec"]["minAvailabel"] = 1
    job["spec"]["tasks"][0]["name"] = "Worker"
    assert len(errors(job)) == 3


def test_notes_say_what_the_cluster_must_have() -> None:
    plan = plan_of("llama2_13b_dp4_tp4_pp2", "data.corpus=/data/*.jsonl")
    told = " ".join(
        notes(plan, request(plan, "vcjob", queue="train", priority_class="high", claim=None, host_path="/mnt/x"))
    )
    for part in ("--image", "data.corpus: /data/*.jsonl", "--host-path /mnt/x", "queue train", "PriorityClass high"):
        assert part in told
    plan = plan_of("llama2_13b_dp4_tp4_pp2")
    assert notes(plan, request(plan, "vcjob", image="reg.example/msp:1")) == []
