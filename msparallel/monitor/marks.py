"""What is wrong with devices, in words.

In: the DeviceTable of a host, Limits, for how many samples each device has idled. Out: Marks. Health is the driver's
own verdict; the limits are choices of ours, since no published figure was found for the temperature at which Atlas
servers slow down: set --temperature-limit to what your machine room knows.

>>> [mark.text for mark in marks_of(table, "node_0", Limits(), {})]  # doctest: +SKIP
['health is Alarm', '91 C, the limit is 85: check the fans']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msparallel.devices.npu_smi import Device, DeviceTable
from msparallel.errors import printable

IDLE_PERCENT = 5.0
WORKING_PERCENT = 20.0
NEAR_C = 5.0

Key = tuple[str, int, int]


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Attributes:
    temperature_c: a device is marked from NEAR_C below it.
    memory_fraction: of the device's memory.
    """

    temperature_c: float = 85.0
    memory_fraction: float = 0.95


@dataclass(frozen=True, kw_only=True)
class Mark:
    """`kind`: health, temperature, memory or idle."""

    host: str
    npu_id: int
    chip_id: int
    kind: str
    text: str


def key_of(host: str, device: Device) -> Key:
    """What names a device from sample to sample."""
    return host, device.npu_id, device.chip_id


def memory_fraction(device: Device) -> float | None:
    """Used of total; None where npu-smi does not tell."""
    if device.memory_used_mib is None or not device.memory_total_mib:
        return None
    return device.memory_used_mib / device.memory_total_mib


def idle_among_working(table: DeviceTable) -> frozenset[tuple[int, int]]:
    """(NPU id, chip id) of devices that do nothing while their neighbours work.

    A device with a process counts where at least half of the others with a process work. One without counts where at
    least three of four others on the machine work: its worker is gone, or never was; with fewer it may just be free.
    """
    told = [device for device in table.devices if device.aicore_percent is not None]
    held = {(process.npu_id, process.chip_id) for process in table.processes}

    def works(device: Device) -> bool:
        return (device.aicore_percent or 0.0) >= WORKING_PERCENT

    found = set()
    for device in told:
        place = device.npu_id, device.chip_id
        if (device.aicore_percent or 0.0) > IDLE_PERCENT:
            continue
        busy = place in held
        others = [d for d in told if d is not device and (not busy or (d.npu_id, d.chip_id) in held)]
        working = sum(map(works, others))
        if others and working >= len(others) * (0.5 if busy else 0.75):
            found.add(place)
    return frozenset(found)


def marks_of(table: DeviceTable, host: str, limits: Limits, idle_samples: Mapping[Key, int]) -> tuple[Mark, ...]:
    """All marks, in the order of the devices.

    Args:
        idle_samples: for how many samples in a row a device was in `idle_among_working`.
    """
    marks = []
    for device in table.devices:
        for kind, text in _texts(device, table, limits, idle_samples.get(key_of(host, device), 0)):
            marks.append(Mark(host=host, npu_id=device.npu_id, chip_id=device.chip_id, kind=kind, text=text))
    return tuple(marks)


def _texts(device: Device, table: DeviceTable, limits: Limits, idle_samples: int) -> list[tuple[str, str]]:
    texts = []
    if not device.healthy:
        texts.append(("health", f"health is {printable(device.health)}"))
    heat, limit = device.temperature_c, limits.temperature_c
    if heat is not None and heat >= limit - NEAR_C:
        texts.append(("temperature", f"{heat:g} C, the limit is {limit:g}: check the fans"))
    used = memory_fraction(device)
    if used is not None and used > limits.memory_fraction:
        texts.append(("memory", f"{used:.1%} of its memory is in use"))
    if idle_samples:
        samples = f"{idle_samples} sample{'s' * (idle_samples > 1)}"
        if not table.has_process_table:
            why = "it waits, or its worker is dead"
        elif table.processes_of(device):
            why = "its worker waits, or stands still"
        else:
            why = "no process is on it, its worker is gone or was never there"
        texts.append(("idle", f"idles while its neighbours work ({samples}): {why}"))
    return texts
