"""What cannot be had is refused with a value that works."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.errors import Problem, RecipeError
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.schedule.manifest import manifest
from msparallel.schedule.request import LABEL, MOST_LABEL, Request, default_name, pod_names, problems

pytestmark = pytest.mark.pure
BIG, TINY, SERVER = "llama2_13b_dp4_tp4_pp2", "gpt_tiny_dp2_cpu", "qwen3_8b_serve_tp1"
A1 = ("cluster.hardware=atlas_800_a1", "train.dtype=float16")
OPTIONS = {
    "--kind": "kind",
    "--name": "name",
    "--image": "image",
    "--pvc": "claim",
    "--host-path": "host_path",
    "--queue": "queue",
}
CASES: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
    ("msjob_ascend", BIG, (), {"kind": "msjob"}),
    ("msjob_nodes", TINY, ("cluster.nodes=2", "cluster.devices_per_node=1"), {"kind": "msjob"}),
    ("ascendjob_cpu", TINY, (), {"kind": "ascendjob"}),
    ("kind_fits", BIG, (), {"kind": "deployment"}),
    ("kind_fits", SERVER, (), {"kind": "vcjob"}),
    (
        "deployment_nodes",
        "qwen3_8b_serve_tp2",
        ("cluster.nodes=2", "cluster.devices_per_node=1"),
        {"kind": "deployment"},
    ),
    ("rank_table_ascend", TINY, (), {"rank_table": True}),
    ("host_network_kind", SERVER, (), {"kind": "deployment", "host_network": True}),
    ("devices_a_pod", BIG, ("cluster.nodes=4", "cluster.devices_per_node=8", "cluster.hardware=atlas_900_a3"), {}),
    ("devices_a_pod", BIG, ("cluster.nodes=16", "cluster.devices_per_node=2", "cluster.hardware=atlas_900_a3"), {}),
    (
        "devices_a_pod",
        "llama2_7b_dp2_tp2_pp2",
        ("cluster.nodes=2", "cluster.devices_per_node=4", "cluster.hardware=atlas_900_a3"),
        {},
    ),
    ("name_label", BIG, (), {"name": "llama_13b"}),
    ("name_label", BIG, (), {"name": "13B"}),
    ("name_label", BIG, (), {"name": ""}),
    ("name_length", BIG, (), {"name": "a" * 60}),
    ("name_length", BIG, (), {"name": "a" * 53, "kind": "ascendjob"}),
    ("object_name", BIG, (), {"namespace": "Team"}),
    ("object_name", BIG, (), {"claim": "a/b"}),
    ("object_name", BIG, (), {"priority_class": "x\n- y"}),
    ("root_queue", BIG, (), {"queue": "root"}),
    ("image_name", BIG, (), {"image": "My Image"}),
    ("image_name", BIG, (), {"image": "a:b:c"}),
    ("default_queue", BIG, (), {"with_queue": True}),
    ("one_volume", BIG, (), {"claim": None}),
    ("one_volume", BIG, (), {"host_path": "/mnt/x"}),
    ("host_path", BIG, (), {"claim": None, "host_path": "relative"}),
    ("host_path", BIG, (), {"claim": None, "host_path": "/mnt/../etc"}),
    ("host_path", BIG, (), {"claim": None, "host_path": "/mnt/a:b"}),
    ("output_on_volume", BIG, ("train.output_dir=/tmp/out",), {}),
    ("output_on_volume", BIG, ("train.output_dir=../out",), {}),
]


def plan_of(name: str, *overrides: str) -> Plan:
    return resolve(load_recipe(name, overrides))


def request(**given: Any) -> Request:
    return Request(**{"kind": "vcjob", "name": "demo", "claim": "team-data", **given})


@pytest.mark.parametrize(("rule", "name", "overrides", "given_"), CASES)
def test_each_rule_and_what_it_suggests(
    rule: str, name: str, overrides: tuple[str, ...], given_: dict[str, Any]
) -> None:
    plan = plan_of(name, *overrides)
    found = problems(plan, request(**given_))
    assert rule in [problem.rule for problem in found]
    with pytest.raises(RecipeError):
        manifest(plan, request(**given_), "a: 1\n")
    for problem in found:
        if problem.rule == rule and problem.suggestion:
            assert rule not in [left.rule for left in problems(*_mended(name, overrides, given_, problem))]


def _mended(name: str, overrides: tuple[str, ...], given_: dict[str, Any], problem: Problem) -> tuple[Plan, Request]:
    """Plan and Request after what the suggestion says was typed."""
    typed = shlex.split(problem.suggestion)
    more: dict[str, Any] = {}
    while typed and typed[0].startswith("--"):
        option = typed.pop(0)
        if option == "--with-queue":
            more["with_queue"] = True
            continue
        more[OPTIONS[option]] = typed.pop(0)
        if option == "--pvc":
            more["host_path"] = None
    keys = {word.partition("=")[0] for word in typed}
    kept = [word for word in overrides if word.partition("=")[0] not in keys]
    return plan_of(name, *kept, *typed), request(**{**given_, **more})


def test_every_rule_has_a_case(repo: Any) -> None:
    text = (repo / "msparallel" / "schedule" / "request.py").read_text(encoding="utf-8")
    calls = r'(?:refuse\(\s*|_option\(\s*[^,]+,[^,]+,\s*|recipe\.problem\(\s*)"([a-z_]+)"'
    assert set(re.findall(calls, text)) == {case[0] for case in CASES}


def test_a_recipe_s_file_name_is_one_that_a_config_map_takes(tmp_path: Any, repo: Any) -> None:
    path = tmp_path / "Mein Rezept ü.yaml"
    path.write_text((repo / "recipes" / f"{BIG}.yaml").read_text())
    found = problems(resolve(load_recipe(path)), request())
    assert [problem.rule for problem in found] == ["recipe_file_name"] and str(path) in str(found[0])


def test_910a_takes_rings() -> None:
    for count in (1, 2, 4, 8):
        plan = plan_of("llama2_7b_dp2_tp2_pp2", f"cluster.nodes={8 // count}", f"cluster.devices_per_node={count}", *A1)
        assert problems(plan, request()) == []
    plan = replace(plan_of("llama2_7b_dp2_tp2_pp2", *A1), devices_per_node=6)
    found = problems(plan, request())
    assert [problem.rule for problem in found] == ["devices_a_pod"]
    assert "1, 2, 4, 8 of Ascend 910A" in found[0].message


def test_all_problems_at_once() -> None:
    plan = plan_of(BIG, "train.output_dir=/tmp")
    found = problems(plan, request(kind="msjob", name="A", image="?", claim=None, queue="root"))
    assert {problem.rule for problem in found} >= {
        "msjob_ascend",
        "name_label",
        "image_name",
        "one_volume",
        "root_queue",
        "output_on_volume",
    }


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80), st.sampled_from(["vcjob", "ascendjob", "msjob", "deployment"]), st.integers(1, 2000))
def test_a_name_that_is_taken_fits_every_object(name: str, kind: Any, nodes: int) -> None:
    if problems(replace(plan_of_big(), nodes=nodes), request(kind=kind, name=name)):
        return
    for pod in pod_names(kind, name, nodes):
        assert LABEL.fullmatch(pod) and len(pod) <= MOST_LABEL


_BIG: list[Plan] = []


def plan_of_big() -> Plan:
    if not _BIG:
        _BIG.append(plan_of(BIG))
    return _BIG[0]


def test_a_recipe_s_name_with_dashes() -> None:
    assert default_name("llama2_13b") == "llama2-13b"
    assert default_name("Qwen3.8B") == "qwen3-8b"
    assert default_name("7b_test") == "7b_test", "it is refused and the message says why"
