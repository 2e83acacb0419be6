"""Who takes part, and what their network cards are called.

In: a host list (a name a line), and for each host its hccn.conf or what hccn_tool printed. Out: Hosts, in the order of
the list; or every problem with file and line.

>>> parse_hosts("node_0 192.0.2.11\\nnode_1 192.0.2.12 super_pod=1\\n", "hosts.txt")[1].super_pod
'1'
>>> parse_hccn("address_0=198.51.100.10\\n", "hccn.conf").addresses(4)
{0: '198.51.100.10'}
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from msparallel.cluster.json_lines import decode, read_bytes
from msparallel.errors import Problem, RecipeError, short

MOST_HOSTS = 65_536
MOST_DEVICE = 63
_MOST_BYTES = 4 * 1024 * 1024
_MOST_PROBLEMS = 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Also a safe name of a file: no separator, no leading dot or dash."""

_CONF = re.compile(r"(?P<six>IPv6)?address_(?P<device>\d{1,4})\s*=\s*(?P<value>\S*)", re.IGNORECASE)
_MARK = re.compile(r"\[?\s*(?:devid|device)\s+(?P<device>\d{1,4})\s*\]?:?")
_COMMAND = re.compile(r"\bhccn_tool -i (?P<device>\d{1,4})\b")
_ADDRESS = re.compile(r"ipaddr\s*:\s*(?P<value>\S*)", re.IGNORECASE)
_SDID = re.compile(r"SDID\s*:\s*(?P<value>\d{1,18})", re.IGNORECASE)
_POD = re.compile(r"Super\s*Pod\s*ID\s*:\s*(?P<value>\d{1,18})", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Host:
    """A line of a host list: `NAME [ADDRESS] [super_pod=ID]`."""

    name: str
    address: str | None = None
    super_pod: str | None = None
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class Cards:
    """Network cards of a host.

    Attributes:
        ipv4, ipv6: physical device id -> address.
        super_device_ids: device id -> SDID, where the capture holds npu-smi's spod-info.
        super_pods: super pod ids that the capture names; of one host there is one.
        named: devices that the file names, also those without an address.
    """

    file: str = ""
    named: set[int] = field(default_factory=set)
    ipv4: dict[int, str] = field(default_factory=dict)
    ipv6: dict[int, str] = field(default_factory=dict)
    super_device_ids: dict[int, int] = field(default_factory=dict)
    super_pods: tuple[str, ...] = ()

    def addresses(self, version: int) -> dict[int, str]:
        """Of IPv4 or IPv6."""
        return self.ipv4 if version == 4 else self.ipv6

    @property
    def devices(self) -> list[int]:
        """Device ids, ascending."""
        return sorted(self.named)


def read_hosts(path: str | Path) -> list[Host]:
    """Raises RecipeError with every problem."""
    return parse_hosts(decode(read_bytes(path, _MOST_BYTES), str(path)), str(path))


def parse_hosts(text: str, file: str) -> list[Host]:
    """Hosts in the order of the list. Raises RecipeError."""
    hosts: list[Host] = []
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host, message = _host(words, number)
        if host is not None and host.name in seen:
            message = f"This host stands on line {seen[host.name]} already; delete one of the two lines."
        if message:
            problems.append(Problem(key="host", value=short(line.strip(), 80), rule="host_list", message=message,
                                    file=file, line=number))  # fmt: skip
        elif host is not None:
            seen[host.name] = number
            hosts.append(host)
    if not hosts and not problems:
        problems.append(Problem(key="host", value=None, rule="host_list", file=file,
                                message="No host in it. One a line: node_0 192.0.2.11"))  # fmt: skip
    if len(hosts) > MOST_HOSTS:
        problems.append(Problem(key="host", value=len(hosts), rule="host_list", file=file,
                                message=f"{len(hosts):,} hosts; at most {MOST_HOSTS:,} are read."))  # fmt: skip
    if problems:
        raise RecipeError(problems[:_MOST_PROBLEMS])
    return hosts


def _host(words: list[str], number: int) -> tuple[Host | None, str]:
    name, *rest = words
    if not is_host_name(name) and not is_address(name):
        return None, ("A host is a name of letters, digits, '.', '-' and '_' (at most 64, the first a letter or a "
        "digit), or "
                      "an address, for example node_0.")  # fmt: skip
    address, pod = (name if is_address(name) else None), None
    for word in rest:
        key, equals, value = word.partition("=")
        if equals and key == "super_pod" and _NAME.fullmatch(value):
            pod = value
        elif not equals and is_address(word):
            address = word
        else:
            return None, (f"{short(word, 40)!r} is neither an address nor super_pod=ID. A line is NAME [ADDRESS] "
                          "[super_pod=ID], for example node_0 192.0.2.11 super_pod=0.")  # fmt: skip
    return Host(name=name, address=address, super_pod=pod, line=number), ""


def is_host_name(text: str) -> bool:
    """Whether this can name a host: also a safe name of a file, and no option of a program."""
    return bool(_NAME.fullmatch(text))


def is_address(text: str) -> bool:
    """Whether this is an IPv4 or IPv6 address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def hccn_file(folder: Path, host: str) -> Path:
    """The file of a host in a folder: HOST.conf, HOST.txt or HOST/hccn.conf. Raises RecipeError where there is none."""
    candidates = [folder / f"{host}.conf", folder / f"{host}.txt", folder / host / "hccn.conf"]
    found = [path for path in candidates if path.is_file()]
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.relative_to(folder).as_posix() for path in (found or candidates))
    message = (
        f"Several files tell the cards of {host}: {names}. Leave one." if found else
        f"No file tells the cards of {host}: looked for {names}. Copy the host's /etc/hccn.conf there, or what "
        "hccn_tool "
        f"prints there."
    )  # fmt: skip
    raise RecipeError([Problem(key=host, value=None, rule="hccn", message=message, file=str(folder))])


def read_hccn(path: str | Path) -> Cards:
    """Raises RecipeError with every problem."""
    return parse_hccn(decode(read_bytes(path, _MOST_BYTES), str(path)), str(path))


def parse_hccn(text: str, file: str) -> Cards:
    """hccn.conf, or output of hccn_tool (and of npu-smi info -t spod-info) with a line `device N` before each device's.

    Raises RecipeError.
    """
    cards = Cards(file=file)
    problems: list[Problem] = []
    pods: dict[str, None] = {}
    device: int | None = None

    def note(line: int, value: str, message: str) -> None:
        problems.append(Problem(key="hccn", value=short(value, 80), rule="hccn", message=message, file=file, line=line))

    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line.startswith("#") and "hccn_tool" not in line:
            continue
        if "is busy" in line or "Socket failed" in line:
            note(number, line, "hccn_tool could not answer. Run the command again and replace this part.")
        elif conf := _CONF.fullmatch(line):
            _put(cards, int(conf["device"]), conf["value"], number, note)
        elif mark := _MARK.fullmatch(line) or _COMMAND.search(line):
            device = int(mark["device"])
            if device <= MOST_DEVICE:
                cards.named.add(device)
        elif told := _ADDRESS.fullmatch(line):
            if device is None:
                note(number, line, "Which device's address is this? Put a line before it: device 0")
            else:
                _put(cards, device, told["value"], number, note)
        elif (told := _SDID.fullmatch(line)) and device is not None and device <= MOST_DEVICE:
            cards.super_device_ids[device] = int(told["value"])
        elif told := _POD.fullmatch(line):
            pods[told["value"]] = None
    if len(pods) > 1:
        note(1, ", ".join(pods), "One host is in one super pod; this capture is of several hosts. Use a file a host.")
    if not problems and not (cards.ipv4 or cards.ipv6):
        problems.append(Problem(key="hccn", value=None, rule="hccn", file=file, message=(
            "No address of a network card in it. hccn.conf has lines address_0=192.0.2.10; the cards get them with "
            "hccn_tool -i 0 -ip -s address ADDRESS netmask MASK.")))  # fmt: skip
    if problems:
        raise RecipeError(problems[:_MOST_PROBLEMS])
    return replace(cards, super_pods=tuple(pods))


def _put(cards: Cards, device: int, value: str, line: int, note: Callable[[int, str, str], None]) -> None:
    if device > MOST_DEVICE:
        return note(line, str(device), f"A server has devices 0..{MOST_DEVICE} at most.")
    cards.named.add(device)
    if not value:
        return None  # the card has no address: the rank table's rule says what that means
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return note(line, value, "This is no address. An address looks like 192.0.2.10 or 2001:db8::10.")
    table = cards.addresses(address.version)
    if table.get(device, value) != value:
        return note(line, value, f"Device {device} has the address {table[device]} further up; delete one of the two.")
    table[device] = value
    return None
