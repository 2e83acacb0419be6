"""What must be the same on all hosts of a job: versions, variables, TLS, flow control, clocks, devices; and what must
not be: names and addresses.

In: Recordings of several hosts. Out: Findings, by the rung that they belong to.

>>> compare_environment([Recording(host="a"), Recording(host="b")])
[]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msparallel.doctor.device_rules import device_table
from msparallel.doctor.finding import Evidence, Finding, stated
from msparallel.doctor.link_rules import Linked, check_links, evidence_of
from msparallel.doctor.network_rules import clock_state
from msparallel.doctor.recording import Recording, Value
from msparallel.errors import UserError, short
from msparallel.finding import Severity

MOST_APART_S = 1.0
_SAME_VERSION: dict[str, Severity] = {
    "driver": "error", "firmware": "warning", "cann": "error", "mindspore": "error", "mindformers": "error",
    "torch": "error", "torch_npu": "error", "python": "warning", "numpy": "warning", "machine": "error",
}  # fmt: skip
_SAME_VARIABLE: dict[str, Severity] = {
    **dict.fromkeys(("HCCL_INTRA_ROCE_ENABLE", "HCCL_INTRA_PCIE_ENABLE", "HCCL_INTER_HCCS_DISABLE", "HCCL_ALGO",
                     "HCCL_BUFFSIZE", "P2P_HCCL_BUFFSIZE", "HCCL_OP_EXPANSION_MODE", "HCCL_DETERMINISTIC",
                     "HCCL_WHITELIST_DISABLE", "HCCL_SOCKET_FAMILY", "HCCL_IF_BASE_PORT", "HCCL_HOST_SOCKET_PORT_RANGE",
                     "HCCL_NPU_SOCKET_PORT_RANGE", "MS_SCHED_HOST", "MS_SCHED_PORT", "MS_WORKER_NUM"), "error"),
    **dict.fromkeys(("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "HCCL_EVENT_TIMEOUT", "HCCL_RDMA_TC", "HCCL_RDMA_SL",
                     "HCCL_RDMA_TIMEOUT", "HCCL_RDMA_RETRY_CNT", "MS_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF",
                     "MS_TOPO_TIMEOUT", "MS_NODE_TIMEOUT", "MS_RECEIVE_MSG_TIMEOUT", "MS_DEV_RUNTIME_CONF",
                     "ASCEND_GLOBAL_LOG_LEVEL"), "warning"),
}  # fmt: skip
"""Others, such as HCCL_IF_IP, MS_NODE_ID and paths, are a host's own."""


def _values(told: Recording, name: str) -> dict[str, Value]:
    try:
        return told.values(name)
    except UserError:
        return {}  # a finding of the host itself


def _differ(
    rule: str, severity: Severity, what: str, why: str, remedy: str, by_host: dict[str, tuple[str, Evidence | None]]
) -> Iterator[Finding]:
    """Where hosts have different values of one thing: the usual one, and who is different."""
    usual = Counter(value for value, _ in by_host.values()).most_common(1)[0][0]
    others = {host: pair for host, pair in by_host.items() if pair[0] != usual}
    if others:
        host, (value, _) = next(iter(others.items()))
        shown = [pair[1] for pair in others.values() if pair[1]][:4]
        same = next((pair[1] for pair in by_host.values() if pair[0] == usual and pair[1]), None)
        same_hosts = len(by_host) - len(others)
        on_hosts = f"on {same_hosts} host{'s' * (same_hosts > 1)}"
        more = f" and {len(others) - 1} other hosts differ" if len(others) > 1 else ""
        yield Finding(rule=rule, severity=severity, host=host, remedy=remedy, evidence=tuple(
            [*shown, *([same] if same else [])]), root_cause=f"{what}: {short(usual, 60)} "
            f"{on_hosts}, {short(value, 60)} on {host}{more}. {why}")  # fmt: skip


def compare_environment(hosts: Sequence[Recording]) -> list[Finding]:
    """Versions, variables, names, clocks."""
    return [] if len(hosts) < 2 else [*_versions(hosts), *_variables(hosts), *_same_name(hosts), *_clocks(hosts)]


def _versions(hosts: Sequence[Recording]) -> Iterator[Finding]:
    told = {host.host: _values(host, "versions.txt") for host in hosts}
    for name, severity in _SAME_VERSION.items():
        by_host: dict[str, tuple[str, Evidence | None]] = {}
        for host, values in told.items():
            if values:
                found = values.get(name)
                by_host[host] = (found.text, stated(name, found)) if found else ("not installed", None)
        if len(by_host) > 1:
            yield from _differ("versions_differ", severity, f"{name} is not the same on all hosts",
                               "Ranks of different versions do not understand each other (EI0008), or compute "
                               "differently.",
                               f"Install the same {name} everywhere; a container image of one digest is the surest "
                               "way.",
                               by_host)  # fmt: skip


def _variables(hosts: Sequence[Recording]) -> Iterator[Finding]:
    told = {host.host: _values(host, "env.txt") for host in hosts if host.get("env.txt") is not None}
    for name, severity in _SAME_VARIABLE.items():
        if len(told) > 1 and any(name in values for values in told.values()):
            by_host = {host: (values[name].text, stated(name, values[name])) if name in values else ("not set", None)
                       for host, values in told.items()}  # fmt: skip
            yield from _differ("env_differs", severity, f"{name} is not the same on all hosts",
                               "Ranks that are told different things wait for each other until they time out.",
                               f"Set {name} to one value everywhere, or nowhere: source the same launch/setup_env.sh.",
                               by_host)  # fmt: skip


def _same_name(hosts: Sequence[Recording]) -> Iterator[Finding]:
    named: dict[str, list[tuple[str, Value]]] = {}
    for host in hosts:
        if found := _values(host, "hostname.txt").get("name"):
            named.setdefault(found.text, []).append((host.host, found))
    for name, same in named.items():
        if len(same) > 1:
            cause = (f"{len(same)} hosts call themselves {short(name, 60)}: MindSpore counts the devices of hosts by "
                     "name, so their workers get the same devices (MindSpore FAQ).")  # fmt: skip
            yield Finding(rule="host_name_twice", severity="error", host=same[1][0], root_cause=cause,
                          remedy="hostnamectl set-hostname with a name of its own for each.",
                          evidence=tuple(stated("name", value) for _, value in same[:4]))  # fmt: skip


def _clocks(hosts: Sequence[Recording]) -> Iterator[Finding]:
    zones = {host.host: _values(host, "hostname.txt").get("time_zone") for host in hosts}
    told = {host: (value.text, stated("time_zone", value)) for host, value in zones.items() if value}
    if len(told) > 1:
        yield from _differ("time_zones_differ", "warning", "The time zone is not the same on all hosts",
                           "Logs write local time, so those of several hosts cannot be put in order.",
                           "timedatectl set-timezone ZONE", dict(told))  # fmt: skip
    states = {host.host: clock_state(host) for host in hosts if host.get("clock.txt") is not None}
    known = {host: state for host, state in states.items() if state[0] is not None}
    by_host = {host: ("synchronised" if ok else "not synchronised", lines[0] if lines else None)
               for host, (ok, _, lines) in known.items()}  # fmt: skip
    if len(by_host) > 1:
        yield from _differ("clocks_differ", "warning", "Clocks are not synchronised in the same way",
                           "Clocks that drift apart make it impossible to say which rank failed first.",
                           "Start chronyd on every host with the same server.", by_host)  # fmt: skip
    offsets = {host: state[1] for host, state in states.items() if state[1] is not None}
    if len(offsets) > 1:
        low, high = min(offsets, key=lambda h: offsets[h] or 0), max(offsets, key=lambda h: offsets[h] or 0)
        apart_s = (offsets[high] or 0) - (offsets[low] or 0)
        if apart_s > MOST_APART_S:
            cause = f"The clocks of {low} and {high} are {apart_s:.3g} s apart: their logs cannot be put in order."
            yield Finding(rule="clocks_differ", severity="warning", host=high, root_cause=cause,
                          remedy="chronyc makestep on both, and the same server for both.",
                          evidence=tuple(states[host][2][-1] for host in (low, high)))  # fmt: skip


def compare_devices(hosts: Sequence[Recording]) -> list[Finding]:
    """Number and kind of devices."""
    by_host: dict[str, tuple[str, Evidence | None]] = {}
    for host in hosts:
        table = device_table(host)
        record = host.get("npu-smi_info.txt")
        if table is not None and record is not None:
            names = Counter(device.name for device in table.devices)
            first = table.devices[0]
            by_host[host.host] = (" and ".join(f"{count} x {name}" for name, count in sorted(names.items())),
                                  Evidence(record.shown, first.line,
                                           record.text.split("\n")[first.line - 1]))  # fmt: skip
    if len(by_host) < 2:
        return []
    return list(_differ("devices_differ", "error", "Devices are not the same on all hosts",
                        "All hosts of a job need the same number of the same chip.",
                        "Take the host that differs out of the job.", by_host))  # fmt: skip


def compare_links(hosts: Sequence[Recording]) -> list[Finding]:
    """TLS, flow control and addresses of devices."""
    if len(hosts) < 2:
        return []
    linked = {host.host: check_links(host) for host in hosts}
    return [*_same_tls(linked), *_same_pfc(linked), *_same_address(linked)]


def _same_tls(linked: dict[str, Linked]) -> Iterator[Finding]:
    by_host: dict[str, tuple[str, Evidence | None]] = {}
    for host, told in linked.items():
        states = {answer.enabled for answers in told.answers.get("tls", {}).values() for answer in answers}
        if len(states) == 1:
            device = next(iter(told.answers["tls"]))
            by_host[host] = "on" if states.pop() else "off", evidence_of(told, "tls", device, "tls switch")
    if len(by_host) > 1:
        yield from _differ("tls_differs", "error", "TLS of the devices is not the same on all hosts",
                           "A device with TLS makes no link with one without, and link set-up times out (EI0006).",
                           "The same everywhere: for i in 0 1 2 3 4 5 6 7; do hccn_tool -i $i -tls -s enable 0; done",
                           by_host)  # fmt: skip


def _same_pfc(linked: dict[str, Linked]) -> Iterator[Finding]:
    by_host: dict[str, tuple[str, Evidence | None]] = {}
    for host, told in linked.items():
        states = set(told.answers.get("pfc", {}).values())
        if len(states) == 1:
            device = next(iter(told.answers["pfc"]))
            text = " ".join(str(int(on)) for on in states.pop())
            by_host[host] = text, evidence_of(told, "pfc", device, "enabled|bitmap")
    if len(by_host) > 1:
        yield from _differ("pfc_differs", "error", "Flow control (PFC) is not the same on all hosts",
                           "A sender that is not paused loses packets, and RoCE sends them again.",
                           "hccn_tool -i ID -pfc -s bitmap 0,0,0,0,1,0,0,0 on every device, and the same on the "
                           "switch.",
                           by_host)  # fmt: skip


def _same_address(linked: dict[str, Linked]) -> Iterator[Finding]:
    seen: dict[str, tuple[str, int]] = {}
    for host, told in linked.items():
        for device, addresses in told.answers.get("ip", {}).items():
            for address in addresses:
                other = seen.setdefault(address, (host, device))
                if other[0] != host:
                    evidence = evidence_of(linked[other[0]], "ip", other[1]), evidence_of(told, "ip", device)
                    cause = (f"Device {other[1]} of {other[0]} and device {device} of {host} have the same address "
                             f"{address}.")  # fmt: skip
                    yield Finding(rule="device_address_twice", severity="error", host=host, evidence=evidence,
                                  root_cause=cause, remedy="Give each device an address of its own.")  # fmt: skip
