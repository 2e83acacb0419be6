"""Rules about the network cards of a host's devices: link, health, addresses, TLS, flow control, errors, ping.

In: a Recording (hccn_QUERY_ID.txt). Out: Linked: what was read, Findings, or why nothing can be said.

Where `net_health` and a ping disagree the ping counts: net_health asks one address, and some networks do not answer it.

>>> check_links(Recording(host="node_0")).impossible
'no answer of hccn_tool is among the files (hccn_link_0.txt ...)'
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msparallel.cluster.hosts import parse_hccn
from msparallel.devices import hccn
from msparallel.devices.hccn import HccnRefusal
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.doctor.finding import Evidence, Finding, report, unreadable
from msparallel.doctor.recording import HCCN_QUERIES, Record, Recording
from msparallel.errors import RecipeError, UserError

FLAPPING = 3
"""Times a link went down, of the last changes that a card remembers; one is a switch that was restarted."""
PARSERS: dict[str, Callable[[str, str], Any]] = {
    "link": hccn.parse_link, "link_stat": hccn.parse_link_stat, "net_health": hccn.parse_net_health,
    "tls": hccn.parse_tls, "pfc": hccn.parse_pfc, "gateway": hccn.parse_gateway, "netdetect": hccn.parse_netdetect,
    "stat": hccn.parse_stat, "fec": hccn.parse_fec, "optical": hccn.parse_optical, "ping": hccn.parse_ping,
}  # fmt: skip
ERRORS = {
    "roce_rx_err_pkt_num": "RoCE packets received with errors",
    "roce_tx_err_pkt_num": "RoCE packets that could not be sent",
    "mac_rx_bad_pkt_num": "packets received damaged",
    "mac_tx_bad_pkt_num": "packets sent damaged",
    "roce_new_pkt_rty_num": "RoCE packets sent again",
    "roce_qp_status_err_num": "RoCE connections that broke",
}
"""Counters of `hccn_tool -stat`, from the driver's start."""


@dataclass(frozen=True)
class Linked:
    """Attributes:
    answers: query -> device -> what was read.
    records: where it was read.
    impossible: why nothing can be said; None where something was.
    """

    answers: dict[str, dict[int, Any]] = field(default_factory=dict)
    records: dict[tuple[str, int], Record] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    impossible: str | None = None


def check_links(told: Recording) -> Linked:
    """All rules."""
    answers, records, found = _read(told)
    if not records:
        where = ("hccn_tool is not on this machine" if told.live else
                 "no answer of hccn_tool is among the files (hccn_link_0.txt ...)")  # fmt: skip
        return Linked(impossible=where)
    linked = Linked(answers, records)
    for rule in (_link, _flapping, _tls, _addresses, _conf, _gateway, _ping, _net_health, _pfc, _fec, _optical,
                 _counters):  # fmt: skip
        found += rule(told, linked)
    return Linked(answers, records, tuple(found))


def _read(told: Recording) -> tuple[dict[str, dict[int, Any]], dict[tuple[str, int], Record], list[Finding]]:
    answers: dict[str, dict[int, Any]] = {query: {} for query in HCCN_QUERIES}
    records: dict[tuple[str, int], Record] = {}
    found: list[Finding] = []
    for query in HCCN_QUERIES:
        for device, record in told.numbered(f"hccn_{query}"):
            records[query, device] = record
            try:
                answers[query][device] = (
                    hccn.parse_ip(record.text, record.shown, device) if query == "ip" else
                    PARSERS[query](record.text, record.shown)
                )  # fmt: skip
            except HccnRefusal as refused:
                if refused.busy:
                    found.append(report("hccn_busy", "warning", told,
                                        f"hccn_tool was busy when -{query} of device {device} was asked; it was not "
                                        "checked.", "Ask again when no other program calls hccn_tool.",
                                        Evidence(record.shown, refused.line or 1,
                                                 record.text.strip()[:200])))  # fmt: skip
            except DeviceUnavailable:
                continue  # this driver or product does not have the query
            except UserError as error:
                found.append(unreadable(error, told.host, name=record.name))
    return answers, records, found


def evidence_of(linked: Linked, query: str, device: int, pattern: str = "") -> Evidence:
    """The first line of an answer that has `pattern` in it, without regard to case."""
    record = linked.records[query, device]
    lines = record.text.split("\n") or [""]
    at = next((i for i, line in enumerate(lines) if line.strip() and re.search(pattern, line, re.I)), 0)
    return Evidence(record.shown, at + 1, lines[at].strip())


def _ids(devices: list[int]) -> str:
    shown = ", ".join(map(str, devices[:8])) + (f" and {len(devices) - 8} more" if len(devices) > 8 else "")
    return f"device{'s' * (len(devices) > 1)} {shown}"


def _link(told: Recording, linked: Linked) -> Iterator[Finding]:
    down = [device for device, up in linked.answers["link"].items() if not up]
    if down:
        yield report("link_down", "error", told, f"The network card of {_ids(down)} has no link.",
                     "Check cable and optical module at both ends, and the switch's port; `hccn_tool -i ID -optical "
                     "-g` tells the light's power. A job on this host alone can do without (HCCS).",
                     *[evidence_of(linked, "link", device, "status") for device in down])  # fmt: skip


def _flapping(told: Recording, linked: Linked) -> Iterator[Finding]:
    for device, history in linked.answers["link_stat"].items():
        if history.downs >= FLAPPING:
            yield report("link_flaps", "warning", told,
                         f"The link of device {device} went down {history.downs} times among its last "
                         f"{len(history.changes)} changes; each time RoCE sends again, and gives up after its retries "
                         "(error CQE).", "Change the optical module or the cable, at both ends; see the switch's log.",
                         evidence_of(linked, "link_stat", device, "LINK DOWN"))  # fmt: skip


def _tls(told: Recording, linked: Linked) -> Iterator[Finding]:
    answers = [(answer.device if answer.device is not None else device, answer, linked.records["tls", device])
               for device, several in linked.answers["tls"].items() for answer in several]  # fmt: skip
    on, off = ([one for one in answers if one[1].enabled is enabled] for enabled in (True, False))
    if on and off:
        lines = [Evidence(record.shown, answer.line, record.text.split("\n")[answer.line - 1].strip())
                 for _, answer, record in (off[0], on[0])]  # fmt: skip
        yield report("tls_differs", "error", told,
                     f"TLS is on for {_ids([one[0] for one in on])} and off for {_ids([one[0] for one in off])}: a "
                     "device with TLS makes no link with one without, and link set-up times out (EI0006).",
                     "The same everywhere: for i in 0 1 2 3 4 5 6 7; do hccn_tool -i $i -tls -s enable 0; done",
                     *lines)  # fmt: skip
    for device, answer, record in answers:
        if answer.enabled and (answer.expired or answer.expiring):
            state = "has expired" if answer.expired else "expires soon"
            at = next(i for i, line in enumerate(record.text.split("\n"), 1) if "expiration status" in line)
            yield report("tls_certificate", "error" if answer.expired else "warning", told,
                         f"TLS is on for device {device} and a certificate {state}.",
                         "Renew it (`hccn_tool -i ID -tls -s ...`), or turn TLS off on all devices.",
                         Evidence(record.shown, at, record.text.split("\n")[at - 1].strip()))  # fmt: skip


def _addresses(told: Recording, linked: Linked) -> Iterator[Finding]:
    answers = linked.answers["ip"]
    with_one = [device for device, addresses in answers.items() if addresses]
    without = [device for device, addresses in answers.items() if not addresses]
    if with_one and without:
        yield report("device_address_missing", "error", told,
                     f"{_ids(without).capitalize()} has no address, others have one; RoCE needs one for each.",
                     "hccn_tool -i ID -ip -s address ADDRESS netmask MASK; keep it in /etc/hccn.conf.",
                     *[evidence_of(linked, "ip", device) for device in without[:4]])  # fmt: skip
    counted = Counter(address for addresses in answers.values() for address in addresses)
    for address in sorted(address for address, count in counted.items() if count > 1):
        devices = [device for device, addresses in answers.items() if address in addresses]
        yield report("device_address_twice", "error", told,
                     f"{_ids(devices).capitalize()} have the same address {address}.",
                     "Give each device an address of its own.",
                     *[evidence_of(linked, "ip", device, re.escape(address)) for device in devices])  # fmt: skip


def _conf(told: Recording, linked: Linked) -> Iterator[Finding]:
    record = told.get("hccn.conf")
    if record is None:
        return
    try:
        kept = parse_hccn(record.text, record.shown)
    except RecipeError as error:
        yield unreadable(error, told.host, name="hccn.conf", remedy="Copy /etc/hccn.conf as it is.")
        return
    for device, addresses in linked.answers["ip"].items():
        written = [table[device] for table in (kept.ipv4, kept.ipv6) if device in table]
        if addresses and not set(written) & set(addresses):
            yield report("hccn_conf_differs", "warning", told,
                         f"Device {device} has the address {addresses[0]}, and /etc/hccn.conf "
                         f"{written[0] if written else 'none for it'}: after a restart it will be another one.",
                         "Set it again with hccn_tool -i ID -ip -s, which writes the file; a container needs the "
                         "host's file mounted, with its own numbers of devices.",
                         evidence_of(linked, "ip", device),
                         Evidence(record.shown, 1, record.text.split("\n")[0]))  # fmt: skip
            return


def _gateway(told: Recording, linked: Linked) -> Iterator[Finding]:
    answers = linked.answers["gateway"]
    without = [device for device, gateway in answers.items() if gateway is None]
    if without and len(without) < len(answers):
        yield report("gateway_missing", "warning", told,
                     f"{_ids(without).capitalize()} has no gateway, others have one: other networks are out of its "
                     "reach.",
                     "hccn_tool -i ID -gateway -s gateway ADDRESS",
                     *[evidence_of(linked, "gateway", device) for device in without[:4]])  # fmt: skip
    for device, gateway in answers.items():
        addresses = linked.answers["ip"].get(device) or ()
        record = linked.records.get(("ip", device))
        mask = re.search(r"netmask\s*:\s*(\S{1,40})", record.text) if record else None
        if gateway is None or not addresses or mask is None or ":" in gateway[0]:
            continue
        try:
            network = ipaddress.ip_network(f"{addresses[0]}/{mask[1]}", strict=False)
            outside = ipaddress.ip_address(gateway[0]) not in network
        except ValueError:
            continue
        if outside:
            yield report("gateway_outside", "error", told,
                         f"The gateway {gateway[0]} of device {device} is not in its network {network}.",
                         "hccn_tool -i ID -gateway -s gateway ADDRESS, an address of that network.",
                         evidence_of(linked, "gateway", device, "gateway"))  # fmt: skip


def _ping(told: Recording, linked: Linked) -> Iterator[Finding]:
    for device, ping in linked.answers["ping"].items():
        if ping.lost:
            yield report("ping_lost", "error", told,
                         f"Device {device} reached {ping.target or 'the peer'} with {ping.received} of {ping.sent} "
                         "packets.",
                         "Check cable, VLAN and gateway of both ends; on an A3 the two dies of a card do not reach "
                         "each other this way.", evidence_of(linked, "ping", device, "transmitted"))  # fmt: skip


def _net_health(told: Recording, linked: Linked) -> Iterator[Finding]:
    pinged = {device for device, ping in linked.answers["ping"].items() if not ping.lost}
    for status in sorted({s for s in linked.answers["net_health"].values() if s.lower() not in ("success", "init")}):
        devices = [device for device, s in linked.answers["net_health"].items() if s == status and device not in pinged]
        if devices:
            yield report("net_health", "warning", told,
                         f"net_health of {_ids(devices)} is {status}: the address that the card probes does not "
                         "answer.",
                         "Probe an address that should answer (`hccn_tool -i ID -netdetect -s address GATEWAY`), then "
                         "ping a device of another host: `hccn_tool -i ID -ping -g address ADDRESS`. The ping counts.",
                         *[evidence_of(linked, "net_health", device, "health") for device in devices])  # fmt: skip
    init = [device for device, status in linked.answers["net_health"].items() if status.lower() == "init"]
    if init:
        yield report("net_health_not_probed", "info", told,
                     f"net_health of {_ids(init)} is Init: no address to probe is set, so nothing was checked.",
                     "hccn_tool -i ID -netdetect -s address GATEWAY",
                     evidence_of(linked, "net_health", init[0], "health"))  # fmt: skip


def _pfc(told: Recording, linked: Linked) -> Iterator[Finding]:
    answers: dict[int, tuple[bool, ...]] = linked.answers["pfc"]
    if len(set(answers.values())) > 1:
        usual = Counter(answers.values()).most_common(1)[0][0]
        others = [device for device, enabled in answers.items() if enabled != usual]
        yield report("pfc_differs", "error", told,
                     f"Flow control (PFC) is on for priority {_on(usual)} and on {_ids(others)} for "
                     f"{_on(answers[others[0]])}: a sender that is not paused loses packets, and RoCE sends them "
                     "again.",
                     "hccn_tool -i ID -pfc -s bitmap 0,0,0,0,1,0,0,0 on every device, and the same on the switch.",
                     *[evidence_of(linked, "pfc", device, "enabled|bitmap") for device in others])  # fmt: skip
    off = [device for device, enabled in answers.items() if not any(enabled)]
    if off and len(off) == len(answers):
        yield report("pfc_off", "warning", told,
                     "Flow control (PFC) is off for all priorities: under load RoCE loses packets.",
                     "hccn_tool -i ID -pfc -s bitmap 0,0,0,0,1,0,0,0, and the same on the switch (HIXL FAQ: queue 4).",
                     evidence_of(linked, "pfc", off[0], "enabled|bitmap"))  # fmt: skip


def _on(enabled: tuple[bool, ...]) -> str:
    return ", ".join(str(priority) for priority, on in enumerate(enabled) if on) or "none"


def _fec(told: Recording, linked: Linked) -> Iterator[Finding]:
    answers = linked.answers["fec"]
    if len(set(answers.values())) > 1:
        usual = Counter(answers.values()).most_common(1)[0][0]
        others = [device for device, mode in answers.items() if mode != usual]
        yield report("fec_differs", "warning", told,
                     f"Error correction of the link is {usual!r} and on {_ids(others)} {answers[others[0]]!r}.",
                     "The two ends of a cable need the same mode: see the switch's port.",
                     *[evidence_of(linked, "fec", device, "fec") for device in others])  # fmt: skip


def _optical(told: Recording, linked: Linked) -> Iterator[Finding]:
    for device, optical in linked.answers["optical"].items():
        lost = optical.values.get("Rx Los Flag", "0x0")
        if not optical.present:
            yield report("optical_missing", "warning", told,
                         f"Device {device}: no optical module is seen in the port of its network card.",
                         "Plug it in again; with a copper cable this is how it should be.",
                         evidence_of(linked, "optical", device, "present"))  # fmt: skip
        elif re.fullmatch(r"0x[0-9A-Fa-f]{1,8}", lost) and int(lost, 16):
            yield report("optical_no_light", "error", told,
                         f"Device {device}: no light comes in on some lanes (Rx Los Flag {lost}).",
                         "Clean or change the fibre and the module of the other end.",
                         evidence_of(linked, "optical", device, "Rx Los"))  # fmt: skip


def _counters(told: Recording, linked: Linked) -> Iterator[Finding]:
    for name, meaning in ERRORS.items():
        counts = {device: counters[name] for device, counters in linked.answers["stat"].items() if counters.get(name)}
        if counts:
            worst = max(counts, key=lambda device: counts[device])
            yield report("link_errors", "warning", told,
                         f"{_ids(sorted(counts)).capitalize()}: {meaning}, {counts[worst]:,} on device {worst} since "
                         "the driver was started.",
                         "Read the counters twice while a job runs: what grows counts. Then check PFC on card and "
                         "switch, cable and module.",
                         *[evidence_of(linked, "stat", device, name) for device in sorted(counts)])  # fmt: skip
