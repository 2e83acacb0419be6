"""Hosts of one job: what must be the same, and what must not."""

from __future__ import annotations

import pytest
from doctor.node import DEVICES, clean, recording

from msparallel.doctor.compare_rules import compare_devices, compare_environment, compare_links
from msparallel.doctor.recording import Recording

pytestmark = pytest.mark.pure


def hosts(change: dict[str, str | None] | None = None, number: int = 3) -> list[Recording]:
    """`number` clean hosts; the last one with other files."""
    found = []
    for place in range(number):
        files = clean(f"node_{place}", 10 + 20 * place)
        if place == number - 1:
            files |= change or {}
        found.append(recording({k: v for k, v in files.items() if v is not None}, f"node_{place}"))
    return found


def everything(told: list[Recording]):
    return [*compare_environment(told), *compare_devices(told), *compare_links(told)]


def test_hosts_that_are_alike_are_silent():
    assert everything(hosts()) == []
    assert everything(hosts(number=1)) == []


ENV, VERSIONS, NAME = (clean("node_2", 50)[name] for name in ("env.txt", "versions.txt", "hostname.txt"))
PFC_OFF = "PFC configuration:\nenabled 0 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(
    ("change", "rule", "severity", "says"),
    [
        ({"versions.txt": VERSIONS.replace("cann=9.0.0", "cann=8.5.0")}, "versions_differ", "error",
         "cann is not the same on all hosts: 9.0.0 on 2 hosts, 8.5.0 on node_2"),
        ({"versions.txt": VERSIONS.replace("driver=26.0.rc1", "driver=25.5.0")}, "versions_differ", "error", "driver"),
        ({"versions.txt": VERSIONS.replace("mindformers=1.9.0\n", "")}, "versions_differ", "error", "not installed "
                                                                                                    "on node_2"),
        ({"versions.txt": VERSIONS.replace("python=3.11.4", "python=3.10.12")}, "versions_differ", "warning", "python"),
        ({"env.txt": ENV + "HCCL_ALGO=level0:NA;level1:ring\n"}, "env_differs", "error", "not set on 2 hosts"),
        ({"env.txt": ENV.replace("600", "1200")}, "env_differs", "warning", "600 on 2 hosts, 1200 on node_2"),
        ({"hostname.txt": NAME.replace("node-2", "node-0")}, "host_name_twice", "error", "2 hosts call themselves "
                                                                                         "node-0"),
        ({"hostname.txt": NAME.replace("+0800", "+0000")}, "time_zones_differ", "warning", "+0000 on node_2"),
        ({"clock.txt": "$ timedatectl show\nNTPSynchronized=no\n"}, "clocks_differ", "warning", "not synchronised on "
                                                                                                "node_2"),
        ({"clock.txt": "$ chronyc tracking\nSystem time : 3.5 seconds fast of NTP time\nLeap status : Normal\n"},
         "clocks_differ", "warning", "3.5 s apart"),
        ({"npu-smi_info.txt": clean()["npu-smi_info.txt"].replace("910B2", "910B3")}, "devices_differ", "error",
         "8 x 910B2 on 2 hosts, 8 x 910B3 on node_2"),
        ({f"hccn_tls_{n}.txt": f"dev_id:{n}, tls switch[1](0:disable, "
                               "1:enable)\n" for n in range(DEVICES)}, "tls_differs",
         "error", "off on 2 hosts, on on node_2"),
        ({f"hccn_pfc_{n}.txt": PFC_OFF for n in range(DEVICES)}, "pfc_differs", "error", "on node_2"),
        ({"hccn_ip_0.txt": clean()["hccn_ip_0.txt"]}, "device_address_twice", "error",
         "Device 0 of node_0 and device 0 of node_2 have the same address 192.0.2.10"),
    ],
)  # fmt: skip
def test_each_difference_is_told_with_the_host_and_a_line_of_both(change, rule, severity, says):
    found = everything(hosts(change))
    assert [(one.rule, one.severity, one.host) for one in found] == [(rule, severity, "node_2")]
    assert says in found[0].root_cause and found[0].remedy
    files = [line.file for line in found[0].evidence]
    assert any(file.startswith("node_2/") for file in files) or "not installed" in says


def test_what_is_a_hosts_own_may_differ():
    own = "HCCL_IF_IP=198.51.100.50\nMS_NODE_ID=2\nASCEND_PROCESS_LOG_PATH=/l/2\n"
    assert everything(hosts({"env.txt": ENV + own})) == []


def test_several_others_are_counted():
    told = hosts()
    for host in told[1:]:
        host.records["env.txt"] = host.records["env.txt"]._replace(text=f"HCCL_BUFFSIZE={host.host[-1]}00\n")
    found = [one for one in compare_environment(told) if one.root_cause.startswith("HCCL_BUFFSIZE")]
    assert len(found) == 1 and "and 1 other hosts differ" in found[0].root_cause


def test_a_host_that_recorded_less_is_not_different():
    assert everything(hosts({"versions.txt": None, "env.txt": None, "npu-smi_info.txt": None, "clock.txt": None})) == []
