"""The command line of msrun, ports, devices, and whose failure is told: without starting anything."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from tiny_recipe import run, write_recipe

from msparallel.errors import RunError, UserError
from msparallel.launch.devices import ascend_devices, check_devices
from msparallel.launch.msrun import check_port, clear_logs, free_port, msrun_command
from msparallel.launch.status import WorkerStatus, first_failure, read_states
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe
from msparallel.train.run import RunResult, closing_text, sole_run

pytestmark = pytest.mark.pure


def test_command_of_a_local_run(repo):
    plan = resolve(load_recipe("gpt_tiny_dp2_cpu", ["train.steps=30"]))
    command = msrun_command(plan, master_port=9000)
    assert command[:13] == [
        *("msrun", "--worker_num", "2", "--local_worker_num", "2", "--node_rank", "0"),
        *("--master_addr", "127.0.0.1", "--master_port", "9000", "--cluster_time_out", "1800"),
    ]
    assert command[command.index("--log_dir") + 1] == "output/gpt_tiny_dp2_cpu/logs"
    assert command[-5:] == ["python", "-m", "msparallel.launch.worker", plan.recipe.path, "train.steps=30"]


def test_command_of_each_machine():
    plan = resolve(load_recipe("llama2_13b_dp8_tp4_pp2"))
    commands = [msrun_command(plan, node_rank=rank, master_addr="10.0.0.1") for rank in range(plan.nodes)]
    assert [command[command.index("--node_rank") + 1] for command in commands] == [str(r) for r in range(plan.nodes)]
    assert {command[command.index("--worker_num") + 1] for command in commands} == {"64"}
    assert {command[command.index("--local_worker_num") + 1] for command in commands} == {"8"}
    with pytest.raises(UserError, match="has 8 nodes, 0 to 7"):
        msrun_command(plan, node_rank=8)


def test_print_command_prints_it_and_starts_nothing(tmp_path):
    done = run(
        "run",
        "llama2_13b_dp8_tp4_pp2",
        "--print-command",
        "--node-rank",
        "3",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "8118",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.startswith("msrun --worker_num 64 ")
    assert "--node_rank 3 --master_addr 10.0.0.1 --master_port 8118" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("more", [[], ["--print-command"]])
def test_several_machines_need_their_numbers(more):
    done = run("run", "llama2_13b_dp8_tp4_pp2", *more)
    assert done.returncode == 2 and "--node-rank 0..7 --master-addr" in done.stderr and not done.stdout


@pytest.mark.parametrize("given", [["--node-rank", "0"], ["--master-addr", "10.0.0.1"]])
def test_one_machine_has_no_number(given):
    done = run("run", "gpt_tiny_dp2_cpu", *given, "--master-port", "8118", "--print-command")
    assert done.returncode == 2 and f"{given[0]}: gpt_tiny_dp2_cpu runs on one machine" in done.stderr


def test_print_command_as_json(tmp_path):
    done = run("run", "gpt_tiny_dp2_cpu", "--print-command", "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["argv"][:3] == ["msrun", "--worker_num", "2"]


def test_no_command_is_printed_that_would_empty_the_logs_of_a_run(tmp_path):
    plan = resolve(load_recipe("gpt_tiny_dp2_cpu", [f"train.output_dir={tmp_path}"]))
    words = ["run", "gpt_tiny_dp2_cpu", f"train.output_dir={tmp_path}", "--print-command"]
    with sole_run(plan):
        done = run(*words)
    assert done.returncode == 1 and not done.stdout and "Another process is training here" in done.stderr
    assert run(*words).returncode == 0


def test_fresh_is_for_one_machine():
    """Each machine would move the others' new output aside."""
    words = ["gpt_tiny_dp2_cpu", "cluster.nodes=2", "cluster.devices_per_node=1", "--node-rank", "1", "--fresh"]
    done = run("run", *words, "--master-addr", "127.0.0.1", "--master-port", "8118")
    assert done.returncode == 2 and "output/gpt_tiny_dp2_cpu" in done.stderr


def test_a_launch_leaves_the_files_of_other_machines(tmp_path):
    names = [f"{kind}_{rank}.{end}" for rank in range(4) for kind, end in (("rank", "json"), ("worker", "log"))]
    for name in names:
        (tmp_path / name).touch()
    clear_logs(tmp_path, range(2, 4))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "rank_0.json",
        "rank_1.json",
        "worker_0.log",
        "worker_1.log",
    ]


def test_the_end_on_a_machine_that_does_not_know_the_loss():
    plan = resolve(load_recipe("llama2_13b_dp8_tp4_pp2"))
    result = RunResult(world_size=64, losses=[], eval_losses=[], tokens_per_s=0.0, checkpoint="", resumed_from=None)
    assert closing_text(plan, result).endswith("machine 4 tells of the losses.")


def test_a_recipe_for_npus_says_what_is_possible_without(tmp_path):
    done = run("run", "llama2_7b_dp2_tp2_pp2", f"train.output_dir={tmp_path}/output")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    for words in ("needs 8 x Ascend", "msparallel validate", "msparallel show", "msparallel run quickstart"):
        assert words in done.stderr
    assert not list(tmp_path.iterdir())


def test_devices_are_counted_by_the_drivers_files(tmp_path):
    plan = resolve(load_recipe("llama2_7b_dp2_tp2_pp2"))
    for name in ("davinci_manager", "davinci0", "davinci1", "null"):
        (tmp_path / name).touch()
    assert ascend_devices(tmp_path) == 2
    with pytest.raises(UserError, match="only 2 are here"):
        check_devices(plan, tmp_path)
    for number in range(8):
        (tmp_path / f"davinci{number}").touch()
    check_devices(plan, tmp_path)
    check_devices(resolve(load_recipe("quickstart")), tmp_path / "none")


def test_a_port_in_use_is_named_with_one_that_is_free():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RunError, match=f"--master-port {port}: .*in use.*try --master-port") as caught:
            check_port("127.0.0.1", port)
        check_port("127.0.0.1", int(str(caught.value).split()[-1].strip(".")))
    check_port("127.0.0.1", free_port())


def test_a_port_in_use_ends_the_run(tmp_path):
    path = write_recipe(tmp_path, parallel__mode="data_parallel", parallel__data_parallel=2, train__micro_batch_size=2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("run", path, "--master-port", taken.getsockname()[1])
    assert done.returncode == 1 and "in use" in done.stderr and "Traceback" not in done.stderr


def test_the_first_failure_counts(tmp_path):
    statuses = [WorkerStatus(tmp_path, rank) for rank in range(3)]
    statuses[2].failed("disk full", exit_code=1)
    time.sleep(0.01)
    statuses[0].failed("lost rank 2", exit_code=1)
    failure = first_failure(read_states(tmp_path, range(3)))
    assert (failure.rank, failure.text) == (2, "disk full")
    statuses[1].done()
    assert [state.state for state in read_states(tmp_path, range(3))] == ["failed", "done", "failed"]
    assert first_failure(read_states(tmp_path, [1])) is None


def test_a_worker_that_is_gone_without_a_word_was_killed_and_comes_first(tmp_path):
    WorkerStatus(tmp_path, 0).failed("the other rank is gone", exit_code=1)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    WorkerStatus(tmp_path, 1)
    path = tmp_path / "rank_1.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": gone.pid}))
    failure = first_failure(read_states(tmp_path, range(2)))
    assert (failure.rank, failure.state) == (1, "killed")


def test_a_zombie_does_not_run(tmp_path):
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    WorkerStatus(tmp_path, 0)
    path = tmp_path / "rank_0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": zombie.pid}))
    assert read_states(tmp_path, [0])[0].state == "killed"
    zombie.wait()


@pytest.mark.parametrize("script, words, more", [
    ("run_1node.sh", [], []),
    ("run_multinode.sh", ["0", "127.0.0.1", "8118"], ["cluster.nodes=2", "cluster.devices_per_node=1"]),
])  # fmt: skip
def test_scripts_print_the_command_and_run_it(repo, tmp_path, script, words, more):
    """With stand-ins for the two programs on the path."""
    for name, text in (
        ("msrun", '#!/bin/sh\necho "msrun was given $*"\n'),
        ("msparallel", f'#!/bin/sh\nexec {sys.executable} -c "from msparallel.cli.main import main; main()" "$@"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(repo)}
    done = subprocess.run(
        ["bash", str(repo / "launch" / script), *words, "gpt_tiny_dp2_cpu", *more, "train.steps=30"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    command, ran = done.stdout.splitlines()
    assert command.startswith("msrun --worker_num 2") and ran == f"msrun was given {command[len('msrun ') :]}"
    assert ran.endswith("train.steps=30")


def test_a_script_without_a_recipe_says_how_to_call_it(repo):
    done = subprocess.run(["bash", str(repo / "launch" / "run_multinode.sh"), "0"], capture_output=True, text=True)
    assert done.returncode == 2 and "run_multinode.sh NODE_RANK ADDRESS PORT RECIPE" in done.stderr
