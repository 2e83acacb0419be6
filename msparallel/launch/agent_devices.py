"""The devices of a node, asked in the background: a driver that hangs must not hold up the agent.

In: how many devices the node's part uses. Out: `latest()`, what npu-smi said last, once each time.

>>> DeviceWatch(8).latest() is None  # doctest: +SKIP
True
"""

from __future__ import annotations

import os
import re
import threading
import time
from typing import Any

from msparallel.devices.npu_smi import Device
from msparallel.devices.query import NPU_SMI, find_tool, query_devices
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.errors import UserError

DEVICES_S = 30.0
"""Between two questions; one takes about a second for each card."""


class DeviceWatch:
    """Asks npu-smi every `every_s` seconds, where it is there."""

    def __init__(self, used: int, every_s: float = DEVICES_S):
        self._used, self._every_s = used, every_s
        self._latest: dict[str, Any] | None = None
        if find_tool(NPU_SMI) is not None:
            threading.Thread(target=self._ask_for_ever, daemon=True).start()

    def latest(self) -> dict[str, Any] | None:
        """Fields of the `devices` event, None where there is nothing new."""
        found, self._latest = self._latest, None
        return found

    def _ask_for_ever(self) -> None:
        while True:
            try:
                devices = used_devices(query_devices().devices, self._used)
                self._latest = {"devices": [_told(device) for device in devices], "error": ""}
            except (DeviceUnavailable, UserError) as error:
                self._latest = {"devices": [], "error": str(error)}
            time.sleep(self._every_s)


def used_devices(devices: tuple[Device, ...], used: int, visible: str | None = None) -> list[Device]:
    """Those that the node's ranks run on: rank i of a node has its i-th visible device.

    Args:
        visible: as ASCEND_RT_VISIBLE_DEVICES; left out: this process's.
    """
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "") if visible is None else visible
    if re.fullmatch(r"\d{1,4}(,\d{1,4})*", visible):
        numbers = [int(word) for word in visible.split(",")]
    else:
        numbers = list(range(len(devices)))
    return [devices[number] for number in numbers[:used] if number < len(devices)]


def _told(device: Device) -> dict[str, Any]:
    return {
        "device": device.label,
        "name": device.name,
        "health": device.health,
        "temperature_c": device.temperature_c,
        "memory_used_mib": device.memory_used_mib,
        "memory_total_mib": device.memory_total_mib,
        "aicore_percent": device.aicore_percent,
    }
