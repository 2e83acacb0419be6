"""Rules about a host in its network: clock, firewall, name, ports.

In: a Recording (clock.txt, firewall.txt, hostname.txt, ports.txt). Out: Findings.

>>> check_network(Recording(host="node_0"), devices=0)
[]
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from msparallel.cluster.hosts import is_address
from msparallel.devices.tool_text import Place, wrong
from msparallel.doctor.finding import Evidence, Finding, report, stated, unreadable
from msparallel.doctor.recording import Recording
from msparallel.errors import UserError, short

MSRUN_PORT = 8118
"""msrun's default, MindSpore 2.9."""
HCCL_PORTS = range(60000, 60016)
MOST_OFFSET_S = 0.5
_NTPQ = re.compile(r"\*\S+(?:\s+\S+){7}\s+(-?[\d.]{1,20})")
"""The peer that counts, and its offset in ms (`ntpq -p`: remote refid st t when poll reach delay offset jitter)."""


def check_network(told: Recording, devices: int) -> list[Finding]:
    """All rules. `devices`: NPUs of the host, 0 where it has none or where that is not known."""
    found: list[Finding] = []
    for rule in (_hostname, _chosen, _clock, _firewall, _ports):
        try:
            found += rule(told, devices)
        except UserError as error:
            if rule in _NAMES:  # a file is told as unreadable once
                found.append(unreadable(error, told.host, name=_NAMES[rule]))
    return found


def _hostname(told: Recording, devices: int) -> Iterator[Finding]:
    values = told.values("hostname.txt")
    if "name" not in values:
        return
    name = values["name"]
    line = stated("name", name)
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name.text):
        yield report("host_name", "warning", told,
                     f"{short(name.text, 60)!r} is no name of a host: letters, digits, '-' and '.', and no '_' (RFC "
                     "1123); it may not resolve.", "hostnamectl set-hostname NAME", line)  # fmt: skip
    if "resolves" not in values:
        return
    addresses = [part for part in re.split(r"[,\s]+", values["resolves"].text) if part]
    lines = line, stated("resolves", values["resolves"])
    if not addresses:
        yield report("host_name_unresolved", "warning", told,
                     f"The name {short(name.text, 60)} does not resolve on the host itself; workers that are given "
                     "names wait for the scheduler in vain.",
                     "Add it to /etc/hosts with the address that the other hosts reach, or pass --master_addr an "
                     "address.", *lines)  # fmt: skip
    elif all(_loopback(address) for address in addresses):
        yield report("host_name_loopback", "warning" if devices else "info", told,
                     f"The name {short(name.text, 60)} resolves to {addresses[0]} only, which other hosts reach as "
                     "themselves.",
                     "Give it the address of its network card in /etc/hosts (Debian writes 127.0.1.1 there), or set "
                     "HCCL_IF_IP and pass msrun an address.", *lines)  # fmt: skip


def _loopback(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).is_loopback
    except ValueError:
        return False


def _chosen(told: Recording, devices: int) -> Iterator[Finding]:
    """Addresses and cards that variables choose are this host's."""
    here = told.values("hostname.txt")
    try:
        chosen = told.values("env.txt")
    except UserError:
        return  # a finding of the variables
    own = [part for part in (here["addresses"].text if "addresses" in here else "").split(",") if part]
    for name in ("HCCL_IF_IP", "MS_WORKER_IP"):
        value = chosen.get(name)
        if own and value is not None and is_address(value.text) and not any(_same(value.text, one) for one in own):
            yield report("env_address_not_here", "error", told,
                         f"{name} is {value.text}; this host has {', '.join(own[:6])}. Copied from another host?",
                         f"Set {name} to this host's own address, or leave it out.",
                         stated(name, value), stated("addresses", here["addresses"]))  # fmt: skip
    value = chosen.get("HCCL_SOCKET_IFNAME")
    cards = [part for part in (here["interfaces"].text if "interfaces" in here else "").split(",") if part]
    if cards and value is not None and not value.text.startswith("^"):
        names = value.text.removeprefix("=").split(",")
        exact = value.text.startswith("=")
        if not any(card == name or (not exact and card.startswith(name)) for card in cards for name in names if name):
            yield report("env_interface_not_here", "error", told,
                         f"HCCL_SOCKET_IFNAME={short(value.text, 60)} fits none of this host's network cards "
                         f"{', '.join(cards[:8])}.", "`ip -br addr` lists them with their addresses.",
                         stated("HCCL_SOCKET_IFNAME", value),
                         stated("interfaces", here["interfaces"]))  # fmt: skip


def _same(one: str, other: str) -> bool:
    return is_address(other) and ipaddress.ip_address(one) == ipaddress.ip_address(other)


def clock_state(told: Recording) -> tuple[bool | None, float | None, list[Evidence]]:
    """Whether the clock is synchronised, how many seconds it is off, and the lines that say so; None where not told."""
    synchronised: bool | None = None
    offset_s: float | None = None
    lines: list[Evidence] = []
    for command, section in told.sections("clock.txt").items():
        for place, line in section:
            text = line.strip()
            told_here: bool | None = None
            if match := re.match(r"NTPSynchronized=(yes|no)|(?:System clock|NTP) synchronized: (yes|no)", text):
                told_here = "yes" in match.groups()
            elif match := re.match(r"Leap status\s*:\s*(.+)", text):
                told_here = "not" not in match[1].lower()
            elif match := re.match(r"System time\s*:\s*([\d.]{1,20}) seconds (fast|slow)", text):
                offset_s = float(match[1]) * (1 if match[2] == "fast" else -1)
                lines.append(Evidence(*place, text))
            elif command.startswith("ntpq") and (match := _NTPQ.match(text)):
                told_here, offset_s = True, float(match[1]) / 1000
            elif re.match(r"(?:unsynchronised|synchronised to)", text):
                told_here = text.startswith("synchronised")
            if told_here is not None:
                synchronised = told_here if synchronised is None else synchronised or told_here
                lines.append(Evidence(*place, text))
    return synchronised, offset_s, lines


def _clock(told: Recording, devices: int) -> Iterator[Finding]:
    record = told.get("clock.txt")
    if record is None:
        return
    synchronised, offset_s, lines = clock_state(told)
    if synchronised is False:
        yield report("clock_not_synchronised", "warning", told,
                     "The clock is not synchronised: logs of several hosts cannot be put in order, and certificates "
                     "(device TLS) may count as expired.",
                     "Start chronyd (`systemctl enable --now chronyd`) with the same server on every host; see "
                     "`chronyc sources`.", *lines[:2])  # fmt: skip
    if offset_s is not None and abs(offset_s) > MOST_OFFSET_S:
        yield report("clock_off", "warning", told,
                     f"The clock is {abs(offset_s):.3g} s {'fast' if offset_s > 0 else 'slow'}.",
                     "chronyc makestep, and see why it drifts: `chronyc sourcestats`.", *lines[-1:])  # fmt: skip


def _firewall(told: Recording, devices: int) -> Iterator[Finding]:
    hit: list[Evidence] = []
    tool = ""
    for command, section in told.sections("firewall.txt").items():
        for place, line in section:
            text = line.strip()
            closed = (
                (command.startswith("firewall-cmd") and text == "running")
                or (command.startswith("systemctl") and re.match(r"firewalld?\S*\s+active$|active$", text))
                or (command.startswith("ufw") and text == "Status: active")
                or (command.startswith("iptables") and re.match(
                    r"-P INPUT (?:DROP|REJECT)|-A INPUT (?!.*--icmp|.*-p icmp|.*-p vrrp).*-j (?:DROP|REJECT)", text))
                or (command.startswith("nft") and re.search(r"hook input .*policy drop|policy drop.*hook input", text))
            )  # fmt: skip
            if closed:
                hit.append(Evidence(*place, f"{command}: {text}"))
                tool = tool or command.split()[0]
    if hit:
        yield report("firewall", "warning" if devices else "info", told,
                     f"A firewall filters what comes in ({tool}). HCCL listens on 60000 to 60015 and device ports "
                     f"16666, msrun on {MSRUN_PORT}: between hosts a closed port shows as a time-out on every rank.",
                     "Between the hosts of a job: open these ports for each other's addresses, or turn the firewall "
                     "off (`systemctl stop firewalld`, `ufw disable`).", *hit)  # fmt: skip


def _ports(told: Recording, devices: int) -> Iterator[Finding]:
    record = told.get("ports.txt")
    if record is None:
        return
    taken: dict[int, Evidence] = {}
    for number, line in enumerate(record.text.split("\n"), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if not re.fullmatch(r"\d{1,5}", text) or not 1 <= int(text) <= 65535:
            raise wrong(Place(record.shown, number), line, "Lines of ports.txt are TCP ports that something listens "
                                                           "on.")
        taken[int(text)] = Evidence(record.shown, number, text)
    if MSRUN_PORT in taken:
        yield report("msrun_port_taken", "warning", told,
                     f"Something listens on {MSRUN_PORT}, msrun's default: another job, or a scheduler that was left.",
                     f"`ss -ltnp sport = :{MSRUN_PORT}` names it; end it, or pass msrun --master_port another port.",
                     taken[MSRUN_PORT])  # fmt: skip
    hccl = [taken[port] for port in HCCL_PORTS if port in taken]
    if hccl:
        yield report("hccl_port_taken", "warning", told,
                     f"Something listens on {len(hccl)} of HCCL's host ports 60000 to 60015: another job on this host.",
                     "End it, or give this job ports of its own: export HCCL_IF_BASE_PORT=61000", *hccl)  # fmt: skip


_NAMES = {_hostname: "hostname.txt", _clock: "clock.txt", _firewall: "firewall.txt", _ports: "ports.txt"}
