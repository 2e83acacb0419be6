"""Rules about devices and their network cards: a clean node is silent; each fault is told with its lines."""

from __future__ import annotations

import pytest
from devices.npu_smi_texts import ECC, INFO_310P, INFO_950, info_a2, info_a3
from doctor.node import DEVICES, changed, clean, recording
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.doctor.device_rules import check_devices, device_table
from msparallel.doctor.link_rules import check_links
from msparallel.doctor.recording import Record, Recording

pytestmark = pytest.mark.pure
INFO = clean()["npu-smi_info.txt"]


def devices(**changes: str | None):
    return check_devices(changed(**changes))


def links(files: dict[str, str | None] | None = None, **changes: str | None):
    told = {**clean(), **(files or {}), **{f"hccn_{name}.txt": text for name, text in changes.items()}}
    return check_links(recording({name: text for name, text in told.items() if text is not None})).findings


def seen(found) -> list[tuple[str, str]]:
    return [(one.rule, one.severity) for one in found]


def test_a_clean_node_is_silent():
    checked = devices()
    assert checked.findings == () and checked.impossible is None and len(checked.table.devices) == DEVICES
    assert links() == ()


@pytest.mark.parametrize(
    ("health", "severity"), [("Warning", "warning"), ("Alarm", "error"), ("Critical", "error"), ("UNKNOWN", "error")]
)
def test_health_is_told_with_the_fault_code(health, severity):
    text = INFO.replace("OK  ", f"{health}  ", 1)
    found = devices(npu_smi_info__txt=text, npu_smi_health_0__txt=f"Health Status : {health}\nError Code : "
                                                                  "0x80E01801\n")
    assert seen(found.findings) == [("device_health", severity)]
    assert "0x80E01801" in found.findings[0].root_cause and "NPU 0" in found.findings[0].root_cause
    assert "fan and air duct" in found.findings[0].remedy and found.findings[0].evidence[0].line == 7


def test_health_of_a_device_alone():
    found = devices(npu_smi_health_3__txt="Health Status : Alarm\nError Code : 0x80E01801\n")
    assert seen(found.findings) == [("device_health", "error")] and "NPU 3" in found.findings[0].root_cause


@pytest.mark.parametrize(("temperature", "expected"), [("60", []), ("80", [("device_warm", "warning")]),
                                                       ("95", [("device_hot", "error")])])  # fmt: skip
def test_temperature_means_fan_and_air_duct(temperature, expected):
    found = devices(npu_smi_info__txt=info_a2(range(8), temperature=temperature, processes={}))
    assert seen(found.findings) == expected
    assert not expected or "fan and air duct" in found.findings[0].remedy


def test_processes_and_memory_without_a_process():
    found = devices(npu_smi_info__txt=info_a2(range(8), processes={2: [(4711, "python", 28170)]}))
    assert seen(found.findings) == [("device_occupied", "warning")] and "4711" in found.findings[0].root_cause
    found = devices(npu_smi_info__txt=info_a2(range(8), hbm="31859/ 65536", processes={}))
    assert seen(found.findings) == [("device_memory_held", "warning")]
    assert devices(npu_smi_info__txt=info_a2(range(8), hbm="31859/ 65536")).findings == (), "no process table, no claim"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ECC.format(double=2, isolated=0), [("ecc_double", "error"), ("ecc_single", "info")]),
        (ECC.format(double=0, isolated=3), [("ecc_isolated", "warning"), ("ecc_single", "info")]),
        ("This device does not support querying ecc.\n", []),
        ("HBM Double Bit Error Count : many\n", [("record_unreadable", "error")]),
        ("garbage\n", [("record_unreadable", "error")]),
    ],
)
def test_ecc(text, expected):
    found = devices(npu_smi_ecc_1__txt=text).findings
    assert seen(found) == expected
    assert all(one.evidence[0].file == "node_0/npu-smi_ecc_1.txt" for one in found)


def test_board_says_that_driver_and_firmware_do_not_go_together():
    found = devices(npu_smi_board_0__txt="NPU ID : 0\nSoftware Version : 25.5.0\nFirmware Version : "
                                         "6.4\nCompatibility : NOK\n")
    assert seen(found.findings) == [("driver_firmware", "error")] and found.findings[0].evidence[0].line == 4


def test_device_files_of_a_container():
    here = clean()["devices.txt"].replace("container no", "container yes")
    text = here.replace("present /dev/hisi_hdc", "missing /dev/hisi_hdc")
    found = devices(devices__txt=text).findings
    assert seen(found) == [("device_file_missing", "error")] and "--device=/dev/hisi_hdc" in found[0].remedy
    text = clean()["devices.txt"].replace("present /usr/local/dcmi", "missing /usr/local/dcmi")
    assert seen(devices(devices__txt=text).findings) == [("device_file_missing", "warning")]


def test_visible_devices_beyond_what_is_there():
    found = devices(env__txt="ASCEND_RT_VISIBLE_DEVICES=4,7,8\n").findings
    assert seen(found) == [("visible_devices", "error")] and "device 8" in found[0].root_cause


def test_ids_that_do_not_begin_at_0():
    found = devices(npu_smi_info__txt=info_a2((3, 5), processes={})).findings
    assert seen(found) == [("npu_ids", "info")] and "npu-smi info -m" in found[0].remedy


OTHERS = [info_a3(range(8)), INFO_310P.replace("2944", "   0"), INFO_950.replace("| 3 ", "| 1 ")]


@pytest.mark.parametrize("text", OTHERS, ids=["A3", "310P", "950"])
def test_other_chips(text):
    found = devices(npu_smi_info__txt=text)
    assert found.table is not None
    assert {one.rule for one in found.findings} <= {"device_health", "device_memory_held", "device_occupied"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("dcmi module initialize failed. ret is -8005\n", "npu_not_initialised"),
        ("dcmi model initialized failed, because the device is used. ret is -8020\n", "npu_in_use"),
        ("npu get board type failed. ret is -9005\n", "npu_smi_refuses"),
        ("There is no NPU card on this server.\n", "npu_smi_refuses"),
        ("bash: npu-smi: command not found\n", "npu_smi_refuses"),
        ("garbage\n", "record_unreadable"),
    ],
)
def test_what_npu_smi_refuses_is_the_finding(text, rule):
    checked = devices(npu_smi_info__txt=text)
    assert seen(checked.findings) == [(rule, "error")] and checked.table is None
    assert checked.findings[0].evidence[0].file.endswith("npu-smi_info.txt")


def test_a_machine_without_npu_is_told_as_what_it_is():
    assert "has no NPU" in check_devices(Recording(host="laptop", live=True)).impossible
    none = Record("npu-smi_info.txt", "npu-smi info", "There is no NPU card on this server.\n")
    checked = check_devices(Recording(host="laptop", live=True, records={"npu-smi_info.txt": none}))
    assert checked.impossible == "there is no npu on this machine" and not checked.findings
    assert devices(npu_smi_info__txt=None, devices__txt=None).impossible == "npu-smi_info.txt is not among the files"
    assert device_table(Recording(host="x")) is None


def test_devices_without_npu_smi_and_without_driver():
    assert seen(devices(npu_smi_info__txt=None).findings) == [("npu_smi_missing", "error")]
    found = devices(npu_smi_info__txt=None, devices__txt="container yes\npci 0000:c1:00.0 19e5:d802\n").findings
    assert seen(found) == [("driver_not_loaded", "error")] and "--device=/dev/davinciN" in found[0].remedy


TLS_ON = "dev_id:3, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("link_3", "link status: DOWN\n", [("link_down", "error")]),
        ("net_health_3", "net health status: Fault\n", [("net_health", "warning")]),
        ("net_health_3", "net health status: Socket failed\n", [("net_health", "warning")]),
        ("net_health_3", "net health status: Init\n", [("net_health_not_probed", "info")]),
        ("tls_3", TLS_ON, [("tls_differs", "error")]),
        ("tls_3", TLS_ON + TLS_ON.replace("switch[1]", "switch[0]"), [("tls_differs", "error")]),
        ("ip_3", "\n", [("device_address_missing", "error")]),
        ("ip_3", "ipaddr:192.0.2.10\nnetmask:255.255.255.0\n",
         [("device_address_twice", "error"), ("hccn_conf_differs", "warning")]),
        ("gateway_3", "\n", [("gateway_missing", "warning")]),
        ("gateway_3", "default gateway:203.0.113.1, Iface:eth0\n", [("gateway_outside", "error")]),
        ("pfc_3", "PFC configuration:\npriority 0 1 2 3 4 5 6 7\nenabled 0 0 0 1 0 0 0 "
                  "0\n", [("pfc_differs", "error")]),
        ("fec_3", "fec mode: no FEC\n", [("fec_differs", "warning")]),
        ("ping_3", "3 packets transmitted, 1 received, 66.67% packet loss\n", [("ping_lost", "error")]),
        ("optical_3", "optical info:\npresent : not present\n", [("optical_missing", "warning")]),
        ("optical_3", "optical info:\npresent : present\nRx Los Flag : 0xff\n", [("optical_no_light", "error")]),
        ("stat_3", "packet statistics:\nroce_rx_err_pkt_num:13\n", [("link_errors", "warning")]),
        ("link_3", "hccn_tool is busy, please try again.\n", [("hccn_busy", "warning")]),
        ("pfc_3", "The command is not supported on this product.\n", []),
        ("link_3", "garbage\n", [("record_unreadable", "error")]),
        ("ip_3", "ipaddr:192.0.2.999\n", [("record_unreadable", "error")]),
    ],
)  # fmt: skip
def test_each_fault_of_a_link_is_told(name, text, expected):
    found = links(**{name: text})
    assert seen(found) == expected
    if expected:
        assert f"hccn_{name}.txt" in {line.file.rpartition("/")[2] for one in found for line in one.evidence}
        assert found[0].remedy and found[0].root_cause


def test_addresses_that_a_restart_would_change():
    conf = clean()["hccn.conf"]
    assert seen(links({"hccn.conf": conf.replace("192.0.2.13", "192.0.2.99")})) == [("hccn_conf_differs", "warning")]
    assert seen(links({"hccn.conf": conf.replace("address_3=192.0.2.13\n", "")})) == [("hccn_conf_differs", "warning")]
    assert seen(links({"hccn.conf": "address_0=192.0.2.999\n"})) == [("record_unreadable", "error")]
    assert links({"hccn.conf": None}) == ()


def test_a_link_that_flaps():
    line = "[devid 3]    Tue Aug  1 14:43:{:02} 2023    LINK {}\n"
    text = clean()["hccn_link_stat_3.txt"] + "".join(line.format(n, "DOWN" if n % 2 else "UP") for n in range(6))
    assert seen(links(link_stat_3=text)) == [("link_flaps", "warning")]


def test_flow_control_that_is_off_everywhere():
    off = {f"hccn_pfc_{n}.txt": "PFC configuration:\nenabled 0 0 0 0 0 0 0 0\n" for n in range(DEVICES)}
    assert seen(links(off)) == [("pfc_off", "warning")]


def test_an_expired_certificate_counts_where_tls_is_on():
    expired = "tls expiration status[2](0:normal, 1:near expiration, 2:has expired)\n"
    on = {f"hccn_tls_{n}.txt": TLS_ON.replace("3", str(n), 1) + expired for n in range(DEVICES)}
    assert {one.rule for one in links(on)} == {"tls_certificate"}
    assert links(tls_3=clean()["hccn_tls_3.txt"] + expired) == ()


def test_a_ping_that_came_back_outweighs_net_health():
    ping = "device 3 PING 192.0.2.30\n3 packets transmitted, 3 received, 0.00% packet loss\n"
    assert links(net_health_3="net health status: Fault\n", ping_3=ping) == ()


def test_the_words_for_tls_name_the_devices():
    found = links(tls_3=TLS_ON)[0]
    assert "on for device 3 and off for devices 0, 1, 2, 4, 5, 6, 7" in found.root_cause
    assert len(found.evidence) == 2


@given(st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_mangled_records_end_in_findings(data):
    files = clean()
    name = data.draw(st.sampled_from(sorted(name for name in files if name.startswith(("npu-smi", "hccn", "devices")))))
    at = data.draw(st.integers(0, len(files[name])))
    files[name] = files[name][:at] + data.draw(st.text(max_size=60)) + files[name][at + data.draw(st.integers(0, 30)) :]
    told = recording(files)
    for one in [*check_devices(told).findings, *check_links(told).findings]:
        one.to_json()
