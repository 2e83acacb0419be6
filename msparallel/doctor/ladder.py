"""The ladder: environment, devices, links, collective, smallest recipe, your recipe. It stops at the first rung that
breaks, since what stands on it would only break too.

In: Recordings (of this machine, asked for as the ladder is climbed, or of a folder), and for this machine what runs the
last three rungs. Out: Climbed: each rung with its state and Findings, the root cause first.

>>> [rung.state for rung in climb(lambda name: [Recording(host="a")], runners={}).rungs][:2]
['not_possible', 'not_possible']
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from msparallel.doctor.compare_rules import compare_devices, compare_environment, compare_links
from msparallel.doctor.device_rules import check_devices, device_table
from msparallel.doctor.env_rules import check_variables
from msparallel.doctor.finding import Finding, ordered, unreadable
from msparallel.doctor.host_rules import check_host
from msparallel.doctor.link_rules import check_links
from msparallel.doctor.network_rules import check_network
from msparallel.doctor.recording import Recording
from msparallel.doctor.version_rules import check_versions
from msparallel.errors import UserError

State = Literal["passed", "broken", "not_possible", "not_reached", "not_asked"]
RUNGS = {
    "environment": "environment",
    "devices": "devices",
    "links": "links",
    "collective": "collective",
    "smallest": "smallest recipe",
    "recipe": "your recipe",
}
"""Name on the command line -> name in sentences, from the lowest rung up."""
ENVIRONMENT_FILES = ("env.txt", "versions.txt", "hostname.txt", "meminfo.txt", "limits.txt", "sysctl.txt", "disk.txt",
                     "clock.txt", "firewall.txt", "ports.txt")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One rung.

    Attributes:
        state: passed; broken (a finding is an error); not_possible (`told` says why); not_reached (a lower one broke);
            not_asked (above --until).
        told: what was seen, in a sentence, or why nothing could be.
        unchecked: files that were not there, so that what they tell was not checked.
    """

    name: str
    state: State
    told: str = ""
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """An entry of `rungs` of `doctor --json`."""
        return {"rung": self.name, "state": self.state, "told": self.told, "unchecked": list(self.unchecked),
                "seconds": round(self.seconds, 3), "rules": [one.rule for one in self.findings]}  # fmt: skip


@dataclass(frozen=True)
class Climbed:
    """All rungs, from the lowest."""

    rungs: tuple[Rung, ...]
    hosts: tuple[str, ...]

    @property
    def broken(self) -> Rung | None:
        """The rung to mend."""
        return next((rung for rung in self.rungs if rung.state == "broken"), None)

    @property
    def findings(self) -> list[Finding]:
        """The root cause first: errors of the broken rung, then what else was seen, from the lowest rung up."""
        return ordered(one for rung in self.rungs for one in rung.findings)


Recorded = Callable[[str], Sequence[Recording]]
Runner = Callable[[], Rung]
Step = Callable[[str], None]


def climb(
    recorded: Recorded, runners: dict[str, Runner], until: str = "recipe", step: Step = lambda what: None
) -> Climbed:
    """Climb as far as it goes.

    Args:
        recorded: name of a rung -> the Recordings that it needs.
        runners: the rungs that run something; those that are missing are not possible.
        until: the last rung.
        step: told of each rung, and of each host on it, before it is tried.
    """
    checks: dict[str, Callable[[Sequence[Recording], Step], Rung]] = {
        "environment": _environment, "devices": _devices, "links": _links}  # fmt: skip
    rungs: list[Rung] = []
    hosts: tuple[str, ...] = ()
    names = list(RUNGS)
    for name in names:
        if any(rung.state == "broken" for rung in rungs):
            rungs.append(Rung(name=name, state="not_reached", told="a lower rung is broken"))
        elif names.index(name) > names.index(until):
            rungs.append(Rung(name=name, state="not_asked"))
        elif name not in checks and name not in runners:
            rungs.append(Rung(name=name, state="not_possible", told="a recording runs nothing"))
        else:
            step(name)
            started = time.monotonic()
            if name in checks:
                told = recorded(name)
                hosts = tuple(host.host for host in told)
                rung = checks[name](told, step)
            else:
                rung = runners[name]()
            rungs.append(replace(rung, seconds=time.monotonic() - started))
    return Climbed(tuple(rungs), hosts)


def state_of(findings: Sequence[Finding]) -> State:
    """Broken where a finding is an error."""
    return "broken" if any(one.severity == "error" for one in findings) else "passed"


def _environment(hosts: Sequence[Recording], step: Step) -> Rung:
    found: list[Finding] = []
    unchecked: list[str] = []
    for host in hosts:
        step(f"environment {host.host}")
        table = device_table(host)
        devices = len(table.devices) if table else _device_nodes(host)
        chip = table.devices[0].name if table else ("NPU" if devices else None)
        for name, check in (
            ("versions.txt", lambda values, h=host: check_versions(values, h.host, live=h.live)),
            ("env.txt", lambda values, h=host, c=chip: check_variables(values, h.host, c, live=h.live)),
        ):  # fmt: skip
            try:
                if host.get(name) is not None:
                    found += check(host.values(name))
            except UserError as error:
                found.append(unreadable(error, host.host, name=name))
        found += check_host(host, devices)
        found += check_network(host, devices)
        unchecked += [_named(hosts, host, name) for name in ENVIRONMENT_FILES if host.get(name) is None]
    found += compare_environment(hosts)
    if len(unchecked) == len(ENVIRONMENT_FILES) * len(hosts):
        return Rung(name="environment", state="not_possible", unchecked=tuple(unchecked),
                    told=f"none of {', '.join(ENVIRONMENT_FILES[:4])} ... is among the files")  # fmt: skip
    found = ordered(found)
    return Rung(name="environment", state=state_of(found), findings=tuple(found), unchecked=tuple(unchecked),
                told=f"{_count(len(ENVIRONMENT_FILES) * len(hosts) - len(unchecked), 'record')} of "
                f"{_count(len(hosts), 'host')} checked")  # fmt: skip


def _device_nodes(host: Recording) -> int:
    record = host.get("devices.txt")
    return sum(line.startswith("present /dev/davinci") and line[-1].isdigit() for line in
               (record.text.split("\n") if record else ()))  # fmt: skip


def _named(hosts: Sequence[Recording], host: Recording, name: str) -> str:
    return name if len(hosts) == 1 else f"{host.host}/{name}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _devices(hosts: Sequence[Recording], step: Step) -> Rung:
    checked = []
    for host in hosts:
        step(f"devices {host.host}")
        checked.append((host, check_devices(host)))
    found = ordered([*(one for _, result in checked for one in result.findings), *compare_devices(hosts)])
    missing = tuple(f"{host.host}: {result.impossible}" for host, result in checked if result.impossible)
    tables = [result.table for _, result in checked if result.table is not None]
    if not tables and not found:
        return Rung(name="devices", state="not_possible", told=checked[0][1].impossible or "nothing was recorded")
    count = sum(len(table.devices) for table in tables)
    names = sorted({f"{device.name}" for table in tables for device in table.devices})
    versions = sorted({table.version for table in tables if table.version})
    return Rung(name="devices", state=state_of(found), findings=tuple(found), unchecked=missing,
                told=f"{_count(count, 'device')} ({', '.join(names) or 'none read'})"
                + (f", driver {', '.join(versions)}" if versions else ""))  # fmt: skip


def _links(hosts: Sequence[Recording], step: Step) -> Rung:
    checked = []
    for host in hosts:
        step(f"links {host.host}")
        checked.append((host, check_links(host)))
    found = ordered([*(one for _, result in checked for one in result.findings), *compare_links(hosts)])
    missing = tuple(f"{host.host}: {result.impossible}" for host, result in checked if result.impossible)
    answers = sum(len(result.records) for _, result in checked)
    if not answers:
        return Rung(name="links", state="not_possible", told=checked[0][1].impossible or "nothing was recorded")
    cards = sum(len({device for _, device in result.records}) for _, result in checked)
    return Rung(name="links", state=state_of(found), findings=tuple(found), unchecked=missing,
                told=f"{answers} answers of {_count(cards, 'network card')}")  # fmt: skip
