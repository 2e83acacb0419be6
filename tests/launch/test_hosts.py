"""Which host is which node; the commands that are printed; what goes along as environment."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from tiny_recipe import run

from msparallel.cluster.hosts import parse_hosts
from msparallel.errors import RecipeError, UserError
from msparallel.launch.connect_env import exports
from msparallel.launch.hosts import THIS_MACHINE, lay_out
from msparallel.launch.msrun import msrun_command
from msparallel.launch.nodes_print import node_lines
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure
TWO = ["cluster.nodes=2", "cluster.devices_per_node=2"]


def plan(name="gpt_tiny_dp4_cpu", overrides=TWO):
    return resolve(load_recipe(name, overrides))


def refused(text: str, **options) -> str:
    with pytest.raises(RecipeError) as caught:
        lay_out(plan(), parse_hosts(text, "hosts.txt"), "hosts.txt", **options)
    return str(caught.value)


def test_the_first_hosts_are_nodes_and_the_others_spare():
    layout = lay_out(plan(), parse_hosts("a 192.0.2.1\nb\nc 192.0.2.3\nd\n", "hosts.txt"), "hosts.txt", 9000)
    assert [host.name for host in layout.nodes] == ["a", "b"]
    assert [host.name for host in layout.spares] == ["c", "d"]
    assert (layout.master_addr, layout.master_port) == ("192.0.2.1", 9000)
    assert lay_out(plan(), parse_hosts("a\nb\n", "x")).master_addr == "a"


def test_an_ipv6_master():
    assert "MS_WORKER_IP" in refused("a 2001:db8::1\nb 192.0.2.2\n")
    assert lay_out(plan(), parse_hosts("a 192.0.2.1\nb 2001:db8::2\n", "x")).master_addr == "192.0.2.1"


def test_one_node_listens_for_itself_alone():
    alone = plan("gpt_tiny_dp2_cpu", [])
    layout = lay_out(alone, None)
    assert layout.nodes == (THIS_MACHINE,) and layout.master_addr == "127.0.0.1"
    assert lay_out(alone, parse_hosts("a 192.0.2.1\n", "x")).master_addr == "127.0.0.1"


def test_several_nodes_need_a_list():
    with pytest.raises(UserError, match="runs on 2 nodes: name them with --hosts FILE"):
        lay_out(plan(), None)


def test_too_few_hosts():
    assert "hosts.txt  host: 1\n  1 host for the 2 nodes of gpt_tiny_dp4_cpu (dp4 (4) over 2 x 2). Add 1" in refused(
        "a\n"
    )


@pytest.mark.parametrize("line, said", [
    ("b 192.0.2.1", "a on line 1 has this address too"),
    ("b 127.0.0.1", "every machine's address for itself"),
    ("b ::1", "every machine's address for itself"),
    ("localhost", "every machine's name for itself"),
    ("b 0.0.0.0", "no machine's address"),
    ("b 224.0.0.1", "no machine's address"),
])  # fmt: skip
def test_addresses_that_no_other_node_reaches(line, said):
    text = refused(f"a 192.0.2.1\n{line}\n")
    assert text.startswith("hosts.txt:2  host: ") and said in text


@pytest.mark.parametrize("name", ["-oProxyCommand=id", "a;id", "$(id)", "a`id`", "../a", "root@a"])
def test_names_that_an_option_or_a_shell_could_read(name, tmp_path):
    (tmp_path / "hosts.txt").write_text(f"node_0 192.0.2.1\n{name}\n")
    done = run("launch", "gpt_tiny_dp4_cpu", *TWO, "--hosts", tmp_path / "hosts.txt", "--print")
    assert done.returncode == 2 and f"hosts.txt:2  host: {name}" in done.stderr and done.stdout == ""


def test_a_printed_line_runs_msrun_in_its_folder_with_its_variables(tmp_path):
    """Executed by a shell, with a stand-in for msrun."""
    folder, tools = tmp_path / "it's", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    (tools / "msrun").write_text('#!/bin/sh\npwd\necho "$A|$OMP_NUM_THREADS"\nfor word; do echo "$word"; done\n')
    (tools / "msrun").chmod(0o755)
    layout = lay_out(plan(), parse_hosts("a 192.0.2.1\nb\n", "x"))
    lines = node_lines(plan(), layout, env={"A": "$(id) 'x"}, python=f"{tools}/python", workdir=str(folder))
    for rank, line in enumerate(lines):
        assert line.argv == msrun_command(plan(), node_rank=rank, master_addr="192.0.2.1")
        done = subprocess.run(["sh", "-c", line.command], capture_output=True, text=True, check=True)
        where, variables, *words = done.stdout.splitlines()
        assert where == str(folder) and words == line.argv[1:]
        assert variables == f"$(id) 'x|{max(1, len(os.sched_getaffinity(0)) // 2)}"
    assert [line.ranks for line in lines] == [range(0, 2), range(2, 4)]


def test_devices_bind_cores_and_share_no_threads(tmp_path):
    (tmp_path / "hosts.txt").write_text("".join(f"n{i} 192.0.2.{i + 1}\n" for i in range(5)))
    words = ["launch", "llama2_13b_dp4_tp4_pp2", "--hosts", "hosts.txt", "--print", "--python", "/opt/py/bin/python"]
    done = run(*words, "--workdir", "/job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, *rest = [line for line in done.stdout.splitlines() if line]
    assert head == "# llama2_13b_dp4_tp4_pp2: pp2 x dp4 x tp4 (32) over 4 x 8"
    assert rest[0] == "# node 0: n0 (192.0.2.1), ranks 0-7" and rest[-1] == "# spare: n4"
    commands = [line for line in rest if not line.startswith("#")]
    assert len(commands) == 4 and all("--bind_core True" in line and "OMP_NUM_THREADS" not in line for line in commands)
    assert all(line.startswith("cd /job && export PATH=/opt/py/bin:$PATH ") for line in commands)
    told = json.loads(run(*words, "--json", cwd=tmp_path).stdout)
    assert told["spares"] == ["n4"] and [node["ranks"][0] for node in told["nodes"]] == [0, 8, 16, 24]
    assert shlex.split(commands[3])[-len(told["nodes"][3]["argv"]) :] == told["nodes"][3]["argv"]


def test_printing_imports_no_mindspore(tmp_path):
    line = (
        "import sys\nfrom msparallel.cli.main import main\ntry:\n    main(['launch', 'gpt_tiny_dp2_cpu', '--print'])\n"
        "finally:\n    print('mindspore' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": os.getcwd()})  # fmt: skip
    assert done.returncode == 0 and done.stderr == "False\n"
    assert not list(tmp_path.iterdir())


def test_variables_that_go_along():
    here = {"PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/cann", "ASCEND_HOME_PATH": "/cann", "PASSWORD": "x", "A": "1"}
    assert exports(plan(), [], here) == {"PYTHONPATH": "/a"}
    assert exports(plan(), ["A", "B=2 3", "C="], here) == {"PYTHONPATH": "/a", "A": "1", "B": "2 3", "C": ""}
    npu = exports(resolve(load_recipe("llama2_7b_dp2_tp2_pp2")), [], here)
    assert npu == {"PYTHONPATH": "/a", "ASCEND_HOME_PATH": "/cann", "LD_LIBRARY_PATH": "/cann"}
    assert exports(plan(), [], {"PYTHONPATH": "x::/b"}) == {"PYTHONPATH": f"{os.getcwd()}/x:/b"}


@pytest.mark.parametrize("word, said", [
    ("A B=1", "no name of a variable"), ("=1", "no name of a variable"), ("A;id=1", "no name of a variable"),
    ("HF_TOKEN=1", "a secret's name"), ("MY_PASSWORD=1", "a secret's name"),
    ("aws_secret_access_key", "a secret's name"), ("API_KEY=1", "a secret's name"),
    ("HTTP_PROXY=http://me:s3cret@proxy:3128", "looks like a password"), ("B=hf_s3cret12345", "looks like a password"),
    ("all_proxy=socks5://:s3cret@h", "looks like a password"), ("C=sk-s3cret-12345", "looks like a password"),
    ("HCCL_IF_IP=192.0.2.1", "different on every node"), ("NOT_SET_X", "not set here"),
    ("A=\x1b[31m", "control character"), ("A=1\n2", "control character"),
])  # fmt: skip
def test_variables_that_do_not(word, said):
    with pytest.raises(UserError, match=said) as caught:
        exports(plan(), [word], {})
    assert "s3cret" not in str(caught.value)


def test_values_that_only_remind_of_a_secret_go_along():
    here = {"A": "http://proxy:3128", "B": "/data/sk-learn-data:x@y", "C": "a://b/c:d@e"}
    assert exports(plan(), list(here), here) == here


@pytest.mark.parametrize("words, said", [
    (["--workdir", "job"], "--workdir 'job': give the whole path"),
    (["--python", "-c"], "--python '-c' is no program"),
    (["--remote-shell", ""], "names no program"),
    (["--remote-shell", "ssh 'x"], "No closing quotation"),
    (["--hosts", "none.txt"], "none.txt"),
    (["--check"], "give one of the two"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused(words, said, tmp_path):
    done = run("launch", "gpt_tiny_dp2_cpu", "--print", *words, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_a_recipe_that_only_serves_is_not_launched(tmp_path):
    done = run("launch", "qwen3_8b_serve_tp1", "--print", cwd=tmp_path)
    assert done.returncode == 2 and "no `train` section: there is nothing to train" in done.stderr


def test_every_variable_that_does_not_go_along_is_told():
    with pytest.raises(UserError) as error:
        exports(plan(), ["1A", "OK=1", "MY_TOKEN=x", "RANK_ID=2", "NOT_SET", "PROXY=http://me:secret@proxy"], {})
    lines = str(error.value).split("\n")
    assert [line.partition(":")[0].split()[1] for line in lines] == ["'1A'", "MY_TOKEN", "RANK_ID", "NOT_SET", "PROXY"]
    assert "secret@" not in str(error.value)
