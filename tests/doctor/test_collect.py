"""What this machine tells: from a made-up root, stand-in tools on PATH, an environment with secrets in it."""

from __future__ import annotations

import platform
import stat

import pytest
from devices.npu_smi_texts import info_a2, info_a3

from msparallel.devices import query
from msparallel.doctor import collect
from msparallel.doctor.collect import collect_devices, collect_environment, collect_links, together
from msparallel.doctor.env_rules import NOT_RECORDED
from msparallel.doctor.recording import Record, Recording

pytestmark = pytest.mark.pure


@pytest.fixture
def root(tmp_path):
    """A node's file system, as far as it is read."""
    files = {
        "proc/meminfo": "MemTotal: 1000 kB\n", "proc/self/limits": "Max open files 1024 1024 files\n",
        "proc/sys/vm/nr_hugepages": "0\n", "proc/net/tcp": "  sl  local_address rem_address   st\n"
        "   0: 0100007F:1FB6 00000000:0000 0A\n   1: 0100007F:0016 0100007F:9999 01\n",
        "usr/local/Ascend/driver/version.info": "Version=25.5.2\nascendhal_version=7.35.23\n"
        "compatible_version_fw=[7.0.0,8.9.9]\npackage_version=25.5.2\n",
        "usr/local/Ascend/firmware/version.info": "Version=7.8.0.1.231\ncompatible_version_drv=[25.0,25.0.]\n",
        f"usr/local/Ascend/cann/{platform.machine()}-linux/ascend_toolkit_install.info": "version=9.0.0\n",
        "etc/hccn.conf": "address_0=192.0.2.10\n", "etc/os-release": 'PRETTY_NAME="openEuler 24.03"\n',
        "proc/net/fib_trie": "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
        "     +-- 127.0.0.0/8 2 0 2\n           |-- 127.0.0.1\n              /32 host LOCAL\n"
        "        |-- 192.0.2.2\n           /32 host LOCAL\n        |-- 192.0.2.255\n           /32 link BROADCAST\n",
        "proc/net/if_inet6": "20010db8000000000000000000000002 02 40 00 80 eth0\n",
        "sys/class/net/eth0": "", "sys/class/net/lo": "",
        "dev/davinci0": "", "dev/davinci1": "", "dev/davinci_manager": "", "dev/hisi_hdc": "",
        "sys/bus/pci/devices/0000:c1:00.0/vendor": "0x19e5\n", "sys/bus/pci/devices/0000:c1:00.0/device": "0xd802\n",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x19e5\n", "sys/bus/pci/devices/0000:01:00.0/device": "0x1711\n",
    }  # fmt: skip
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "root"


def test_the_environment_of_a_node(root):
    told = collect_environment(root, {})
    assert told.live and told.host
    versions = {name: value.text for name, value in told.values("versions.txt").items()}
    assert {name: versions[name] for name in ("driver", "firmware", "cann", "driver_needs_firmware", "system")} == {
        "driver": "25.5.2", "firmware": "7.8.0.1.231", "cann": "9.0.0", "driver_needs_firmware": "[7.0.0,8.9.9]",
        "system": "openEuler 24.03"}  # fmt: skip
    assert told.get("ports.txt").text.splitlines()[1:] == ["8118"]
    devices = told.get("devices.txt").text.splitlines()
    assert "present /dev/davinci1" in devices and "missing /dev/devmm_svm" in devices
    assert [line for line in devices if line.startswith("pci")] == ["pci 0000:c1:00.0 19e5:d802"]
    assert told.get("hccn.conf").text == "address_0=192.0.2.10\n"
    host = {name: value.text for name, value in told.values("hostname.txt").items()}
    assert host["name"] and host["addresses"] == "127.0.0.1,192.0.2.2,2001:db8::2" and host["interfaces"] == "eth0,lo"


def test_a_user_without_a_home(root, monkeypatch):
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda number: {}[number])
    told = collect_environment(root, {}).get("disk.txt")
    assert "/tmp" in told.text and "~" not in told.text


def test_cann_is_where_the_environment_says(root, tmp_path):
    home = tmp_path / "elsewhere"
    (home / f"{platform.machine()}-linux").mkdir(parents=True)
    (home / f"{platform.machine()}-linux/ascend_toolkit_install.info").write_text("version=8.5.0\n")
    told = collect_environment(root, {"ASCEND_HOME_PATH": str(home)})
    assert told.values("versions.txt")["cann"].text == "8.5.0"


def test_only_known_variables_are_recorded_and_no_secret(root):
    told = collect_environment(root, {
        "HCCL_CONNECT_TIMEOUT": "600", "ASCEND_DEVICE_ID": "0", "AWS_SECRET_ACCESS_KEY": "abc", "HF_TOKEN": "hf_secret",
        "MS_LICENSE_TOKEN": "s3cret", "HCCL_CONECT_TIMEOUT": "x", "PATH": "/bin", "GLOG_log_dir": "a\nb=c",
    })  # fmt: skip
    text = told.get("env.txt").text
    assert {name: value.text for name, value in told.values("env.txt").items()} == {
        "HCCL_CONNECT_TIMEOUT": "600", "ASCEND_DEVICE_ID": "0", "MS_LICENSE_TOKEN": NOT_RECORDED,
        "HCCL_CONECT_TIMEOUT": NOT_RECORDED, "GLOG_log_dir": r"a\nb=c"}  # fmt: skip
    everything = "".join(record.text for record in told.records.values())
    for secret in ("abc", "hf_secret", "s3cret"):
        assert secret not in text and (secret == "abc" or secret not in everything)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("NPU_SMI", "HCCN_TOOL"):
        monkeypatch.setattr(query, name, (name.lower().replace("_smi", "-smi"),))
        monkeypatch.setattr(collect, name, (name.lower().replace("_smi", "-smi"),))
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def put(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    put.folder = folder
    return put


def test_cards_have_the_numbers_that_the_map_tells(tools):
    """NPU ids of a container's table need not be those that hccn_tool takes."""
    table, chips = "npu-smi_info.txt", "NPU ID  Chip ID  Chip Logic ID  Chip Name"
    text = info_a2((4, 5))
    tools("hccn_tool", f'echo "$2" >> {tools.folder}/calls; echo "link status: UP"')
    for told, wanted in ((f"{chips}\n4  0  0  Ascend 910B3\n4  1  -  Mcu\n5  0  1  Ascend 910B3\n", {0, 1}),
                         ("no map at all\n", {4, 5})):  # fmt: skip
        records = {table: Record(table, "npu-smi info", text),
                   "npu-smi_map.txt": Record("npu-smi_map.txt", "npu-smi info -m", told)}  # fmt: skip
        (tools.folder / "calls").unlink(missing_ok=True)
        collect_links(Recording(host="here", live=True, records=records))
        assert {int(line) for line in (tools.folder / "calls").read_text().split()} == wanted


def test_devices_and_links_are_asked_card_by_card(tools):
    (tools.folder / "table").write_text(info_a3((0, 1)))
    tools("npu-smi", f'case "$*" in info) cat {tools.folder}/table;; *ecc*) echo "This device does not support it";; '
          '*) echo "Health Status : OK";; esac')  # fmt: skip
    tools("hccn_tool", f'echo "$*" >> {tools.folder}/calls\ncase "$*" in *-link\\ *) echo "link status: UP";; '
          '*) echo "The command is not supported on this product.";; esac')  # fmt: skip
    asked = []
    devices = collect_devices(asked.append)
    assert set(devices.records) == {"npu-smi_info.txt", "npu-smi_map.txt"} | {
        f"npu-smi_{kind}_{card}.txt" for kind in ("health", "ecc", "board", "temp") for card in (0, 1)}  # fmt: skip
    assert asked[0] == "npu-smi info" and "npu-smi info -t health -i 1" in asked
    links = collect_links(devices)
    assert {number for number, _ in links.numbered("hccn_link")} == {0, 1, 2, 3}, "physical ids of the dies"
    calls = (tools.folder / "calls").read_text().splitlines()
    assert "-i 3 -tls -g" in calls and len(calls) == 4 * len(collect.HCCN_GETS)
    assert set(together(devices, links).records) == set(devices.records) | set(links.records)


def test_a_tool_that_hangs_is_not_asked_a_hundred_times(tools, monkeypatch):
    monkeypatch.setattr(query.run_tool, "__kwdefaults__", query.run_tool.__kwdefaults__ | {"timeout_s": 0.3})
    monkeypatch.setattr(query.npu_smi, "__kwdefaults__", {"timeout_s": 0.3})
    monkeypatch.setattr(query.hccn_tool, "__kwdefaults__", {"timeout_s": 0.3, "wait_s": 0.0})
    (tools.folder / "table").write_text(info_a3(range(8)))
    hang = f'echo "$*" >> {tools.folder}/calls; exec sleep 60'
    tools("npu-smi", f'case "$*" in info) cat {tools.folder}/table;; "info -m") echo;; *) {hang};; esac')
    tools("hccn_tool", hang)
    devices = collect_devices()
    assert set(devices.records) == {"npu-smi_info.txt", "npu-smi_map.txt", "npu-smi_health_0.txt",
                                    "npu-smi_health_1.txt"}  # fmt: skip
    assert "did not answer" in devices.records["npu-smi_health_1.txt"].text
    links = collect_links(devices)
    assert list(links.records) == ["hccn_link_0.txt", "hccn_link_1.txt"]
    assert len((tools.folder / "calls").read_text().splitlines()) == 4


def test_without_tools_nothing_is_asked(tools):
    assert collect_devices().records == {} and collect_links(collect_devices()).records == {}


def test_what_npu_smi_refuses_is_recorded(tools):
    tools("npu-smi", "echo 'dcmi module initialize failed. ret is -8005'; exit 251")
    told = collect_devices()
    assert list(told.records) == ["npu-smi_info.txt"] and "-8005" in told.get("npu-smi_info.txt").text
    assert collect_links(told).records == {}
