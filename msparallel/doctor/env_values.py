"""Whether an environment variable holds what it may hold.

In: the table `env_variables.yaml`, a name, its value. Out: what is wrong with the value, in a sentence, and a value
that works; None where nothing is.

>>> tuple(wrong_value("HCCL_RDMA_TIMEOUT", "30"))
('is a whole number from 5 to 24', '24')
>>> wrong_value("HCCL_ALGO", "Tree")[1]
'level0:NA;level1:NHR'
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from msparallel.hardware.hccl import CHOICES

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
ALGORITHMS = (*CHOICES, "pipeline", "pairwise", "AHC", "NHR_V1")
"""Of level 1 and 2, CANN 9.0; the first ones have a formula in `hardware/hccl.py`."""
OPERATORS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce", "scatter", "alltoall", "others")


class Broken(NamedTuple):
    """The rule, beginning with a verb, and a value that keeps it."""

    rule: str
    suggestion: str


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A row of the table."""

    name: str
    meaning: str
    source: str
    default: str | None = None
    int: tuple[int | None, int | None] | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()
    any_case: bool = False
    kind: str | None = None


@dataclass(frozen=True, kw_only=True)
class Elsewhere:
    """A name that does nothing, or is called otherwise."""

    name: str
    instead: str
    severity: str
    why: str
    source: str = field(default="")


@cache
def _table() -> dict[str, Any]:
    text = (files("msparallel.doctor") / "env_variables.yaml").read_text(encoding="utf-8")
    return yaml.load(text, Loader=_LOADER)


@cache
def variables() -> dict[str, Variable]:
    """The table by name."""
    return {name: Variable(**{"name": name, **row, "choices": tuple(row.get("choices", ())),
                              "int": tuple(row["int"]) if "int" in row else None})
            for name, row in _table()["variables"].items()}  # fmt: skip


@cache
def elsewhere() -> dict[str, Elsewhere]:
    """Names that guides have and programs do not."""
    return {name: Elsewhere(name=name, **row) for name, row in _table()["elsewhere"].items()}


def wrong_value(name: str, value: str) -> Broken | None:
    """What is wrong with the value of a variable of the table."""
    row = variables()[name]
    if row.int is not None:
        return _wrong_int(value, row)
    if row.choices:
        if value in row.choices or (row.any_case and value.lower() in row.choices):
            return None
        close = next((choice for choice in row.choices if choice.lower() == value.strip().lower()), None)
        return Broken(f"is one of {', '.join(row.choices)}", close or row.default or row.choices[0])
    return KINDS[row.kind or "text"](value)


def _wrong_int(value: str, row: Variable) -> Broken | None:
    least, most = row.int or (None, None)
    number = int(value) if re.fullmatch(r"-?\d{1,18}", value) else None
    if number is not None and (least is None or number >= least) and (most is None or number <= most):
        step = row.multiple_of or 1
        return None if number % step == 0 else Broken(f"is a multiple of {step}", str(number // step * step))
    if least is None and most is None:
        rule = "is a whole number"
    else:
        rule = f"is a whole number from {least}" + (f" to {most}" if most is not None else "")
    nearest = row.default or str(least or 0)
    if number is not None:
        edge = least if least is not None and number < least else most
        nearest = str((edge or 0) // (row.multiple_of or 1) * (row.multiple_of or 1))
    return Broken(rule, nearest)


def _path(value: str) -> Broken | None:
    if value and "\0" not in value and "\n" not in value:
        return None
    return Broken("is a path", "/path/to/it")


def _name(value: str) -> Broken | None:
    if value and len(value) < 128 and value.isprintable():
        return None
    return Broken("is a name of fewer than 128 characters", "0")


def _address(value: str) -> Broken | None:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        return Broken("is an IPv4 or IPv6 address of this host, no name and no port", "192.0.2.11")
    return None


def _interfaces(value: str) -> Broken | None:
    names = value.removeprefix("^").removeprefix("=").split(",")
    if all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,14}", name) for name in names):
        return None
    rule = ("is names or prefixes of network cards, separated by commas without spaces; = before them for whole "
            "names, ^ for all but these")  # fmt: skip
    return Broken(rule, "=eth0")


def _ports(value: str) -> Broken | None:
    rule = Broken("is auto, or ports and ranges of them from 1 to 65535, separated by commas", "60000-60050")
    if value == "auto":
        return None
    for part in value.split(","):
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part)
        if ends is None or not 1 <= int(ends[1]) <= int(ends[2] or ends[1]) <= 65535:
            return rule
    return None


def _devices(value: str) -> Broken | None:
    rule = ("is device ids, ascending, separated by commas without spaces; what follows a space, or an id out of "
            "order, is not seen")  # fmt: skip
    ids = [int(part) for part in value.split(",") if re.fullmatch(r"\d{1,3}", part)]
    if ids and ids == sorted(set(ids)) and ",".join(map(str, ids)) == value:
        return None
    found = sorted({int(part) for part in re.findall(r"\d{1,3}", value)})
    return Broken(rule, ",".join(map(str, found)) or "0")


def _hccl_algo(value: str) -> Broken | None:
    for part in value.split("/"):
        operator, equals, levels = part.rpartition("=")
        if equals and operator not in OPERATORS:
            return Broken(f"names collectives {', '.join(OPERATORS)} before `=`; {operator!r} is none",
                          f"allreduce={_LEVELS}")  # fmt: skip
        for level in levels.split(";"):
            key, colon, algorithm = level.partition(":")
            if key == "level0" and algorithm in ("NA", "fullmesh"):
                continue
            if key not in ("level1", "level2") or not colon:
                return Broken("has the form level0:NA;level1:ALGORITHM, for all collectives or as "
                              f"COLLECTIVE=level0:NA;level1:ALGORITHM/...; {level!r} is no level with its algorithm, "
                              "and there is no algorithm Tree", _LEVELS)  # fmt: skip
            if algorithm not in ALGORITHMS:
                return Broken("has algorithms "
                              f"{', '.join(ALGORITHMS)} on {key}; {algorithm!r} is none of them", _LEVELS)
    return None


_LEVELS = "level0:NA;level1:NHR"


def pairs(value: str) -> dict[str, str] | None:
    """`a:1,b:2`, the form of allocator options; None where it has another form or a key twice."""
    found: dict[str, str] = {}
    for part in value.split(","):
        key, colon, text = part.partition(":")
        if not colon or not re.fullmatch(r"\w{1,60}", key) or key in found or not text or text != text.strip():
            return None
        found[key] = text
    return found


def _number_between(least: float, most: float, *, open_ends: bool = False) -> Callable[[str], bool]:
    def fits(text: str) -> bool:
        if not re.fullmatch(r"\d{1,12}(?:\.\d{1,6})?", text):
            return False
        return least < float(text) < most if open_ends else least <= float(text) <= most

    return fits


def _of(*choices: str) -> Callable[[str], bool]:
    return lambda text: text in choices


_NPU_OPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "max_split_size_mb": (_number_between(20, 1e12, open_ends=True), "more than 20"),
    "garbage_collection_threshold": (_number_between(0, 1, open_ends=True), "between 0 and 1, not these themselves"),
    "expandable_segments": (_of("True", "False"), "True or False"),
    "base_addr_aligned_kb": (_number_between(0, 16), "from 0 to 16"),
    "page_size": (_of("1g"), "1g"),
    "segment_size_mb": (_number_between(20, 512), "from 20 to 512"),
}
_MS_OPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "enable_vmm": (_of("true", "false", "True", "False"), "true or false"),
    "vmm_align_size": (lambda text: bool(re.fullmatch(r"\d{1,6}", text)) and int(text) % 2 == 0 and int(text) > 0,
                       "an even number of MB"),
    "memory_tracker": (_of("true", "false", "True", "False"), "true or false"),
    "memory_tracker_path": (lambda text: bool(text), "a path"),
    "simple_tracker": (_of("true", "false", "True", "False"), "true or false"),
    "acl_allocator": (_of("true", "false", "True", "False"), "true or false"),
    "somas_whole_block": (_of("true", "false", "True", "False"), "true or false"),
}  # fmt: skip


def _options(value: str, known: dict[str, tuple[Callable[[str], bool], str]], example: str) -> Broken | None:
    found = pairs(value)
    if found is None:
        return Broken("is options OPTION:VALUE separated by commas without spaces, each once", example)
    for key, text in found.items():
        if key not in known:
            return Broken(f"has options {', '.join(known)}; {key!r} is none", example)
        fits, rule = known[key]
        if not fits(text):
            return Broken(f"has {key} {rule}, not {text!r}", example)
    return None


def _retry_params(value: str) -> Broken | None:
    limits = {"MaxCnt": (1, 10), "HoldTime": (0, 60000), "IntervalTime": (0, 60000)}
    example = "MaxCnt:1,HoldTime:5000,IntervalTime:1000"
    found = pairs(value)
    if found is None or not set(found) <= set(limits):
        return Broken("has the form MaxCnt:1,HoldTime:5000,IntervalTime:1000 (milliseconds)", example)
    for key, text in found.items():
        least, most = limits[key]
        if not re.fullmatch(r"\d{1,9}", text) or not least <= int(text) <= most:
            return Broken(f"has {key} from {least} to {most}", example)
    return None


def _submodule_log(value: str) -> Broken | None:
    if re.fullmatch(r"\{\s*\w+\s*:\s*[0-4]\s*(,\s*\w+\s*:\s*[0-4]\s*)*\}", value):
        return None
    return Broken("has the form {MODULE:level,...} with levels 0 to 4", "{PARALLEL:1}")


KINDS: dict[str, Callable[[str], Broken | None]] = {
    "text": lambda value: None,
    "path": _path,
    "folder": _path,
    "regular_file": _path,
    "name": _name,
    "address": _address,
    "interfaces": _interfaces,
    "ports": _ports,
    "devices": _devices,
    "hccl_algo": _hccl_algo,
    "npu_alloc_conf": lambda value: _options(value, _NPU_OPTIONS, "expandable_segments:True"),
    "ms_alloc_conf": lambda value: _options(value, _MS_OPTIONS, "enable_vmm:true,vmm_align_size:2"),
    "pairs": lambda value: None if pairs(value) else Broken("is options OPTION:VALUE separated by "
                                                            "commas", "pipeline:true"),
    "retry_params": _retry_params,
    "submodule_log": _submodule_log,
}
"""A variable's own form -> what is wrong with a value."""
