"""Many clients at once, each over its own connections, with as little work a request as Python allows.

In: the address, how many clients, when to stop. Out: what every request came to; anything but a whole and right answer
or a refusal in its shape is an assertion. Beside them a process asks /healthz and says how long that took.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable

from fake_engine import letters
from served import MODEL

TOKENS = 12
PROBE = """
import http.client, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
took, end = [], time.monotonic() + seconds
while time.monotonic() < end:
    begin = time.monotonic()
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()
    took.append(time.monotonic() - begin)
    time.sleep(0.02)
took.sort()
print(len(took), took[len(took) // 2], took[int(len(took) * 0.99)], took[-1])
"""


async def exchange(host: str, port: int, body: dict[str, object]) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of a POST to /v1/completions on a connection of its own."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)  # fmt: skip
        answer = await reader.read(-1)
    finally:
        writer.close()
    assert answer, "the connection was closed without an answer"
    head, _, rest = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        assert rest.endswith(b"0\r\n\r\n"), "the answer was cut off"
        rest = b"".join(part for part in rest.split(b"\r\n") if part.startswith(b"data: "))
    else:
        assert len(rest) == int(headers["content-length"]), "the answer was cut off"
    return int(first.split()[1]), headers, rest


async def one_client(number: int, host: str, port: int, go_on: Callable[[], bool], ends: Counter[str]) -> None:
    asked = 0
    while go_on():
        asked += 1
        prompt, stream = f"client {number} asks {asked}", (number + asked) % 3 == 0
        status, headers, body = await exchange(host, port, {"model": MODEL, "prompt": prompt, "stream": stream,
                                                            "max_tokens": TOKENS})  # fmt: skip
        ends[str(status)] += 1
        if status == 200:
            parts = [json.loads(part) for part in body.split(b"data: ") if part.startswith(b"{")]
            text = "".join(part["choices"][0]["text"] for part in parts)
            assert text == letters(prompt.encode(), TOKENS)
        elif status == 429:
            assert json.loads(body)["error"]["code"] == "queue_full"
            await asyncio.sleep(min(int(headers["retry-after"]), 1))
        else:
            assert status == 503 and json.loads(body)["error"]["code"] == "draining", body
            return


def crowd(address: str, clients: int, go_on: Callable[[], bool]) -> Counter[str]:
    """Requests by status."""
    host, port = address.removeprefix("http://").split(":")
    ends: Counter[str] = Counter()

    async def all_of_them() -> None:
        await asyncio.gather(*(one_client(number, host, int(port), go_on, ends) for number in range(clients)))

    asyncio.run(all_of_them())
    return ends


def health_probe(address: str, seconds: float) -> subprocess.Popen[str]:
    """A process that prints: how often, median, 99th percentile and longest of the seconds that /healthz took."""
    host, port = address.removeprefix("http://").split(":")
    return subprocess.Popen([sys.executable, "-c", PROBE, host, port, str(seconds)], stdout=subprocess.PIPE, text=True)
