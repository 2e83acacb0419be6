"""Rules about a host and its network: a clean node is silent; each fault is told once, with its line."""

from __future__ import annotations

import pytest
from doctor.node import changed, clean, recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.doctor.host_rules import check_host
from msparallel.doctor.network_rules import check_network, clock_state

pytestmark = pytest.mark.pure


def check(devices: int = 8, **changes: str | None):
    told = changed(**changes)
    return [*check_host(told, devices), *check_network(told, devices)]


def text(name: str) -> str:
    return clean()[name]


def test_a_clean_node_is_silent():
    assert check() == []


@pytest.mark.parametrize(
    ("name", "old", "new", "rule", "severity"),
    [
        ("meminfo.txt", "MemAvailable:   1423218588", "MemAvailable:     62914560", "host_memory", "warning"),
        ("meminfo.txt", "MemAvailable:   1423218588", "MemAvailable:     10485760", "host_memory", "error"),
        ("meminfo.txt", "HugePages_Total:        0", "HugePages_Total:   600000", "host_hugepages", "warning"),
        ("meminfo.txt", "SwapTotal:              0", "SwapTotal:       8388608", "host_swapping", "warning"),
        ("limits.txt", "Max open files            1048576", "Max open files            1024   "
                                                            "", "open_files", "warning"),
        ("limits.txt", "Max locked memory         unlimited", "Max locked memory         65536    "
                                                              "", "pinned_memory", "warning"),
        ("limits.txt", "Max stack size            8388608", "Max stack size            "
                                                            "1048576", "process_limits", "warning"),
        ("limits.txt", "Max processes             unlimited", "Max processes             1000     "
                                                              "", "process_limits", "warning"),
        ("disk.txt", "700000000 26% /", "9000000 98% /", "disk_short", "warning"),
        ("disk.txt", "700000000 26% /", "1000 100% /", "disk_full", "error"),
        ("disk.txt", "tmpfs 791569556", "tmpfs 65536", "shared_memory", "warning"),
        ("sysctl.txt", "nf_conntrack_count = 312", "nf_conntrack_count = 1000000", "conntrack_full", "warning"),
        ("sysctl.txt", "nf_conntrack_count = 312", "nf_conntrack_count = 1048576", "conntrack_full", "error"),
        ("sysctl.txt", "net.ipv4.ip_local_reserved_ports = 60000-60015\n", "", "ports_not_reserved", "info"),
        ("hostname.txt", "resolves=198.51.100.10", "resolves=", "host_name_unresolved", "warning"),
        ("hostname.txt", "resolves=198.51.100.10", "resolves=127.0.1.1", "host_name_loopback", "warning"),
        ("hostname.txt", "name=node-0", "name=node_0", "host_name", "warning"),
        ("clock.txt", "NTPSynchronized=yes\n", "NTPSynchronized=no\n", None, None),  # chrony says otherwise
        ("clock.txt", "0.000012345 seconds slow", "2.5 seconds fast", "clock_off", "warning"),
        ("firewall.txt", "inactive", "active", "firewall", "warning"),
        ("firewall.txt", "-P INPUT ACCEPT", "-P INPUT DROP", "firewall", "warning"),
        ("firewall.txt", "-P INPUT ACCEPT", "-A INPUT -j REJECT --reject-with "
                                            "icmp-host-prohibited", "firewall", "warning"),
        ("firewall.txt", "-P INPUT ACCEPT", "-A INPUT -p icmp -j DROP", None, None),
        ("ports.txt", "22\n", "22\n8118\n", "msrun_port_taken", "warning"),
        ("ports.txt", "22\n", "22\n60003\n", "hccl_port_taken", "warning"),
    ],
)  # fmt: skip
def test_each_fault_is_told_once_with_its_line(name, old, new, rule, severity):
    assert old in text(name)
    found = check(**{name.replace(".", "__"): text(name).replace(old, new)})
    assert [(one.rule, one.severity) for one in found] == ([(rule, severity)] if rule else [])
    if rule:
        line = found[0].evidence[0]
        assert line.file == f"node_0/{name}" and line.text.strip() and found[0].remedy


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("HCCL_IF_IP=198.51.100.10", None),
        ("HCCL_IF_IP=2001:db8:0::10", None),
        ("HCCL_IF_IP=198.51.100.99", "env_address_not_here"),
        ("MS_WORKER_IP=198.51.100.99", "env_address_not_here"),
        ("HCCL_IF_IP=eth0", None),  # no address at all: a finding of the variables
        ("HCCL_SOCKET_IFNAME=eth", None),
        ("HCCL_SOCKET_IFNAME==eth1", None),
        ("HCCL_SOCKET_IFNAME==enp1,eth0", None),
        ("HCCL_SOCKET_IFNAME=^docker", None),
        ("HCCL_SOCKET_IFNAME==eth", "env_interface_not_here"),
        ("HCCL_SOCKET_IFNAME=enp", "env_interface_not_here"),
    ],
)
def test_what_variables_choose_of_the_network_is_this_hosts(line, rule):
    found = check(env__txt=f"{line}\n")
    assert [one.rule for one in found] == ([rule] if rule else [])
    assert not rule or [evidence.file for evidence in found[0].evidence] == ["node_0/env.txt", "node_0/hostname.txt"]


@pytest.mark.parametrize(
    ("section", "synchronised", "offset_s"),
    [
        ("$ timedatectl show\nNTPSynchronized=no\n", False, None),
        ("$ timedatectl\n   System clock synchronized: yes\n", True, None),
        ("$ timedatectl\n     NTP synchronized: no\n", False, None),
        ("$ chronyc tracking\nLeap status     : Not synchronised\n", False, None),
        ("$ chronyc tracking\nSystem time     : 0.75 seconds fast of NTP time\nLeap status     : Normal\n", True, 0.75),
        ("$ ntpq -pn\n     remote           refid      st t when poll reach   delay   offset  jitter\n"
         "*192.0.2.1       192.0.2.9        2 u   34   64  377    0.412   -1.234   0.087\n", True, -0.001234),
        ("$ ntpstat\nunsynchronised\n", False, None),
        ("$ timedatectl show\nSystem has not been booted with systemd as init system (PID 1).\n", None, None),
    ],
)  # fmt: skip
def test_clocks_are_told_by_several_programs(section, synchronised, offset_s):
    state = clock_state(changed(clock__txt=section))
    assert state[0] is synchronised
    assert state[1] is None if offset_s is None else state[1] == pytest.approx(offset_s)
    found = check(clock__txt=section)
    assert ("clock_not_synchronised" in [one.rule for one in found]) == (synchronised is False)


def test_firewalls_of_other_kinds():
    for section in ("$ firewall-cmd --state\nrunning\n", "$ ufw status\nStatus: active\n",
                    "$ nft list ruleset\n\t\ttype filter hook input priority filter; policy drop;\n"):  # fmt: skip
        assert [one.rule for one in check(firewall__txt=section)] == ["firewall"], section
    for section in ("$ firewall-cmd --state\nnot running\n", "$ ufw status\nStatus: inactive\n",
                    "$ nft list ruleset\n\t\ttype filter hook input priority filter; policy accept;\n",
                    "$ iptables -S\niptables v1.8.9: Permission denied (you must be root)\n"):  # fmt: skip
        assert check(firewall__txt=section) == [], section


def test_a_machine_without_devices_is_judged_as_such():
    told = {"limits__txt": text("limits.txt").replace("unlimited            unlimited            "
                                                      "bytes", "65536 65536 bytes"),
            "meminfo__txt": "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n",
            "disk__txt": text("disk.txt").replace("700000000", "9000000").replace("tmpfs 791569556",
                                                                                  "tmpfs 65536")}  # fmt: skip
    assert [one for one in check(0, **told) if one.severity != "info"] == []


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("meminfo.txt", "MemTotal: 5 kB\nnot a line of meminfo\n", 2),
        ("meminfo.txt", "MemFree: 5 kB\n", 1),
        ("limits.txt", "hello\n", 1),
        ("disk.txt", "Filesystem 1024-blocks\n/dev/sda 1 2\n", 2),
        ("disk.txt", "nothing\n", 1),
        ("sysctl.txt", "vm.nr_hugepages = 0\nwhat\n", 2),
        ("hostname.txt", "node-0\n", 1),
        ("ports.txt", "22\nssh\n", 2),
        ("ports.txt", "70000\n", 1),
    ],
)
def test_garbage_is_a_finding_with_its_line(name, content, line):
    found = check(**{name.replace(".", "__"): content})
    assert [one.rule for one in found] == ["record_unreadable"]
    assert (found[0].evidence[0].file, found[0].evidence[0].line) == (f"node_0/{name}", line)


@given(st.sampled_from(["meminfo.txt", "limits.txt", "disk.txt", "sysctl.txt", "hostname.txt", "clock.txt",
                        "firewall.txt", "ports.txt"]), st.text(max_size=200), st.integers(0, 400))  # fmt: skip
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_ends_in_findings(name, junk, at):
    files = clean()
    files[name] = files[name][:at] + junk + files[name][at:]
    told = recording(files)
    for one in [*check_host(told, 8), *check_network(told, 8)]:
        one.to_json()
