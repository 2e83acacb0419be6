"""Whether the versions of driver, firmware, CANN, MindSpore, MindFormers and torch_npu belong together.

In: `versions.txt` of a Recording (NAME=VALUE: driver, driver_needs_firmware, firmware, firmware_needs_driver, cann,
mindspore, mindformers, torch, torch_npu, numpy, python). Out: Findings. The pairs are data, `versions.yaml`; driver and
firmware say themselves what they go with (`compatible_version_fw`, `compatible_version_drv` of their version.info).

>>> version_key("8.3.RC1") < version_key("8.3.0") < version_key("8.5.0")
True
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from msparallel.doctor.finding import Finding, stated
from msparallel.doctor.recording import Value
from msparallel.errors import short
from msparallel.finding import Severity

Versions = dict[str, Value]
_EARLY = {"alpha": -3, "beta": -2, "b": -2, "rc": -1}


@cache
def tables() -> dict[str, Any]:
    """`versions.yaml`."""
    return yaml.load((files("msparallel.doctor") / "versions.yaml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def version_key(text: str) -> tuple[int, ...]:
    """For comparing: 8.3.RC1 is before 8.3.0, 25.0.rc1.1 after 25.0.rc1. A part behind `+` does not count. Empty where
    there is no number in it."""
    key: list[int] = []
    for word, number in re.findall(r"([a-z]+)|(\d{1,9})", text.partition("+")[0].lower()):
        if number:
            key.append(int(number))
        elif word in _EARLY:
            key.append(_EARLY[word])
    return (*key, 0) if key else ()


def release(text: str) -> tuple[int, ...]:
    """Three numbers, or those up to `rc1`: 8.5.0.2.220 and 8.5.0 are one release, 8.0.RC2 and 8.0.RC3 are not."""
    key = version_key(text)[:-1]
    early = next((place for place, part in enumerate(key) if part < 0), None)
    return key[:3] if early is None else key[: early + 2]


def family(text: str) -> tuple[int, ...]:
    """The first two numbers."""
    return version_key(text)[:2]


def check_versions(told: Versions, host: str, *, live: bool = False) -> list[Finding]:
    """All rules, the lowest layer first. `live`: this Python is the one that would run the job."""
    found = [one for rule in (_firmware, _driver_of_cann, _mindspore, _mindformers, _torch, _torch_npu, _numpy)
             for one in rule(told, host)]  # fmt: skip
    return [*found, *_python(told, host, "error" if live else "warning")]


def _found(
    rule: str, severity: Severity, host: str, cause: str, remedy: str, told: Versions, *names: str
) -> Finding:
    evidence = tuple(stated(name, told[name]) for name in names if name in told)
    return Finding(rule=rule, severity=severity, host=host, root_cause=cause, remedy=remedy, evidence=evidence)


def _have(told: Versions, *names: str) -> bool:
    return all(name in told and version_key(told[name].text) for name in names)


def _shown(told: Versions, name: str) -> str:
    return short(told[name].text, 60)


def _firmware(told: Versions, host: str) -> Iterator[Finding]:
    if _have(told, "driver", "firmware", "driver_needs_firmware"):
        ranges = re.findall(r"\[\s*([\d.]{1,30})\s*,\s*([\d.]{1,30})\s*\]", told["driver_needs_firmware"].text)
        firmware = release(told["firmware"].text)
        if ranges and not any(release(low) <= firmware <= release(high) for low, high in ranges):
            wanted = " or ".join(f"{low} to {high}" for low, high in ranges)
            yield _found("driver_firmware", "error", host,
                         f"Driver {_shown(told, 'driver')} goes with firmware {wanted}; firmware "
                         f"{_shown(told, 'firmware')} is installed. Devices fail to start, or npu-smi answers -8005.",
                         "Install the firmware of the driver's release (Ascend-hdk-*-npu-firmware), then restart the "
                         "host.",
                         told, "driver", "driver_needs_firmware", "firmware")  # fmt: skip
    if _have(told, "driver", "firmware", "firmware_needs_driver"):
        starts = re.findall(r"[\d.]+(?:rc\d*\.?)?", told["firmware_needs_driver"].text.lower())
        driver = told["driver"].text.lower()
        if starts and not any(driver == start or driver.startswith(start.rstrip(".") + ".") for start in starts):
            yield _found("driver_firmware", "warning", host,
                         f"Firmware {_shown(told, 'firmware')} names drivers "
                         f"{', '.join(sorted({s.rstrip('.') for s in starts}))}; driver {_shown(told, 'driver')} is "
                         "installed.", "Install driver and firmware of one release.", told, "firmware",
                         "firmware_needs_driver", "driver")  # fmt: skip


def _driver_of_cann(told: Versions, host: str) -> Iterator[Finding]:
    if not _have(told, "cann", "driver"):
        return
    table = tables()["drivers"]
    row = next((row for row in table["rows"] if family(row["cann"]) == family(told["cann"].text)), None)
    driver = family(told["driver"].text)
    if row is not None and driver not in [family(one) for one in row["drivers"]]:
        newest = max(map(family, row["drivers"]))
        severity: Severity = "warning" if driver > newest else "error"
        yield _found("cann_driver", severity, host,
                     f"CANN {_shown(told, 'cann')} goes with drivers {', '.join(f'{one}.x' for one in row['drivers'])} "
                     f"({table['source']}); driver {_shown(told, 'driver')} is installed.",
                     f"Install driver and firmware {row['drivers'][0]}.x, or the CANN that goes with this driver.",
                     told, "cann", "driver")  # fmt: skip
    elif row is None and (pair := _row("cann", told["cann"].text)) and (
        version_key(told["driver"].text) < version_key(pair["driver"])
    ):
        yield _found("cann_driver", "warning", host,
                     f"CANN {_shown(told, 'cann')} is paired with driver {pair['driver']} "
                     f"({tables()['mindformers']['source']}); driver {_shown(told, 'driver')} is older.",
                     f"Install driver and firmware {pair['driver']}.", told, "cann", "driver")  # fmt: skip


def _row(column: str, version: str) -> dict[str, str] | None:
    rows = tables()["mindformers"]["rows"]
    return next((row for row in rows if release(row[column]) == release(version)), None)


def _mindspore(told: Versions, host: str) -> Iterator[Finding]:
    if not _have(told, "mindspore", "cann") or (pair := _row("mindspore", told["mindspore"].text)) is None:
        return
    if release(told["cann"].text) != release(pair["cann"]):
        older = version_key(told["cann"].text) < version_key(pair["cann"])
        yield _found("mindspore_cann", "error" if older else "warning", host,
                     f"MindSpore {_shown(told, 'mindspore')} goes with CANN {pair['cann']} "
                     f"({tables()['mindformers']['source']}); CANN {_shown(told, 'cann')} is "
                     f"{'older' if older else 'newer'}.",
                     f"Install CANN {pair['cann']}" + _pair_of_cann(told["cann"].text), told, "mindspore",
                     "cann")  # fmt: skip


def _pair_of_cann(cann: str) -> str:
    row = _row("cann", cann)
    return f", or MindSpore {row['mindspore']}, which goes with CANN {row['cann']}." if row else "."


def _mindformers(told: Versions, host: str) -> Iterator[Finding]:
    if not _have(told, "mindspore", "mindformers") or (pair := _row("mindformers", told["mindformers"].text)) is None:
        return
    if release(told["mindspore"].text) != release(pair["mindspore"]):
        yield _found("mindformers_mindspore", "warning", host,
                     f"MindFormers {_shown(told, 'mindformers')} goes with MindSpore {pair['mindspore']} "
                     f"({tables()['mindformers']['source']}); MindSpore {_shown(told, 'mindspore')} is installed.",
                     f"pip install mindspore=={pair['mindspore']}", told, "mindformers", "mindspore")  # fmt: skip


def _torch(told: Versions, host: str) -> Iterator[Finding]:
    if _have(told, "torch", "torch_npu"):
        wanted = re.match(r"\d+\.\d+\.\d+", told["torch_npu"].text)
        if wanted and release(told["torch"].text) != release(wanted[0]):
            yield _found("torch_npu_torch", "error", host,
                         f"torch_npu {_shown(told, 'torch_npu')} is built for torch {wanted[0]}; torch "
                         f"{_shown(told, 'torch')} is installed and torch_npu will not load.",
                         f"pip install torch=={wanted[0]}", told, "torch_npu", "torch")  # fmt: skip


def _torch_npu(told: Versions, host: str) -> Iterator[Finding]:
    if not _have(told, "torch_npu", "cann"):
        return
    table = tables()["torch_npu"]
    row = next((row for row in table["rows"] if row["torch_npu"] == told["torch_npu"].text.partition("+")[0]), None)
    if row is not None and release(told["cann"].text) != release(row["cann"]):
        others = [one["torch_npu"] for one in table["rows"]
                  if release(one["cann"]) == release(told["cann"].text)]  # fmt: skip
        instead = f", or torch_npu {' or '.join(others)} for this CANN." if others else "."
        yield _found("torch_npu_cann", "warning", host,
                     f"torch_npu {_shown(told, 'torch_npu')} is released with CANN {row['cann']} "
                     f"({table['source']}); CANN "
                     f"{_shown(told, 'cann')} is installed.", f"Install CANN {row['cann']}{instead}", told, "torch_npu",
                     "cann")  # fmt: skip


def _numpy(told: Versions, host: str) -> Iterator[Finding]:
    if _have(told, "mindspore", "numpy") and family(told["mindspore"].text) in ((2, 9), (2, 10)) and (
        version_key(told["numpy"].text)[0] >= 2
    ):
        yield _found("numpy_two", "error", host,
                     f"MindSpore {_shown(told, 'mindspore')} is built against NumPy 1 and fails with NumPy "
                     f"{_shown(told, 'numpy')}.", "pip install 'numpy<2'", told, "mindspore", "numpy")  # fmt: skip


def _python(told: Versions, host: str, severity: Severity) -> Iterator[Finding]:
    if not _have(told, "python") or "mindspore" in told or "torch_npu" in told:
        return
    if not (3, 9) <= version_key(told["python"].text)[:2] <= (3, 12):
        yield _found("python_mindspore", severity, host,
                     f"There is no MindSpore for Python {_shown(told, 'python')}: its wheels are for 3.9 to 3.12 "
                     "(2.9) and 3.10 to 3.12 (2.10).", "Make an environment with Python 3.11.", told,
                     "python")  # fmt: skip
    else:
        yield _found("mindspore_missing", severity, host, "MindSpore is not installed for this Python.",
                     "pip install 'mindspore>=2.9,<2.11'", told, "python")  # fmt: skip
