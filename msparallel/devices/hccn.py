"""What `hccn_tool -i N -QUERY -g` prints of a device's network card.

In: the text of one query, a device's or several devices' one after the other (with the marks `[devid 0]`, `[device 0]`,
`dev_id:0,` or a line `device 0`). Out: a value a query; HccnRefusal where the tool says that it cannot answer (busy,
link down, not supported); UserError with file and line for anything else. Addresses are read by `cluster/hosts.py`.

Sources: the driver's hccn_tool (tool_net_health, tool_show_tls_cert_info, its table of errors), outputs in the
documentation of Ascend/mind-cluster and in HIXL's FAQ (`-pfc`, busy), and in public guides (`-ping`, `-netdetect`).
ECN has no documented output and is not read.

>>> parse_tls("dev_id:0, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days\\n", "tls.txt")[0].enabled
False
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from msparallel.cluster.hosts import MOST_DEVICE, is_address, parse_hccn
from msparallel.devices.tool_text import DeviceUnavailable, Place, numbered, refusal, wrong
from msparallel.errors import RecipeError, UserError, short

HEALTH = ("Success", "Socket failed", "Receive timeout", "Unreachable", "Time exceeded", "Fault", "Init",
          "Thread error", "Detect ip set", "Unknown")  # fmt: skip
"""Answers of `-net_health`. Init: no address to probe is set (`-netdetect`), so nothing was probed."""

_MARK = re.compile(
    r"(?:\[\s*(?:devid|device|dev_id)\s+(\d{1,4})\s*\]:?|(?:dev_id:|device )\s*(\d{1,4})\s*(?:,|:|$))\s*", re.IGNORECASE
)
_REFUSALS = (
    ("hccn_tool is busy", True, "hccn_tool serves one call at a time; ask again when nothing else calls it"),
    ("Link status is down", False, "the network card has no link, so this cannot be read"),
    ("not supported on this", False, "this product does not support the query"),
    ("permission denied", False, "this user, or this environment, is not permitted to ask"),
    ("dsmi exec failed", False, "the driver did not answer"),
    ("cmd execute failed", False, "the tool failed"),
)


class HccnRefusal(DeviceUnavailable):
    """hccn_tool says that it cannot answer. `busy`: ask again."""

    def __init__(self, message: str, busy: bool, line: int):
        super().__init__(message, None, line)
        self.busy = busy


def _lines(text: str, name: str) -> Iterator[tuple[Place, int | None, str]]:
    """Lines with their device. Raises HccnRefusal, UserError."""
    device: int | None = None
    for place, line in numbered(text, name):
        if mark := _MARK.match(line):
            device = int(mark[1] or mark[2])
            if device > MOST_DEVICE:
                raise wrong(place, line, f"A server has devices 0..{MOST_DEVICE} at most.")
            line = line[mark.end() :]
        for phrase, busy, told in _REFUSALS:
            if phrase.lower() in line.lower():
                message = f"{place.file}:{place.line}  {short(line, 200)}\n  {told[0].upper()}{told[1:]}."
                raise HccnRefusal(message, busy, place.line)
        if line:
            yield place, device, line


def _nothing(text: str, name: str, expected: str) -> UserError:
    """Why there is no answer in a text."""
    return refusal(text, name) or UserError(f"{name}\n  No answer of hccn_tool in it. Expected is {expected}.")


def parse_ip(text: str, name: str, device: int) -> tuple[str, ...]:
    """`-ip -g` (or `-ip -inet6 -g`) of one device: its addresses, none where it has none.

    Raises:
        HccnRefusal, UserError: as the module says.
    """
    told = {place.line: line for place, _, line in _lines(text, name)}  # without marks
    if not told:
        return ()
    plain = "\n".join(told.get(number, "") for number in range(1, max(told) + 1))
    try:
        cards = parse_hccn(f"device {device}\n{plain}", name)
    except RecipeError as error:
        if said := refusal(text, name):
            raise said from None
        raise RecipeError([replace(p, line=p.line and p.line - 1) for p in error.problems]) from None
    return tuple(table[device] for table in (cards.ipv4, cards.ipv6) if device in table)


def parse_link(text: str, name: str) -> bool:
    """`-link -g`: whether the link is up. Raises HccnRefusal, UserError."""
    return _word(text, name, r"link status\s*:\s*(UP|DOWN)", "'link status: UP' or DOWN").upper() == "UP"


def parse_net_health(text: str, name: str) -> str:
    """`-net_health -g`: one of HEALTH. Raises HccnRefusal, UserError."""
    status = _word(text, name, r"net health status\s*:\s*(.{1,60})", f"'net health status: {HEALTH[0]}'")
    if status.lower() not in (known.lower() for known in HEALTH):
        line = next(place for place, _, row in _lines(text, name) if status in row)
        raise wrong(line, status, f"The network's health is one of {', '.join(HEALTH)}.")
    return status


def parse_fec(text: str, name: str) -> str:
    """`-fec -g`: the mode, for example `rs FEC mode`. Raises HccnRefusal, UserError."""
    return _word(text, name, r"fec mode\s*:\s*(.{1,60})", "'fec mode: rs FEC mode'")


def parse_gateway(text: str, name: str) -> tuple[str, str] | None:
    """`-gateway -g`: address and interface; None where none is set. Raises HccnRefusal, UserError."""
    if not any(True for _ in _lines(text, name)):
        return None
    found = _word(text, name, r"default gateway\s*:\s*(\S{0,60},\s*Iface\s*:\s*\S{1,40})",
                  "'default gateway:192.0.2.1, Iface:eth0'")  # fmt: skip
    address, interface = re.split(r",\s*Iface\s*:\s*", found, maxsplit=1)
    return _address(text, name, address), interface


def parse_netdetect(text: str, name: str) -> str | None:
    """`-netdetect -g`: the address that the card probes; None where none is set. Raises HccnRefusal, UserError."""
    if not any(True for _ in _lines(text, name)):
        return None
    found = _word(text, name, r"netdetect address\s*:\s*(\S{1,60})", "'netdetect address: 192.0.2.1'")
    return None if _address(text, name, found) in ("0.0.0.0", "::") else found


def _word(text: str, name: str, pattern: str, expected: str) -> str:
    compiled = re.compile(pattern, re.IGNORECASE)
    found: str | None = None
    for place, _, line in _lines(text, name):
        if match := compiled.fullmatch(line):
            if found is not None:
                raise wrong(place, line, "There is an answer further up already: one device in one file.")
            found = match[1].strip()
        elif not line.lower().startswith(("hccn_tool", "/usr/")) and (said := refusal(line, name, place.line)):
            raise said
    if found is None:
        raise _nothing(text, name, expected)
    return found


def _address(text: str, name: str, address: str) -> str:
    if not is_address(address):
        line = next(place for place, _, row in _lines(text, name) if address in row)
        raise wrong(line, address, "This is no address. An address looks like 192.0.2.1 or 2001:db8::1.")
    return address


@dataclass(frozen=True, kw_only=True)
class LinkHistory:
    """`-link_stat -g`. `changes`: time as printed, whether the link came up; the latest first."""

    now: str
    up_count: int
    changes: tuple[tuple[str, bool], ...]

    @property
    def downs(self) -> int:
        """How often the link went down in what the card remembers."""
        return sum(not up for _, up in self.changes)


def parse_link_stat(text: str, name: str) -> LinkHistory:
    """`-link_stat -g`. Raises HccnRefusal, UserError."""
    now, count, changes = "", None, []
    for place, _, line in _lines(text, name):
        if found := re.fullmatch(r"current time\s*:\s*(.{1,60})", line):
            now = found[1]
        elif found := re.fullmatch(r"link up count\s*:\s*(\d{1,9})", line):
            count = int(found[1])
        elif found := re.fullmatch(r"(\S.{8,40}?)\s+LINK (UP|DOWN)", line):
            changes.append((found[1], found[2] == "UP"))
        elif not re.fullmatch(r"link change records\s*:.*|link down count\s*:\s*\d{1,9}", line) and count is not None:
            raise wrong(place, line, "Expected is a change of the link: a time and LINK UP or LINK DOWN.")
    if count is None:
        raise _nothing(text, name, "'link up count : 2' and a line for each change")
    return LinkHistory(now=now, up_count=count, changes=tuple(changes))


@dataclass(frozen=True, kw_only=True)
class Tls:
    """`-tls -g` of one device.

    Attributes:
        enabled: must be the same on all devices of a job, or links are not made.
        preconfigured: None in the older form.
        expiring, expired: of the worst certificate that is listed.
    """

    device: int | None
    enabled: bool
    preconfigured: bool | None
    alarm_days: int | None
    expiring: bool
    expired: bool
    line: int


def parse_tls(text: str, name: str) -> tuple[Tls, ...]:
    """`-tls -g`, of one or of several devices. Raises HccnRefusal, UserError."""
    found: list[Tls] = []
    for place, device, line in _lines(text, name):
        if switch := re.search(r"tls switch\s*\[(\d)\]", line):
            preset = re.search(r"tls preconfigured\s*\[(\d)\]", line)
            days = re.search(r"alarm time threshold\s*\[(\d{1,6})\]", line)
            if switch[1] not in "01":
                raise wrong(place, line, "tls switch is [0] (off) or [1] (on).")
            found.append(Tls(device=device, enabled=switch[1] == "1", expiring=False, expired=False, line=place.line,
                             preconfigured=None if preset is None else preset[1] == "1",
                             alarm_days=None if days is None else int(days[1])))  # fmt: skip
        elif (status := re.search(r"tls expiration status\s*\[([012])\]", line)) and found:
            last, status = found[-1], status[1]
            found[-1] = replace(last, expiring=last.expiring or status == "1", expired=last.expired or status == "2")
    if not found:
        raise _nothing(text, name, "'dev_id:0, tls switch[0](0:disable, 1:enable), ...'")
    return tuple(found)


def parse_stat(text: str, name: str) -> dict[str, int]:
    """`-stat -g`: counter -> count. Raises HccnRefusal, UserError."""
    counters: dict[str, int] = {}
    for place, _, line in _lines(text, name):
        pair = re.fullmatch(r"([a-z0-9_]{3,60})\s*:\s*(\d{1,20})", line)
        if pair:
            counters[pair[1]] = int(pair[2])
        elif counters or not line.lower().startswith(("packet statistics", "hccn_tool", "/usr/")):
            raise refusal(line, name, place.line) or wrong(place, line, "Expected is a counter: roce_rx_err_pkt_num:0.")
    if not counters:
        raise _nothing(text, name, "'packet statistics:' and lines such as 'roce_rx_err_pkt_num:0'")
    return counters


@dataclass(frozen=True, kw_only=True)
class Optical:
    """`-optical -g`: the module in the card's port. `values`: name -> text as printed, with its unit."""

    present: bool
    values: dict[str, str]


def parse_optical(text: str, name: str) -> Optical:
    """`-optical -g`. Raises HccnRefusal, UserError."""
    values: dict[str, str] = {}
    for place, _, line in _lines(text, name):
        key, colon, value = line.partition(":")
        if key.strip() == "optical info" or line.lower().startswith(("hccn_tool", "/usr/")) or line == "...":
            continue
        if not colon or len(values) > 500:
            raise refusal(line, name, place.line) or wrong(
                place, line, "Expected is 'name : value', for example 'present : present'."
            )
        values[key.strip()] = short(value.strip(), 120)
    if "present" not in values:
        raise _nothing(text, name, "'optical info:' and a line 'present : present'")
    return Optical(present=values["present"].lower() == "present", values=values)


def parse_pfc(text: str, name: str) -> tuple[bool, ...]:
    """`-pfc -g`: which of the eight priorities are enabled. Raises HccnRefusal, UserError."""
    for place, _, line in _lines(text, name):
        if found := re.fullmatch(r"(?:pfc\s+)?(?:enabled|bitmap)\s*:?\s*([01](?:[ ,]+[01])*)", line, re.IGNORECASE):
            bits = re.findall("[01]", found[1])
            if len(bits) != 8:
                raise wrong(place, line, f"{len(bits)} priorities; there are eight, 0 to 7.")
            return tuple(bit == "1" for bit in bits)
    raise _nothing(text, name, "'PFC configuration:' and a line 'enabled 0 0 0 0 1 0 0 0'")


@dataclass(frozen=True, kw_only=True)
class Ping:
    """`-ping -g address A`: packets, and the times of those that came back."""

    target: str | None
    sent: int
    received: int
    times_ms: tuple[float, ...]

    @property
    def lost(self) -> bool:
        """Whether a packet did not come back."""
        return self.received < self.sent


def parse_ping(text: str, name: str) -> Ping:
    """`-ping -g address A` (and `-hccs_ping`). Raises HccnRefusal, UserError."""
    target, counted, times = None, None, []
    for place, _, line in _lines(text, name):
        if found := re.search(r"PING\s+(\S{1,60})", line):
            target = found[1]
        elif found := re.fullmatch(r"recv seq=\w{1,9},\s*time[=-](\d{1,9}(?:\.\d{1,9})?)\s*ms", line):
            times.append(float(found[1]))
        elif found := re.match(r"(\d{1,9}) packets transmitted, (\d{1,9}) received", line):
            counted = int(found[1]), int(found[2])
            if counted[1] > counted[0]:
                raise wrong(place, line, "More packets received than sent.")
    if counted is None:
        raise _nothing(text, name, "'3 packets transmitted, 3 received, 0.00% packet loss'")
    return Ping(target=target, sent=counted[0], received=counted[1], times_ms=tuple(times))
