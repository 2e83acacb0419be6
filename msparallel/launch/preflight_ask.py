"""The launcher asks all nodes, at once.

In: a Layout and how to reach its hosts. Out: an Answer of every node: its Facts, or why there are none. Node 0 is asked
first and stays until the others have looked for its marker and called its port.

>>> [answer.failure for answer in ask_all(layout, asking)]
['', 'ssh: connect to host node_1 port 22: Connection refused']
"""

from __future__ import annotations

import json
import os
import re
import secrets
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from msparallel.cluster.hosts import Host
from msparallel.errors import short
from msparallel.launch.connect import node_command
from msparallel.launch.hosts import Layout
from msparallel.launch.preflight_facts import MOST_BYTES, Facts, Request, facts_from

ANSWER_S = 60.0
"""A node on a cold file server needs ten seconds or more to import the package."""
AT_ONCE = 64
_HINTS = (
    (r"Permission denied \(", "ssh asks for a password there: copy your key with ssh-copy-id {host}."),
    (r"Host key verification failed", "The host's key is not known here: connect once by hand with ssh {host}."),
    (r"Could not resolve hostname|Name or service not known",
     "ssh knows no such name: write the address as the name in the host list, or add it to ~/.ssh/config (Host {host}, "
     "HostName ADDRESS)."),
    (r"Connection refused|No route to host|Network is unreachable|timed out|No answer within",
     "Is the machine up, and does sshd listen there? Try ssh {host} true."),
    (r"No module named '?msparallel",
     "msparallel is not installed for that Python. Install it there, or name another one with --python PATH."),
    (r"No module named",
     "That Python lacks what msparallel needs. Install it there, or name another one with --python PATH."),
    (r"can't cd|cd: |cannot change directory",
     "The working directory is not there. Name one that every node has with --workdir PATH."),
    (r"not found|No such file or directory",
     "Is this Python there? Name the one that every node has with --python PATH."),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Asking:
    """How nodes are reached and what they run.

    Attributes:
        shell: see node_command.
        env: variables that go along.
    """

    recipe: str
    overrides: tuple[str, ...]
    python: str
    workdir: str
    env: Mapping[str, str]
    shell: Sequence[str] | None = None

    def command(self, host: Host, module: str, *arguments: str) -> list[str]:
        """Argument list that runs a module of ours on a host."""
        argv = [self.python, "-m", module, *arguments]
        return node_command(host.name, argv, shell=self.shell, cwd=self.workdir, env=self.env)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Attributes:
    facts: None where there is no answer; `failure` says why and what to do.
    clock_s: the node's clock minus this machine's, by no more than is sure: 0 where the node's time lies between the
        question and the answer.
    """

    host: Host
    node_rank: int
    facts: Facts | None = None
    failure: str = ""
    clock_s: float = 0.0


def ask_all(layout: Layout, asking: Asking, answered: Callable[[int], object] = lambda count: None) -> list[Answer]:
    """Answers in the order of the nodes.

    Args:
        answered: called with 1 for each node that has answered, or failed to.
    """
    token = secrets.token_hex(8)

    def request(node_rank: int) -> Request:
        return Request(
            recipe=asking.recipe,
            overrides=asking.overrides,
            node_rank=node_rank,
            nodes=len(layout.nodes),
            master_addr=layout.master_addr,
            master_port=layout.master_port,
            token=token,
        )

    with _Asked(asking, layout.nodes[0], request(0)) as first:
        answers = [first.answer()]
        answered(1)

        def ask(node_rank: int) -> Answer:
            with _Asked(asking, layout.nodes[node_rank], request(node_rank)) as one:
                answer = one.answer()
            answered(1)
            return answer

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            answers += pool.map(ask, range(1, len(layout.nodes)))
    return answers


class _Asked:
    """One node's pre-flight. It ends with its input, so also when this process does."""

    def __init__(self, asking: Asking, host: Host, request: Request):
        self._host, self._request = host, request
        command = asking.command(host, "msparallel.launch.preflight", request.to_json())
        self._process: subprocess.Popen[bytes] | None = None
        self._failure, self._asked_s = "", time.time()
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = f"{command[0]}: {error.strerror}"

    def __enter__(self) -> _Asked:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is None:
            return
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()

    def answer(self) -> Answer:
        """The first line that is one, or why there is none."""
        facts, failure, came = None, self._failure, 0.0
        if self._process is not None:
            value, failure = _read(self._process, ANSWER_S)
            came = time.time()
            if value is not None:
                try:
                    facts = facts_from(value)
                except ValueError as error:
                    version = value.get("msparallel") if isinstance(value, dict) else None
                    other = f"msparallel {short(version, 40)}" if isinstance(version, str) else "another version"
                    failure = f"It runs {other} of msparallel, whose pre-flight differs from this one's ({error})."
        if failure:
            failure += _hint(failure, self._host.name)
        return Answer(
            host=self._host,
            node_rank=self._request.node_rank,
            facts=facts,
            failure=failure,
            clock_s=_beyond(facts.time, self._asked_s, came) if facts else 0.0,
        )


def _beyond(moment: float, first: float, last: float) -> float:
    """How far a moment lies outside of a span; a busy node may write its answer long before it is read.

    >>> _beyond(5.0, 1.0, 9.0), _beyond(0.0, 1.0, 9.0), _beyond(11.0, 1.0, 9.0)
    (0.0, -1.0, 2.0)
    """
    return moment - min(max(moment, first), last)


def _read(process: subprocess.Popen[bytes], seconds: float) -> tuple[Any, str]:
    """(JSON object, '') or (None, what happened). Other lines on stdout are a login's greetings."""
    assert process.stdout and process.stderr
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for stream in kept:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = deadline - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                return None, f"No answer within {seconds:g} s.{_last(kept[process.stderr])}"
            for key, _ in ready:
                stream = key.fileobj
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    selector.unregister(stream)
                    continue
                kept[stream] += chunk
                if len(kept[stream]) > MOST_BYTES:
                    return None, f"It wrote more than {MOST_BYTES:,} bytes and no answer."
            value = _object(bytes(kept[process.stdout]))
            if value is not None:
                return value, ""
    code = process.wait()
    return None, _last(kept[process.stderr]).strip() or f"It ended with code {code} and without a word."


def _object(data: bytes) -> Any:
    """The JSON object on a whole line of this output, None where there is none yet."""
    for line in data.split(b"\n")[:-1]:
        if line.startswith(b'{"format":'):
            try:
                return json.loads(line)
            except (ValueError, RecursionError):
                return None
    return None


def _last(data: bytearray, most: int = 3) -> str:
    """The last lines of what a program complained about."""
    lines = [line.strip() for line in bytes(data).decode("utf-8", "replace").splitlines() if line.strip()]
    return "".join(f" {short(line, 300)}" for line in lines[-most:])


def _hint(failure: str, host: str) -> str:
    found = next((hint for pattern, hint in _HINTS if re.search(pattern, failure)), "")
    return f"\n  {found.format(host=host)}" if found else ""
