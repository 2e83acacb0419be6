"""The commands of a manifest train: pods are network namespaces, what Kubernetes, Volcano and ascend-operator add to a
pod is added here. MindSpore's own msrun, processors instead of NPUs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from netns import Cluster, cluster

from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.schedule.jobs import job_documents
from msparallel.schedule.manifest import documents
from msparallel.schedule.request import JOB_DIR, RECIPE_DIR, Request
from msparallel.schedule.yaml_text import plain

pytestmark = pytest.mark.msrun
OVERRIDES = ("cluster.nodes=2", "cluster.devices_per_node=1", "train.steps=4", "train.seq_length=64")


def tiny(repo: Path) -> Plan:
    recipe = load_recipe(repo / "recipes" / "gpt_tiny_dp2_cpu.yaml", ())
    dropped = [
        f"{key}=null"
        for key in ("optimizer.warmup_steps", "train.checkpoint_interval", "train.eval_interval")
        if recipe.stated(key)
    ]
    return resolve(load_recipe(repo / "recipes" / "gpt_tiny_dp2_cpu.yaml", [*OVERRIDES, *dropped]))


class Pods:
    """Starts a pod's containers on a node, as a kubelet would."""

    def __init__(self, nodes: Cluster, folder: Path, repo: Path, recipe_map: dict[str, Any]):
        self.nodes, self.folder = nodes, folder
        (folder / "recipe").mkdir()
        (folder / "job").mkdir()
        for name, text in recipe_map["data"].items():
            (folder / "recipe" / name).write_text(text)
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(repo),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, node: str, spec: dict[str, Any], variables: dict[str, str]) -> subprocess.Popen[str]:
        lines = ["set -e", f"cd {self.folder}/job"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            told = {one["name"]: one["value"] for one in container.get("env", []) if "value" in one} | variables
            command = [expanded(word, told) for word in container["command"]]
            here = [
                word.replace(RECIPE_DIR, f"{self.folder}/recipe").replace(JOB_DIR, f"{self.folder}/job")
                for word in command
            ]
            assert not any("$(" in word for word in here), here
            values = [f"{key}={value}" for key, value in {**self.environment, **told}.items()]
            lines.append(shlex.join(["env", *values, *here]))
        with (self.folder / f"{node}.log").open("w") as log:
            return subprocess.Popen([self.nodes.shell, node, "\n".join(lines)], stdout=log, stderr=log, text=True)

    def names(self, known: dict[str, str]) -> None:
        """What the cluster's DNS answers: name -> address."""
        hosts = self.folder / "hosts"
        hosts.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in known.items()))
        for node in self.nodes.nodes:
            self.nodes.before(node.name, f"mount --bind {hosts} /etc/hosts")

    def result(self, plan: Plan) -> dict[str, Any]:
        return json.loads((self.folder / "job" / "output" / plan.recipe.name / "logs" / "result.json").read_text())


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of an argument."""
    return re.sub(r"\$\$|\$\(([^()]*)\)", lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


def finished(pods: list[subprocess.Popen[str]], folder: Path) -> None:
    codes = [pod.wait(timeout=600) for pod in pods]
    logs = "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("node*.log")))
    assert codes == [0] * len(pods), logs


def test_a_volcano_job_trains(tmp_path: Path, repo: Path) -> None:
    plan = tiny(repo)
    request = Request(kind="vcjob", name="demo", claim="data")
    recipe_map, job = (plain(one) for one in documents(plan, request, Path(plan.recipe.path).read_text()))
    task = job["spec"]["tasks"][0]
    with cluster(tmp_path, task["replicas"]) as nodes:
        pods = Pods(nodes, tmp_path, repo, recipe_map)
        pods.names({f"demo-worker-{at}.demo": node.address for at, node in enumerate(nodes.nodes)})  # the svc plugin
        started = [
            pods.start(node.name, task["template"]["spec"], {"VC_TASK_INDEX": str(at)})  # the env plugin
            for at, node in enumerate(nodes.nodes)
        ]
        finished(started, tmp_path)
        assert "demo-worker-0.demo is 198.51.100.1" in (tmp_path / "node1.log").read_text()
        told = pods.result(plan)
    assert told["world_size"] == 2 and len(told["losses"]) == 4 and told["checkpoint"]


def test_an_ascendjob_trains_with_a_scheduler_of_its_own(tmp_path: Path, repo: Path) -> None:
    """The operator's variables are those of its source; the recipe is one for processors, which the operator would
    leave without variables and our command line refuses, so the documents are made directly."""
    plan = tiny(repo)
    request = Request(kind="ascendjob", name="demo", claim="data")
    recipe_map, job = (plain(one) for one in job_documents(plan, request, Path(plan.recipe.path).read_text()))
    replicas = job["spec"]["replicaSpecs"]
    assert replicas["Scheduler"]["replicas"] == 1 and replicas["Worker"]["replicas"] == 2
    with cluster(tmp_path, 3) as nodes:
        pods = Pods(nodes, tmp_path, repo, recipe_map)
        common = {
            "MS_SCHED_HOST": nodes.nodes[0].address,
            "MS_SCHED_PORT": "2222",
            "MS_WORKER_NUM": "2",
            "MS_LOCAL_WORKER": "1",
            "MS_SERVER_NUM": "0",
        }
        started = []
        for at, node in enumerate(nodes.nodes):
            role = "Worker" if at else "Scheduler"
            variables = common | {"MS_ROLE": "MS_WORKER" if at else "MS_SCHED", "MS_NODE_RANK": str(max(0, at - 1))}
            started.append(pods.start(node.name, replicas[role]["template"]["spec"], variables))
        finished(started, tmp_path)
        told = pods.result(plan)
    assert told["world_size"] == 2 and len(told["losses"]) == 4 and told["checkpoint"]
    assert not (tmp_path / "job" / "output" / plan.recipe.name / "logs" / "scheduler.log").exists(), (
        "msrun started none"
    )
