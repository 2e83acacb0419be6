"""Command lines for other machines: what a shell at the other end reads is the argument list, whatever is in it."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.errors import UserError
from msparallel.launch.connect import has_address, is_this_machine, node_command, parse_shell, remote_shell

pytestmark = pytest.mark.pure
WORDS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=30)
SHOW = [sys.executable, "-c", "import os, sys; print(ascii([os.getcwd(), os.environ.get('A_B'), *sys.argv[1:]]))"]


def local_shell(folder) -> list[str]:
    """A stand-in for ssh: gives its last word to a shell, as sshd does."""
    script = folder / "agent"
    script.write_text('#!/bin/sh\necho "$1" >"$0.host"\nexec sh -c "$2"\n')
    script.chmod(0o755)
    return [str(script)]


def test_ssh_gets_the_host_behind_two_dashes_and_one_string():
    command = node_command("node_1", ["python", "-m", "x", "a b"], cwd="/my data", env={"PATH": "/x y:/z"})
    assert command[0] == "ssh" and command[-3:-1] == ["--", "node_1"]
    assert command[-1] == "cd '/my data' && exec env 'PATH=/x y:/z' python -m x 'a b'"
    words = " ".join(command)
    for option in ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"):
        assert f"-o {option}" in words


def test_ssh_with_options_of_its_own_keeps_them_in_front():
    command = node_command("node_1", ["true"], shell=parse_shell("/usr/bin/ssh -p 2222 -o ConnectTimeout=3"))
    assert command[:5] == ["/usr/bin/ssh", "-p", "2222", "-o", "ConnectTimeout=3"]
    assert command[-3:] == ["--", "node_1", "exec true"]


def test_another_program_gets_host_and_command_line(tmp_path):
    shell = local_shell(tmp_path)
    (tmp_path / "a b").mkdir()
    command = node_command("node_1", [*SHOW, "x y", "$(id)"], shell=shell, cwd=f"{tmp_path}/a b", env={"A_B": "'`1"})
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ascii([f"{tmp_path}/a b", "'`1", "x y", "$(id)"]) + "\n"
    assert (tmp_path / "agent.host").read_text() == "node_1\n"


@given(words=st.lists(WORDS, max_size=5), value=WORDS)
@settings(max_examples=40, deadline=None)
def test_any_word_arrives_as_it_is(tmp_path_factory, words, value):
    shell = local_shell(tmp_path_factory.mktemp("shell"))
    command = node_command("node_1", [*SHOW, *words], shell=shell, cwd="/", env={"A_B": value})
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == ascii(["/", value, *words]) + "\n"


def test_this_machine_runs_it_without_a_shell(tmp_path):
    assert node_command("localhost", ["a", "$b"]) == ["a", "$b"]
    done = subprocess.run(
        node_command(socket.gethostname(), [*SHOW, "$b"], cwd=str(tmp_path), env={"A_B": "1"}, shell=["unused"]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == ascii([str(tmp_path), "1", "$b"]) + "\n"


@pytest.mark.parametrize(
    "host", ["-oProxyCommand=id", "a;b", "a b", "$(id)", "", "a" * 65, "a\nb", "user@host", "../x", "fe80::1%eth0"]
)
def test_what_is_no_host_is_refused(host):
    with pytest.raises(UserError, match="is no host: a name of letters"):
        node_command(host, ["true"])


def test_control_characters_and_odd_variables_are_refused():
    for arguments in ({"argv": ["a\nb"]}, {"argv": ["a"], "cwd": "/x\0"}, {"argv": ["a"], "env": {"A": "\x1b"}}):
        with pytest.raises(UserError, match="control character"):
            node_command("node_1", **arguments)
    for name in ("1A", "A B", "A;B", "", "A=B", "LD_PRELOAD\n"):
        with pytest.raises(UserError, match="no name of a variable"):
            node_command("node_1", ["a"], env={name: "1"})


@pytest.mark.parametrize("text", ["", "   ", "-x", "ssh 'unclosed", "ssh \x1b[0m"])
def test_what_names_no_program_is_refused(text):
    with pytest.raises(UserError, match="--remote-shell"):
        parse_shell(text)


def test_the_program_that_reaches_nodes_is_looked_for_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert remote_shell(None, ["localhost"]) is None  # nobody else is to be reached
    for text, hosts in ((None, ["localhost", "node_1"]), ("rsh -l me", []), (f"{tmp_path}/rsh", [])):
        with pytest.raises(UserError, match="there is no program"):
            remote_shell(text, hosts)
    (tmp_path / "rsh").write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match="there is no program"):  # not one that can be started
        remote_shell("rsh", [])
    (tmp_path / "rsh").chmod(0o755)
    assert remote_shell("rsh -l me", ["node_1"]) == ["rsh", "-l", "me"]
    assert remote_shell(f"{tmp_path}/rsh", ["node_1"]) == [f"{tmp_path}/rsh"]


def test_which_addresses_are_here():
    assert has_address("127.0.0.1") and is_this_machine("127.0.0.1") and is_this_machine("localhost")
    for other in ("192.0.2.77", "2001:db8::77", "0.0.0.0"):
        assert not is_this_machine(other)
    assert not is_this_machine("node_that_is_elsewhere")
