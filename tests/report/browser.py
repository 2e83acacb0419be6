"""Headless Chromium through the WebDriver protocol of its own chromedriver: no package, no download.

In: the address of a page. Out: what is on it, what its scripts return, its console, the addresses it asked for.

>>> with Browser(tmp_path) as browser:
...     browser.open(page.as_uri())
...     browser.run("return document.title")
'Dry run: small.yaml'
"""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--hide-scrollbars",
)  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which WebDriver names an element."""
START_S = 30.0


def missing() -> str:
    """What is not installed here, "" where all is."""
    names = [name for name in ("chromedriver", "chromium") if shutil.which(name) is None]
    return f"not installed: {', '.join(names)}" if names else ""


class Browser:
    """One browser with an empty profile."""

    def __init__(self, folder: Path, *, dark: bool = False):
        self._port = _free_port()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
        self._driver = subprocess.Popen(
            ["chromedriver", f"--port={self._port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._session = ""
        profile = folder / "profile"
        profile.mkdir()
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        options = {"args": [*FLAGS, scheme, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        try:
            self._wait()
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        except BaseException:
            self._driver.kill()
            self._driver.wait()
            raise
        self._session = f"/session/{made['sessionId']}"
        self.open("about:blank")  # ends the browser's own first page, and what that asked for
        self.requests()
        self.console()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._driver.terminate()
            self._driver.wait()

    def open(self, address: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": address})

    def size(self, width: int, height: int) -> None:
        """Set what the page sees, also below the least width of a window."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._devtools("Emulation.setDeviceMetricsOverride", metrics)

    def run(self, script: str, *arguments: Any) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, path: str) -> dict[str, str]:
        """The one element of an XPath."""
        return self._call("POST", f"{self._session}/element", {"using": "xpath", "value": path})

    def point(self, element: dict[str, str], right: int = 0, down: int = 0) -> None:
        """Move the mouse onto an element: its middle, or so many pixels from it."""
        self._into_sight(element)
        self._mouse({"type": "pointerMove", "duration": 0, "x": right, "y": down, "origin": element})

    def drag(self, element: dict[str, str], right: int) -> None:
        """Take an element at its middle and pull."""
        self._into_sight(element)
        self._mouse(
            {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": element},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerMove", "duration": 0, "x": right, "y": 0, "origin": "pointer"},
            {"type": "pointerUp", "button": 0},
        )

    def scroll(self, element: dict[str, str], down: int, right: int = 0) -> None:
        """Turn the wheel over an element's middle, by pixels."""
        self._into_sight(element)
        turn = {"type": "scroll", "duration": 0, "x": 0, "y": 0, "deltaX": right, "deltaY": down, "origin": element}
        self._act({"type": "wheel", "id": "wheel", "actions": [turn]})

    def _into_sight(self, element: dict[str, str]) -> None:
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)

    def _mouse(self, *moves: dict[str, Any]) -> None:
        kind = {"pointerType": "mouse"}
        self._act({"type": "pointer", "id": "mouse", "parameters": kind, "actions": list(moves)})

    def _act(self, device: dict[str, Any]) -> None:
        self._call("POST", f"{self._session}/actions", {"actions": [device]})

    def click(self, element: dict[str, str]) -> None:
        self._call("POST", f"{self._session}/element/{element[ELEMENT]}/click", {})

    def press(self, key: str) -> None:
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def console(self) -> list[str]:
        """Messages of the console since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    def requests(self) -> list[str]:
        """Addresses that the page asked for since the last call."""
        entries = self._call("POST", f"{self._session}/se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        sent = [message for message in messages if message["method"] == "Network.requestWillBeSent"]
        return [message["params"]["request"]["url"] for message in sent]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def _devtools(self, command: str, settings: dict[str, Any]) -> Any:
        return self._call("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": settings})

    def _wait(self) -> None:
        until = time.monotonic() + START_S
        while True:
            try:
                if self._call("GET", "/status")["ready"]:
                    return
            except (urllib.error.URLError, ConnectionError):
                pass
            if time.monotonic() > until or self._driver.poll() is not None:
                raise RuntimeError(f"chromedriver does not answer (exit code {self._driver.poll()})")
            time.sleep(0.1)

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode("utf-8")
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}{path}", data=data, method=method)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {json.load(error)['value']['message']}") from None


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
