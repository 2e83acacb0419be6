"""A node of eight 910B without a fault, as the files that `doctor --save` writes; tests change one thing at a time."""

from __future__ import annotations

from pathlib import Path

from devices.npu_smi_texts import ECC, info_a2

from msparallel.doctor.recording import Record, Recording

DEVICES = 8
_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             unlimited            unlimited            processes
Max open files            1048576              1048576              files
Max locked memory         unlimited            unlimited            bytes
"""
_MEMINFO = """\
MemTotal:       1583139112 kB
MemFree:        1203515504 kB
MemAvailable:   1423218588 kB
SwapTotal:              0 kB
SwapFree:               0 kB
HugePages_Total:        0
Hugepagesize:       2048 kB
"""
_DISK = """\
Filesystem 1024-blocks Used Available Capacity Mounted on
/dev/sda2 936305576 236305576 700000000 26% /
tmpfs 791569556 0 791569556 0% /dev/shm
"""
_CLOCK = """\
$ timedatectl show
Timezone=Asia/Shanghai
NTPSynchronized=yes
$ chronyc -n tracking
Reference ID    : C0000201 (192.0.2.1)
System time     : 0.000012345 seconds slow of NTP time
Leap status     : Normal
"""
_DEVICES = "container no\n" + "".join(f"present /dev/davinci{n}\n" for n in range(DEVICES)) + """\
present /dev/davinci_manager
present /dev/devmm_svm
present /dev/hisi_hdc
present /usr/local/Ascend/driver/lib64
present /usr/local/dcmi
present /etc/ascend_install.info
"""


def clean(name: str = "node_0", network: int = 10) -> dict[str, str]:
    """File -> text. `network`: last numbers of the device addresses begin here."""
    files = {
        "npu-smi_info.txt": info_a2(range(DEVICES), version="26.0.rc1", processes={}),
        "env.txt": "ASCEND_HOME_PATH=/usr/local/Ascend/cann-9.0.0\nHCCL_CONNECT_TIMEOUT=600\n",
        "versions.txt": "driver=26.0.rc1\ndriver_needs_firmware=[7.0.0,8.9.9]\nfirmware=8.0.0.1.231\ncann=9.0.0\n"
        "mindspore=2.9.0\nmindformers=1.9.0\nnumpy=1.26.4\npython=3.11.4\nmachine=aarch64\n",
        "hostname.txt": f"name={name.replace('_', '-')}\ntime_zone=+0800\nresolves=198.51.100.{network}\n"
        f"addresses=127.0.0.1,198.51.100.{network},2001:db8::{network}\ninterfaces=eth0,eth1,lo\n",
        "meminfo.txt": _MEMINFO,
        "limits.txt": _LIMITS,
        "disk.txt": _DISK,
        "sysctl.txt": "net.netfilter.nf_conntrack_count = 312\nnet.netfilter.nf_conntrack_max = 1048576\n"
        "net.ipv4.ip_local_port_range = 32768\t60999\nnet.ipv4.ip_local_reserved_ports = 60000-60015\n",
        "clock.txt": _CLOCK,
        "firewall.txt": "$ systemctl is-active firewalld\ninactive\n$ iptables -S\n-P INPUT ACCEPT\n-P FORWARD "
                        "ACCEPT\n",
        "ports.txt": "# TCP ports that something listens on\n22\n111\n",
        "devices.txt": _DEVICES,
        "hccn.conf": "".join(f"address_{n}=192.0.2.{network + n}\nnetmask_{n}=255.255.255.0\n" for n in range(DEVICES)),
    }  # fmt: skip
    for device in range(DEVICES):
        files |= {
            f"npu-smi_health_{device}.txt": "Health Status : OK\nError Code : NA\nError Information : NA\n",
            f"npu-smi_ecc_{device}.txt": ECC.format(double=0, isolated=0).replace(
                "HBM Single Bit Error Count               : 4", "HBM Single Bit Error Count               : 0"),
            f"npu-smi_board_{device}.txt": f"NPU ID : {device}\nSoftware Version : 26.0.rc1\nCompatibility : OK\n",
            f"hccn_link_{device}.txt": "link status: UP\n",
            f"hccn_net_health_{device}.txt": "net health status: Success\n",
            f"hccn_ip_{device}.txt": f"ipaddr:192.0.2.{network + device}\nnetmask:255.255.255.0\n",
            f"hccn_gateway_{device}.txt": "default gateway:192.0.2.1, Iface:eth0\n",
            f"hccn_tls_{device}.txt": f"dev_id:{device}, tls switch[0](0:disable, 1:enable), tls alarm time "
            "threshold[60]days\n",
            f"hccn_pfc_{device}.txt": "PFC configuration:\npriority   0 1 2 3 4 5 6 7\nenabled    0 0 0 0 1 0 0 0\n",
            f"hccn_link_stat_{device}.txt": f"[devid {device}]current time        : Wed Aug  2 03:09:26 2023\n"
            f"[devid {device}]link up count       : 1\n[devid {device}]link change records :\n"
            f"[devid {device}]    Tue Aug  1 14:43:40 2023    LINK UP\n",
            f"hccn_stat_{device}.txt": "packet statistics:\nroce_rx_err_pkt_num:0\nroce_tx_err_pkt_num:0\n",
            f"hccn_fec_{device}.txt": "fec mode: rs FEC mode\n",
            f"hccn_optical_{device}.txt": "optical info:\npresent              : present\nRx Los Flag : 0x0\n",
        }  # fmt: skip
    return files


def recording(files: dict[str, str], host: str = "node_0") -> Recording:
    """As read from a folder of that name."""
    return Recording(host=host, records={name: Record(name, f"{host}/{name}", text) for name, text in files.items()})


def changed(**changes: str | None) -> Recording:
    """The clean node with other texts: `env__txt="..."` for env.txt, None to leave one out."""
    files = clean()
    for key, text in changes.items():
        name = key.replace("__", ".").replace("npu_smi", "npu-smi")
        if text is None:
            files.pop(name, None)
        else:
            files[name] = text
    return recording(files)


def write(folder: Path, files: dict[str, str]) -> Path:
    """A folder with these files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder
