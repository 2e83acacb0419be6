"""launch/setup_env.sh, sourced in bash with a made-up /usr/local/Ascend."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure
SCRIPT = Path(__file__).parents[2] / "launch" / "setup_env.sh"
OURS = ("ASCEND", "HCCL", "OMP", "LD_LIBRARY_PATH", "PATH_OF_CANN")


def source(tmp_path: Path, *arguments: str, options: str = "-u", then: str = "", **variables: str):
    """stderr, and the variables after it was sourced in an environment of nothing but these."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"),
                   "MSPARALLEL_ASCEND_ROOT": str(tmp_path / "ascend"),
                   "MSPARALLEL_DEV": str(tmp_path / "dev"), **variables}  # fmt: skip
    words = " ".join(arguments)
    command = f"source {SCRIPT} {words}; code=$?; {then}\nenv -0 > {tmp_path}/after; exit $code"
    done = subprocess.run(["bash", *([options] if options else []), "-c", command], env=environment, cwd=tmp_path,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    told = dict(pair.split("=", 1) for pair in (tmp_path / "after").read_text().split("\0") if "=" in pair)
    assert done.stdout == ""
    return done, {name: value for name, value in told.items() if name.startswith(OURS)}


def cann(tmp_path: Path, where: str, code: int = 0) -> None:
    path = tmp_path / "ascend" / where
    path.mkdir(parents=True)
    (path / "set_env.sh").write_text(
        f'export ASCEND_HOME_PATH={path}\nexport LD_LIBRARY_PATH={path}/lib64:$LD_LIBRARY_PATH\necho "noise $UNSET"\n'
        f"return {code}\n"
    )


def test_what_it_sets_and_says(tmp_path):
    cann(tmp_path, "cann")
    (tmp_path / "ascend/driver/lib64/driver").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for number in range(2):
        (tmp_path / f"dev/davinci{number}").write_text("")
    done, told = source(tmp_path)
    assert done.returncode == 0
    assert told["ASCEND_HOME_PATH"] == f"{tmp_path}/ascend/cann"
    lib64 = f"{tmp_path}/ascend/driver/lib64"
    assert told["LD_LIBRARY_PATH"].split(":")[-2:] == [lib64, f"{lib64}/driver"]
    assert told["HCCL_CONNECT_TIMEOUT"] == "600"
    assert told["ASCEND_PROCESS_LOG_PATH"] == f"{tmp_path}/output/ascend_log/{os.uname().nodename}"
    assert Path(told["ASCEND_PROCESS_LOG_PATH"]).is_dir()
    assert told["OMP_NUM_THREADS"] == str(max(1, len(os.sched_getaffinity(0)) // 2))
    assert told.get("HCCL_SOCKET_IFNAME", "=").startswith("=")
    assert "setup_env: HCCL_CONNECT_TIMEOUT=600\n" in done.stderr and "give" not in done.stderr


def test_nothing_that_is_set_is_overwritten(tmp_path):
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").write_text("")
    mine = {"HCCL_CONNECT_TIMEOUT": "7200", "ASCEND_PROCESS_LOG_PATH": "/var/mine", "HCCL_SOCKET_IFNAME": "",
            "OMP_NUM_THREADS": "3", "ASCEND_HOME_PATH": "/opt/cann", "LD_LIBRARY_PATH": "/x"}  # fmt: skip
    done, told = source(tmp_path, **mine)
    assert told == mine and done.returncode == 0
    assert "HCCL_CONNECT_TIMEOUT=7200 (as it was)" in done.stderr and "CANN is /opt/cann (as it was)" in done.stderr
    done, told = source(tmp_path, HCCL_IF_IP="192.0.2.1")
    assert "HCCL_SOCKET_IFNAME" not in told


def test_explain_gives_reasons_and_quiet_says_nothing(tmp_path):
    done, _ = source(tmp_path, "--explain")
    assert "by default the first gives up after 120 s" in done.stderr and "Left to HCCL: HCCL_ALGO" in done.stderr
    done, told = source(tmp_path, "--quiet")
    assert done.stderr == "" and told["HCCL_CONNECT_TIMEOUT"] == "600"


@pytest.mark.parametrize("places", [["cann-8.5.0", "cann-9.0.0"], ["ascend-toolkit", "cann"], ["ascend-toolkit"]])
def test_where_cann_is_looked_for(tmp_path, places):
    for place in places:
        cann(tmp_path, place)
    _, told = source(tmp_path)
    assert told["ASCEND_HOME_PATH"] == f"{tmp_path}/ascend/{places[-1]}"


def test_cann_of_a_user(tmp_path):
    (tmp_path / "home/Ascend/cann").mkdir(parents=True)
    (tmp_path / "home/Ascend/cann/set_env.sh").write_text("export ASCEND_HOME_PATH=mine\n")
    assert source(tmp_path)[1]["ASCEND_HOME_PATH"] == "mine"


def test_no_cann_is_told_and_no_failure(tmp_path):
    done, told = source(tmp_path, "--explain")
    assert done.returncode == 0 and "no CANN under" in done.stderr and "ASCEND_HOME_PATH" not in told
    assert "OMP_NUM_THREADS" not in told, "no devices, no share of the cores"


def test_a_set_env_that_fails_is_told(tmp_path):
    cann(tmp_path, "cann", code=3)
    done, told = source(tmp_path)
    assert done.returncode == 1 and "ended with code 3" in done.stderr and told["HCCL_CONNECT_TIMEOUT"] == "600"


@pytest.mark.parametrize("options", ["", "-u", "-e", "-eu", "-euo pipefail"])
def test_the_shells_options_stay_and_nothing_is_left_behind(tmp_path, options):
    cann(tmp_path, "cann")
    script = tmp_path / "outer.sh"
    script.write_text(f"set {options or '+x'}\nbefore=$-\nsource {SCRIPT} --quiet\n[ \"$before\" = \"$-\" ] || exit 9\n"
                      "set +eu\ncompgen -A function _msparallel; compgen -v _msparallel\nexit 0\n")  # fmt: skip
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=60,
                          env={"PATH": "/usr/bin:/bin",
                               "MSPARALLEL_ASCEND_ROOT": str(tmp_path / "ascend")})  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_log_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    done, told = source(tmp_path, MSPARALLEL_LOG_DIR=str(tmp_path / "file/below"))
    assert done.returncode == 0 and "cannot be made" in done.stderr and "ASCEND_PROCESS_LOG_PATH" not in told


@pytest.mark.parametrize("shell", ["sh", "dash"])
def test_another_shell_is_told(tmp_path, shell):
    if shutil.which(shell) is None or Path(shutil.which(shell)).resolve().name == "bash":
        pytest.skip(f"{shell} is not here, or is bash")
    done = subprocess.run([shell, "-c", f". {SCRIPT}; echo $?"], capture_output=True, text=True, timeout=60)
    assert "this is for bash" in done.stderr and "2" in done.stdout


def test_starting_it_instead_of_sourcing_it_is_told():
    done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "Source it: source" in done.stderr


def test_what_it_sets_is_fine_by_the_doctor(tmp_path):
    from msparallel.devices.tool_text import Place
    from msparallel.doctor.env_rules import check_variables
    from msparallel.doctor.recording import Value

    cann(tmp_path, "cann")
    _, told = source(tmp_path)
    assert check_variables({name: Value(text, Place("env", 1)) for name, text in told.items()}, "node", "910B2") == []


@pytest.mark.parametrize("word", ["--explian", "explain", "-q", "--help"])
def test_a_word_that_is_none_of_its_own_sets_nothing(tmp_path, word):
    done, told = source(tmp_path, word, then="declare -F | grep msparallel")
    assert done.returncode == 2 and told == {}
    assert done.stderr == f"setup_env: {word} is none of its words; they are --explain and --quiet. Nothing was set.\n"


def test_a_script_that_sources_it_keeps_its_own_words(tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(f"source {SCRIPT}\necho code $? words $*\n")
    done = subprocess.run(["bash", script, "3", "--port"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})  # fmt: skip
    assert done.stdout == "code 0 words 3 --port\n" and "HCCL_CONNECT_TIMEOUT=600" in done.stderr


def test_the_second_equals_sign_is_explained_where_it_is_seen(tmp_path):
    done, told = source(tmp_path, HCCL_SOCKET_IFNAME="=eth0")
    assert told["HCCL_SOCKET_IFNAME"] == "=eth0"
    if "HCCL_SOCKET_IFNAME=" in done.stderr:  # this machine has a default route
        told = "HCCL_SOCKET_IFNAME==eth0 (as it was)\nsetup_env:   the second = is HCCL's: this card alone"
        assert told in done.stderr
    done, _ = source(tmp_path, HCCL_SOCKET_IFNAME="eth0")
    assert "the second =" not in done.stderr
