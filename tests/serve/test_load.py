"""Hundreds of clients at once, and the server's end under load: nothing that was let in is lost or mixed up."""

from __future__ import annotations

import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from crowd import crowd, health_probe
from served import MODEL, server_process

pytestmark = pytest.mark.pure


class Memory(threading.Thread):
    """MiB that a process has resident, now and each second until it is told that it is enough."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._status, self._enough = Path(f"/proc/{pid}/status"), threading.Event()
        self.mib: list[float] = []

    def run(self) -> None:
        while True:
            (line,) = [line for line in self._status.read_text().splitlines() if line.startswith("VmRSS:")]
            self.mib.append(int(line.split()[1]) / 1024)
            if self._enough.wait(1):
                return

    def enough(self) -> list[float]:
        self._enough.set()
        self.join()
        return self.mib


def stand(clients: int, seconds: float, capsys) -> list[float]:
    """MiB of the server, each second."""
    with server_process("step_s=0.002", "max_concurrency=16", "max_waiting=200", "wait_s=600") as (address, process):
        probe, memory = health_probe(address, seconds), Memory(process.pid)
        memory.start()
        end = time.monotonic() + seconds
        ends = crowd(address, clients, lambda: time.monotonic() < end)
        mib = memory.enough()
        told, _ = probe.communicate()
        count, median, late, longest = map(float, told.split())
        text = httpx.get(address + "/metrics").text
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        with capsys.disabled():
            print(f"\n{clients} clients, {seconds:g} s: {dict(ends)}; /healthz {count:.0f} times, median "
                  f"{median * 1e3:.1f} ms, 99 % {late * 1e3:.1f} ms, longest {longest * 1e3:.1f} ms; "
                  f"{mib[0]:.0f} MiB at first, at most {max(mib):.0f}")  # fmt: skip
        assert set(ends) <= {"200", "429"} and ends["200"] > 16
        assert float(values['msparallel_serve_requests_total{end="finished"}']) == ends["200"]
        assert float(values['msparallel_serve_requests_total{end="refused"}']) == ends["429"]
        for other in ("cancelled", "expired", "failed"):
            assert float(values[f'msparallel_serve_requests_total{{end="{other}"}}']) == 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    return mib


def test_five_hundred_clients(capsys):
    stand(500, 5, capsys)


@pytest.mark.slow
def test_five_hundred_clients_for_a_minute(capsys):
    mib = stand(500, 60, capsys)
    assert max(mib[-10:]) < max(mib[:20]) + 16, mib  # thousands of requests later


def test_sigterm_under_load_finishes_what_was_let_in():
    with server_process("step_s=0.01", "max_concurrency=8", "max_waiting=100") as (address, process):
        threading.Timer(1.5, process.send_signal, [signal.SIGTERM]).start()
        ends = crowd(address, 60, lambda: True)  # every client leaves with its first 503
        assert process.wait(30) == 0
        assert ends["503"] == 60 and ends["200"] > 0 and set(ends) <= {"200", "429", "503"}
        assert "requests to finish" in process.stderr.read()


def slow_request(address: str, found: list) -> threading.Thread:
    def ask() -> None:
        try:
            body = {"model": MODEL, "prompt": "a", "max_tokens": 500, "stream": True}
            found.append(httpx.post(f"{address}/v1/completions", json=body, timeout=60))
        except httpx.HTTPError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread


def test_while_it_ends_it_says_so():
    with server_process("step_s=0.01") as (address, process):
        thread = slow_request(address, found := [])
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert httpx.get(address + "/readyz").json()["state"] == "draining"
        assert httpx.get(address + "/healthz").status_code == 200
        refused = httpx.post(f"{address}/v1/completions", json={"model": MODEL, "prompt": "b"})
        assert refused.status_code == 503 and "retry-after" in refused.headers
        thread.join()
        assert found[0].text.endswith("data: [DONE]\n\n")
        assert process.wait(30) == 0


def test_what_does_not_end_in_time_is_told():
    with server_process("step_s=0.02", "drain_s=0.5") as (address, process):
        thread = slow_request(address, found := [])
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - begin < 8
        thread.join()
        assert '"code": "draining"' in found[0].text and "0.5 s were not enough" in found[0].text


def test_a_second_signal_ends_it_at_once():
    with server_process("step_s=0.05") as (address, process):
        thread = slow_request(address, [])
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        process.wait(30)
        assert time.monotonic() - begin < 10
        thread.join()


def test_a_second_signal_tells_those_who_wait():
    with server_process("step_s=0.05") as (address, process):
        whole = []

        def ask() -> None:
            body = {"model": MODEL, "prompt": "a", "max_tokens": 500}
            whole.append(httpx.post(f"{address}/v1/completions", json=body, timeout=60))

        threads = [slow_request(address, streamed := []), threading.Thread(target=ask)]
        threads[1].start()
        time.sleep(1)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        for thread in threads:
            thread.join()
        assert whole[0].status_code == 503 and whole[0].json()["error"]["code"] == "draining"
        assert '"code": "draining"' in streamed[0].text and "told to end at once" in streamed[0].text
        assert process.wait(30) == 0 and "Traceback" not in process.stderr.read()


def test_bodies_that_do_not_come_keep_no_server_from_its_end():
    with server_process("step_s=0.01") as (address, process):
        host, port = address.removeprefix("http://").split(":")
        half = (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                b"Content-Length: 1000\r\n\r\n{")  # fmt: skip
        clients = [socket.create_connection((host, int(port)), timeout=30) for _ in range(10)]
        for client in clients:
            client.sendall(half)
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        answers = [b"".join(iter(lambda client=client: client.recv(65536), b"")) for client in clients]
        assert process.wait(30) == 0 and time.monotonic() - begin < 8
        assert all(answer.startswith(b"HTTP/1.1 503") and b'"draining"' in answer for answer in answers), answers[0]
        assert "Traceback" not in process.stderr.read()


def test_an_engine_that_died_is_exit_code_1():
    with server_process("die_at=5") as (address, process):
        assert httpx.post(f"{address}/v1/completions", json={"model": MODEL, "prompt": "b"}).status_code == 503
        assert httpx.get(address + "/healthz").status_code == 503
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
        assert "the engine died" in process.stderr.read()
