"""Answers of hccn_tool, one test a query: what is read, what the tool refuses, what is no answer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.devices import hccn
from msparallel.devices.hccn import HccnRefusal
from msparallel.devices.tool_text import DeviceUnavailable
from msparallel.errors import RecipeError, UserError

pytestmark = pytest.mark.pure
QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}
PARSERS = {
    "ip": lambda text, name: hccn.parse_ip(text, name, 0), "link": hccn.parse_link, "link_stat": hccn.parse_link_stat,
    "net_health": hccn.parse_net_health, "tls": hccn.parse_tls, "fec": hccn.parse_fec, "gateway": hccn.parse_gateway,
    "stat": hccn.parse_stat, "optical": hccn.parse_optical, "pfc": hccn.parse_pfc, "netdetect": hccn.parse_netdetect,
    "ping": hccn.parse_ping,
}  # fmt: skip

PING = """device 0 PING 192.0.2.17
recv seq=0,time=0.114000ms
recv time out seq=1
recv seq=2,time=0.063000ms
3 packets transmitted, 2 received, 33.33% packet loss
"""
LINK_STAT = """[devid 3]current time        : Wed Aug  2 03:09:26 2023
[devid 3]link up count       : 2
[devid 3]link change records :
[devid 3]    Tue Aug  1 14:43:40 2023    LINK UP
[devid 3]    Tue Aug  1 14:43:26 2023    LINK DOWN
[devid 3]    Tue Aug  1 14:40:02 2023    LINK UP
"""
TLS = """dev_id:0, tls switch[0](0:disable, 1:enable), tls preconfigured[1](0:non-preset, 1:preset), tls alarm time \
threshold[60]days
dev_id:0, [pub cert] info:
         subject[/C=CN/O=xxx/CN=www.example.com]
         tls expiration status[1](0:normal, 1:near expiration, 2:has expired)
device 1, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days
"""
OPTICAL = """optical info:
present              : present
temperature          : 47 C
Rx Los Flag          : 0x0
"""


def test_addresses_are_read_with_the_rank_tables_reader():
    assert hccn.parse_ip("ipaddr:192.0.2.10\nnetmask:255.255.255.0\n", "f", 7) == ("192.0.2.10",)
    assert hccn.parse_ip("\n[devid 7]ipaddr:192.0.2.10\n[devid 7]netmask:255.255.255.0\n", "f", 7) == ("192.0.2.10",)
    assert hccn.parse_ip("ipaddr:2001:db8::10\n", "f", 7) == ("2001:db8::10",)
    assert hccn.parse_ip("\n", "f", 7) == ()
    with pytest.raises(RecipeError, match=r"f:2  hccn: 192.0.2.999"):
        hccn.parse_ip("\nipaddr:192.0.2.999\n", "f", 0)
    with pytest.raises(HccnRefusal) as caught:
        hccn.parse_ip("hccn_tool is busy, please try again.\n", "f", 0)
    assert caught.value.busy


def test_link():
    assert hccn.parse_link("link status: UP\n", "f") is True
    assert hccn.parse_link("[device 2]link status:DOWN\n", "f") is False
    with pytest.raises(UserError, match="already: one device"):
        hccn.parse_link("link status: UP\nlink status: DOWN\n", "f")
    with pytest.raises(UserError, match="Expected is 'link status: UP'"):
        hccn.parse_link("net health status: Success\n", "f")


@pytest.mark.parametrize("status", hccn.HEALTH)
def test_every_health_of_a_network(status):
    assert hccn.parse_net_health(f"net health status: {status}\n", "f") == status


def test_another_health_is_refused():
    with pytest.raises(UserError, match=r"f:1  Splendid\n.*one of Success, Socket failed"):
        hccn.parse_net_health("net health status: Splendid\n", "f")


def test_link_stat_counts_downs():
    told = hccn.parse_link_stat(LINK_STAT, "f")
    assert (told.up_count, told.downs, told.now) == (2, 1, "Wed Aug  2 03:09:26 2023")
    assert told == hccn.parse_link_stat(LINK_STAT.replace("[devid 3]", "[device 3]"), "f")
    assert told == hccn.parse_link_stat(LINK_STAT.replace("[devid 3]", ""), "f")
    with pytest.raises(UserError, match=r"f:4  yesterday\n.*LINK UP or LINK DOWN"):
        hccn.parse_link_stat(LINK_STAT.replace("    Tue Aug  1 14:43:40 2023    LINK UP", "yesterday"), "f")


def test_three_forms_of_tls():
    first, second = hccn.parse_tls(TLS, "f")
    assert (first.device, first.enabled, first.preconfigured, first.alarm_days) == (0, False, True, 60)
    assert first.expiring and not first.expired
    assert (second.device, second.enabled, second.preconfigured, second.line) == (1, True, None, 5)
    assert hccn.parse_tls(TLS.replace("status[1]", "status[2]"), "f")[0].expired
    with pytest.raises(UserError, match=r"\[0\] \(off\) or \[1\]"):
        hccn.parse_tls(TLS.replace("switch[1]", "switch[7]"), "f")


def test_fec_gateway_netdetect():
    assert hccn.parse_fec("fec mode: rs FEC mode\n", "f") == "rs FEC mode"
    assert hccn.parse_gateway("default gateway:192.0.2.1, Iface:eth0\n", "f") == ("192.0.2.1", "eth0")
    assert hccn.parse_gateway("", "f") is None
    with pytest.raises(UserError, match="no address"):
        hccn.parse_gateway("default gateway:nowhere, Iface:eth0\n", "f")
    assert hccn.parse_netdetect("netdetect address: 192.0.2.1\n", "f") == "192.0.2.1"
    assert hccn.parse_netdetect("netdetect address: 0.0.0.0\n", "f") is None


def test_counters():
    assert hccn.parse_stat("packet statistics:\nroce_rx_err_pkt_num:13\nroce_tx_err_pkt_num : 0\n", "f") == {
        "roce_rx_err_pkt_num": 13, "roce_tx_err_pkt_num": 0}  # fmt: skip
    with pytest.raises(UserError, match=r"f:2  roce_rx_err_pkt_num:many\n"):
        hccn.parse_stat("packet statistics:\nroce_rx_err_pkt_num:many\n", "f")


def test_optical_module():
    told = hccn.parse_optical(OPTICAL, "f")
    assert told.present and told.values["Rx Los Flag"] == "0x0"
    assert not hccn.parse_optical(OPTICAL.replace(": present", ": not present"), "f").present
    with pytest.raises(UserError, match="Expected is 'optical info:'"):
        hccn.parse_optical("temperature : 47 C\n", "f")


def test_two_forms_of_pfc():
    four = (False,) * 4 + (True,) + (False,) * 3
    told = "PFC configuration:\npriority   0 1 2 3 4 5 6 7\nenabled    0 0 0 0 1 0 0 0\n"
    assert hccn.parse_pfc(told, "f") == four
    assert hccn.parse_pfc("pfc bitmap 0,0,0,0,1,0,0,0\n", "f") == four
    with pytest.raises(UserError, match="7 priorities; there are eight"):
        hccn.parse_pfc("enabled 0 0 0 0 1 0 0\n", "f")
    with pytest.raises(HccnRefusal, match="no link"):
        hccn.parse_pfc("Link status is down\n", "f")


def test_ping():
    told = hccn.parse_ping(PING, "f")
    assert (told.target, told.sent, told.received, told.times_ms, told.lost) == (
        "192.0.2.17", 3, 2, (0.114, 0.063), True)  # fmt: skip
    with pytest.raises(UserError, match="More packets received"):
        hccn.parse_ping("1 packets transmitted, 2 received, 0.00% packet loss\n", "f")


@pytest.mark.parametrize("query", PARSERS)
@pytest.mark.parametrize(
    ("text", "busy"),
    [("hccn_tool is busy, please try again.\n", True), ("The command is not supported on this product.\n", False),
     ("permission denied: pls check this cmd run permission.\n", False)],
)  # fmt: skip
def test_what_the_tool_refuses_is_told(query, text, busy):
    with pytest.raises(HccnRefusal) as caught:
        PARSERS[query](text, "f")
    assert caught.value.busy == busy and str(caught.value).startswith("f:1")


@pytest.mark.parametrize("query", PARSERS)
def test_a_missing_tool_is_told(query):
    with pytest.raises(DeviceUnavailable, match="not installed"):
        PARSERS[query]("bash: hccn_tool: command not found\n", "f")


def test_every_sample_is_read_or_refused_with_a_reason(shared):
    read, refused = {}, {}
    for path in sorted((shared / "data/samples/hccn").glob("*.txt")):
        query = max((q for q in PARSERS if path.name.startswith(f"{q}_")), key=len)
        try:
            read[path.stem] = PARSERS[query](path.read_text(), path.name)
        except UserError as error:
            refused[path.stem] = str(error)
    assert not refused
    assert read["ip_g"] == ("198.51.100.10",) and read["ip_g_empty"] == ()
    assert read["net_health_g_socket_failed"] == "Socket failed"
    assert [t.enabled for t in read["tls_g_switch_mixed"]] == [False, True]
    assert read["stat_g_errors"]["roce_tx_err_pkt_num"] == 77
    assert read["link_stat_g"].downs == read["link_stat_g_alt_prefix"].downs == 1
    assert not read["optical_g_not_present"].present and read["pfc_g"][4]


def test_counters_as_a_table_are_no_answer_of_the_tool(shared):
    name = "npu_details_roce_counters.csv"
    with pytest.raises(UserError, match=f"{name}:1  timestamp,.*\n.*Expected is a counter"):
        hccn.parse_stat((shared / "data/samples/hccn" / name).read_text(), name)


SEEDS = [PING, LINK_STAT, TLS, OPTICAL, "link status: UP\n", "ipaddr:192.0.2.10\nnetmask:255.255.255.0\n",
         "default gateway:192.0.2.1, Iface:eth0\n", "packet statistics:\nroce_rx_err_pkt_num:13\n"]  # fmt: skip


def fuzz(data):
    text = data.draw(st.sampled_from(SEEDS))
    at = data.draw(st.integers(0, len(text)))
    text = data.draw(st.sampled_from([text[:at], text[at:], text[:at] + data.draw(st.text(max_size=20)) + text[at:]]))
    for parse in PARSERS.values():
        try:
            parse(text, "f")
        except UserError as error:
            assert str(error).startswith("f")


@given(st.data())
@settings(max_examples=150, **QUIET)
def test_mangled_answers_end_in_a_result_or_a_reason(data):
    fuzz(data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=2000, **QUIET)
def test_mangled_answers_end_in_a_result_or_a_reason_at_length(data):
    fuzz(data)
