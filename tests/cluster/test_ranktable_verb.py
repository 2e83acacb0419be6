"""`msparallel ranktable` as a user meets it: output, exit codes, files; no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster.tables import a2, a3, a5, rootinfo, write

from msparallel.cli.main import main

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(capsys, tmp_path, monkeypatch):
    """Runs `msparallel ranktable WORDS` in an own folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["ranktable", *words])
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return call


@pytest.fixture
def cluster(tmp_path):
    """Two hosts with eight cards each."""
    (tmp_path / "hosts.txt").write_text("node_0 192.0.2.1\nnode_1 192.0.2.2\n")
    (tmp_path / "cards").mkdir()
    for host in (0, 1):
        text = "".join(f"address_{place}=198.51.{host}.{place + 1}\n" for place in range(8))
        (tmp_path / "cards" / f"node_{host}.conf").write_text(text)
    return ["--hosts", "hosts.txt", "--hccn", "cards"]


def test_make_prints_the_table_on_stdout_and_what_it_is_on_stderr(run, cluster):
    code, out, err = run("make", *cluster)
    assert code == 0 and json.loads(out) == a2()
    assert "16 ranks on 2 servers, version 1.0 (A2)\n  node_0: rank 0..7 on device 0..7" in err


@pytest.fixture
def a5_cluster(tmp_path):
    """Two A5 hosts with what their rootinfo files say."""
    (tmp_path / "hosts.txt").write_text("node_0 192.0.2.1\nnode_1 192.0.2.2\n")
    (tmp_path / "cards").mkdir()
    for host in (0, 1):
        (tmp_path / "cards" / f"node_{host}.json").write_text(json.dumps(rootinfo(host)))
    return ["--hosts", "hosts.txt", "--hccn", "cards", "--chip", "A5"]


def test_make_of_a5_counts_ranks_over_the_devices_that_hosts_tell_of(run, a5_cluster):
    code, out, err = run("make", *a5_cluster)
    assert code == 0 and json.loads(out) == a5()
    assert "4 ranks, version 2.0 (A5)" in err
    code, out, _ = run("make", *a5_cluster, "--devices", "1")
    assert [(rank["rank_id"], rank["device_id"]) for rank in json.loads(out)["rank_list"]] == [(0, 1), (1, 1)]


@pytest.mark.parametrize(("change", "words"), [
    (lambda info: None, "cp the host"),
    (lambda info: info.pop("rank_list"), "This is no /etc/hccl_rootinfo.json"),
    (lambda info: info.update(rank_count=7), "rank_count: 7"),
    (lambda info: info.update(version="1.0"), "2.0"),
    (lambda info: info["rank_list"][1].update(device_id=0), "the same device_id"),
    (lambda info: info["rank_list"][0].pop("level_list"), "level_list is missing"),
    (lambda info: info.update(detour="true"), "hosts of one job say the same"),
])  # fmt: skip
def test_make_of_a5_says_what_is_wrong_with_a_host(run, a5_cluster, tmp_path, change, words):
    path, info = tmp_path / "cards" / "node_1.json", rootinfo(1)
    change(info)
    path.write_text(json.dumps(info))
    if words.startswith("cp"):
        path.unlink()
        words = "Copy the host's /etc/hccl_rootinfo.json there"
    code, out, err = run("make", *a5_cluster)
    assert (code, out) == (2, "") and words in err and "node_1.json" in err


def test_make_of_a5_carries_detours(run, a5_cluster, tmp_path):
    for host in (0, 1):
        (tmp_path / "cards" / f"node_{host}.json").write_text(json.dumps(rootinfo(host) | {"detour": "true"}))
    assert run("make", *a5_cluster, "-o", "hccl.json")[0] == 0
    assert json.loads((tmp_path / "hccl.json").read_text())["detour"] == "true"
    write(tmp_path, a5(), "plain.json")
    assert run("diff", "hccl.json", "plain.json")[:2] == (1, "detour: true -> none\n")
    assert run("make", "hccl.json", "-o", "again.json")[0] == 0
    assert json.loads((tmp_path / "again.json").read_text())["detour"] == "true"


def test_make_of_a5_refuses_a_device_that_a_host_lacks(run, a5_cluster):
    code, _, err = run("make", *a5_cluster, "--devices", "0,5")
    assert code == 2 and "no device 5 in it; it tells of 0..1" in err


def test_make_writes_a_file_that_check_likes(run, cluster, tmp_path):
    assert run("make", *cluster, "-o", "hccl.json")[0] == 0
    code, out, err = run("check", "hccl.json")
    assert (code, err) == (0, "") and out.endswith("Every rule holds.\n")
    (tmp_path / "hccl.json").write_text("{}")
    code, _, err = run("make", *cluster, "-o", "hccl.json")
    assert code == 2 and "--force" in err and (tmp_path / "hccl.json").read_text() == "{}"
    assert run("make", *cluster, "-o", "hccl.json", "--force")[0] == 0


def test_make_for_a_recipe_says_what_stays_inside_a_server(run, cluster):
    recipe = ["--recipe", "qwen3_30b_a3b_dp8_pp2_ep8"]
    code, out, _ = run("make", *cluster, *recipe, "--inside", "dp", "--json")
    told = json.loads(out)
    assert code == 0 and told["table"] == a2()
    assert told["placement"] == {"mesh": "pp2 x dp8 (16)", "inside_server": {"pp": False, "dp": True}}
    code, out, err = run("make", *cluster, *recipe, "--inside", "pp", "-o", "x.json")
    assert (code, out) == (2, "") and "HCCL does not support ranks of servers that interleave" in err
    assert not os.path.exists("x.json")
    code, _, err = run("make", *cluster, *recipe, "--inside", "pp,ep")
    assert code == 2 and "'ep' is no axis; axes are pp, dp, cp, tp" in err
    code, _, err = run("make", *cluster, "--recipe", "llama2_13b_dp4_tp4_pp2")
    assert code == 2 and "The table has 16 ranks, the recipe pp2 x dp4 x tp4 (32) needs 32" in err
    code, _, err = run("make", *cluster, "--recipe", "gpt_tiny_dp2_cpu")
    assert code == 2 and "which has no rank table" in err


def test_a_recipe_of_other_machines(run, cluster, tmp_path):
    """Another number of ranks: a change that was tried. The same number on other servers: both shapes."""
    code, _, err = run("make", *cluster, "--recipe", "llama2_13b_dp4_tp4_pp2")
    assert code == 2 and "hosts.txt  hosts: 16 ranks (2 x 8)" in err and "needs 32: 4 x 8" in err
    tried = "parallel.data_parallel=2 cluster.nodes=2 cluster.devices_per_node=8"
    assert f"Try: {tried}" in err
    with pytest.raises(SystemExit) as end:
        main(["validate", "llama2_13b_dp4_tp4_pp2", *tried.split()])
    assert not end.value.code
    run("make", *cluster, "-o", "hccl.json")
    code, _, err = run("check", "hccl.json", "--recipe", "llama2_13b_dp4_tp4_pp2")
    assert code == 2 and "hccl.json  server_list: 16 ranks (2 x 8)" in err
    code, _, err = run("check", "hccl.json", "--recipe", "llama2_7b_dp2_tp2_pp2")
    assert code == 2 and "parallel.data_parallel=4" in err
    code, out, _ = run("check", "hccl.json", "--recipe", "qwen3_30b_a3b_dp8_pp2_ep8")
    assert code == 0 and "servers x devices" not in out
    text = (ROOT / "recipes/qwen3_30b_a3b_dp8_pp2_ep8.yaml").read_text()
    text = text.replace("  nodes: 2\n  devices_per_node: 8\n", "  nodes: 4\n  devices_per_node: 4\n")
    (tmp_path / "own.yaml").write_text(text)
    code, out, err = run("check", "hccl.json", "--recipe", "own.yaml")
    assert code == 0 and "The table is 2 x 8 (servers x devices), the recipe 4 x 4" in out, err
    assert "cluster.nodes=2 cluster.devices_per_node=8" in out
    told = json.loads(run("check", "hccl.json", "--recipe", "own.yaml", "--json")[1])
    assert "recipe_shape" in [one["rule"] for one in told["advice"]]


@pytest.mark.parametrize("word, chip", [("910B", "A2"), ("Ascend910B2", "A2"), ("910C", "A3"), ("atlas-A3", "A3"),
                                        ("950", "A5"), ("910", "910A")])  # fmt: skip
def test_a_chip_under_another_name_is_told_its_word(run, cluster, word, chip):
    code, _, err = run("make", *cluster, "--chip", word)
    assert code == 2 and f"{word} is {chip}." in err
    code, _, err = run("make", *cluster, "--chip", "x")
    assert code == 2 and " is A" not in err


def test_make_merges_in_the_stated_order(run, cluster, tmp_path):
    for host in (0, 1):
        (tmp_path / "one.txt").write_text(f"node_{host} 192.0.2.{host + 1}\n")
        words = ["--hosts", "one.txt", "--hccn", f"cards/node_{host}.conf", "-o", f"{host}.json"]
        assert run("make", *words)[0] == 0
    assert json.loads(run("make", "0.json", "1.json")[1]) == a2()
    turned = json.loads(run("make", "1.json", "0.json")[1])
    assert [server["server_id"] for server in turned["server_list"]] == ["node_1", "node_0"]
    assert json.loads(run("make", "1.json", "0.json", "--hosts", "hosts.txt")[1]) == a2()
    write(tmp_path, a2(1) | {"status": "initializing"}, "1.json")
    code, _, err = run("make", "0.json", "1.json")
    assert code == 1 and "check 1.json --wait 600" in err


@pytest.mark.parametrize(("words", "told"), [
    ((), "Give --hosts and --hccn"),
    (("--hosts", "hosts.txt"), "Give --hosts and --hccn"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--inside", "tp"), "--recipe"),
    (("--hosts", "hosts.txt", "--hccn", "cards/node_0.conf"), "need a folder"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--devices", "0-"), "0-7 or 0,1,4"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--devices", "3-0"), "0-7 or 0,1,4"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--devices", "0-7,7"), "each device once"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--devices", "0-2", "--chip", "910A"), "1, 2, 4 or 8"),
    (("--hosts", "hosts.txt", "--hccn", "cards", "--chip", "A3"), "no SDID"),
    (("--hosts", "none.txt", "--hccn", "cards"), "No such file"),
    (("--hosts", "hosts.txt", "--hccn", "nofolder"), "--hccn nofolder: there is no such folder or file"),
    (("--hosts", "hosts.txt", "--hccn", "nofolder", "--chip", "A5"), "--hccn nofolder: there is no such folder"),
])  # fmt: skip
def test_make_refuses(run, cluster, words, told):
    code, out, err = run("make", *words)
    assert (code, out) == (2, "") and told in err


def test_check_tells_every_problem(run, tmp_path):
    document = a2()
    document["server_list"][0]["device"][0]["device_id"] = "1"
    document["server_list"][1]["device"][3]["device_ip"] = "-.-.-.-"
    write(tmp_path, document)
    code, out, err = run("check", "hccl.json")
    assert (code, out) == (2, "")
    assert "hccl.json:16  server_list[0].device[1].device_id: 1" in err and "-.-.-.-" in err
    code, out, err = run("check", "hccl.json", "--json")
    told = json.loads(out)
    assert (code, err) == (2, "") and told["ranks"] == 16 and told["chip"] == "A2"
    assert [problem["rule"] for problem in told["problems"]] == ["device_ids_are_unique", "device_ips_are_addresses"]


def test_check_of_a_table_that_is_being_written(run, tmp_path):
    write(tmp_path, a2() | {"status": "initializing"})
    assert run("check", "hccl.json")[0] == 1
    assert run("check", "hccl.json", "--json")[0] == 1
    code, _, err = run("check", "hccl.json", "--wait", "0.1")
    assert code == 1 and "after 0.1 s" in err
    code, _, err = run("check", "hccl.json", "--chip", "A3")
    assert code == 2 and "A3 takes version 1.2" in err


def test_check_for_a_recipe(run, tmp_path):
    write(tmp_path, a2(4))
    code, out, _ = run("check", "hccl.json", "--recipe", "llama2_13b_dp4_tp4_pp2")
    assert code == 0
    assert "tp (tensor parallel): stays inside a server\n  dp (data parallel): crosses servers" in out
    write(tmp_path, a3(2, 16, 2))
    code, _, err = run("check", "hccl.json", "--recipe", "llama2_13b_dp4_tp4_pp2")
    assert code == 2 and "A2 takes version 1.0" in err
    code, out, _ = run("check", "hccl.json", "--recipe", "llama2_13b_dp4_tp4_pp2", "--chip", "A3", "--json")
    assert code == 0
    assert json.loads(out)["placement"]["inside_super_pod"] == {"pp": False, "dp": True, "tp": True}


def test_diff(run, tmp_path):
    write(tmp_path, a2(), "old.json")
    write(tmp_path, a2(1), "new.json")
    assert run("diff", "old.json", "old.json") == (0, "The two tables say the same.\n", "")
    assert run("diff", "old.json", "new.json") == (1, "ranks: 16 -> 8\n- node_1: rank 8..15\n", "")
    code, out, _ = run("diff", "old.json", "new.json", "--json")
    assert code == 1 and json.loads(out)["differences"] == ["ranks: 16 -> 8", "- node_1: rank 8..15"]
    assert run("diff", "old.json", "none.json")[0] == 2


def test_it_answers_at_once_and_imports_nothing_slow(tmp_path):
    path = write(tmp_path, a2())
    code = ("import sys\nfrom msparallel.cli.main import commands\n"
            f"commands.main(['ranktable', 'check', {str(path)!r}], standalone_mode=False)\n"
            "print([name for name in ('mindspore', 'numpy', 'pydantic', 'yaml') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", ["make", "check", "diff"])
def test_help_has_examples(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0 and f"$ msparallel ranktable {verb}" in out
