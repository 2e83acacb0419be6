"""Every rule finds what it is for, and finds nothing in tables that are good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from cluster.tables import a2, a3, a5, group_list, write

from msparallel.cluster.check_table import ADVICE, RULES, Checked, check
from msparallel.cluster.read_table import read_rank_table

pytestmark = pytest.mark.pure
Change = Callable[[dict[str, Any]], Any]


def checked(tmp_path, document: dict[str, Any], chip: str | None = None, **options: bool) -> Checked:
    return check(read_rank_table(write(tmp_path, document)), chip, **options)


@pytest.mark.parametrize(("document", "chip"), [
    (a2(), "A2"), (a2(1, 1), "A2"), (a2(3, 5), "A2"), (a2(2, 4), "910A"), (a3(), "A3"), (a3(2, 16, 1), "A3"),
    (a5(), "A5"), (a5(1, 1), "A5"),
])  # fmt: skip
def test_good_tables_have_nothing(tmp_path, document, chip):
    for given in (chip, None):
        found = checked(tmp_path, document, given)
        assert (found.problems, found.advice) == ((), ())
        assert found.chip == (given or {"910A": "A2"}.get(chip, chip))


def device(table: dict[str, Any], server: int, place: int) -> dict[str, Any]:
    return table["server_list"][server]["device"][place]


def server(table: dict[str, Any], number: int) -> dict[str, Any]:
    return table["server_list"][number]


def level(table: dict[str, Any], rank: int, number: int) -> dict[str, Any]:
    return table["rank_list"][rank]["level_list"][number]


def address(table: dict[str, Any], rank: int) -> dict[str, Any]:
    return level(table, rank, 1)["rank_addr_list"][0]


def swapped(table: dict[str, Any], one: tuple[int, int], other: tuple[int, int]) -> None:
    left, right = device(table, *one), device(table, *other)
    left["rank_id"], right["rank_id"] = right["rank_id"], left["rank_id"]


CASES: list[tuple[str, dict[str, Any], str | None, Change, str]] = [
    ("status_is_completed", a2(), None, lambda t: t.update(status="initializing"), "--wait"),
    ("status_is_completed", a2(), None, lambda t: t.update(status="unknown"), "--wait"),
    ("status_is_completed", a2(), None, lambda t: t.update(status="done"), 'Write "completed"'),
    ("version_fits_chip", a2(), "A3", lambda t: None, "A3 takes version 1.2; another one ends in EI0014"),
    ("version_fits_chip", a2(), "A5", lambda t: None, "A5 takes version 2.0"),
    ("version_fits_chip", a2(), None, lambda t: t.update(version="1.1"), 'Write "1.0"'),
    ("version_fits_chip", a2(), None, lambda t: server(t, 0).update(hardware_type="800I-A3-64G"), "hardware_type"),
    ("version_fits_content", a2(), None, lambda t: device(t, 0, 0).update(super_device_id="5"), 'Write "1.2"'),
    ("version_fits_content", a2(), "A5", lambda t: t.update(version="2.0"), 'Write "1.0"'),
    ("version_fits_content", a5(), "A2", lambda t: t.update(version="1.0"), 'Write "2.0"'),
    ("count_fits_list", a2(), None, lambda t: t.update(server_count="3"), 'server_count says 3. Write "2"'),
    ("count_fits_list", a2(), None, lambda t: t.pop("server_count"), 'Write "2"'),
    ("count_fits_list", a2(), None, lambda t: t.update(server_list=[], server_count="0"), "at least one rank"),
    ("count_fits_list", a5(), None, lambda t: t.update(rank_count=5), "rank_count says 5. Write 4."),
    ("rank_ids_are_complete", a2(), None, lambda t: device(t, 1, 0).update(rank_id="7"), "Free is 8"),
    ("rank_ids_are_complete", a2(), None, lambda t: device(t, 1, 7).update(rank_id="16"), "0..15, without a gap"),
    ("rank_ids_are_complete", a5(), None, lambda t: t["rank_list"][3].update(rank_id=2), "Free is 3"),
    ("server_ids_are_unique", a2(), None, lambda t: server(t, 1).update(server_id="node_0"), "server_list[0]"),
    ("server_ids_are_short", a2(), None, lambda t: server(t, 1).update(server_id="n" * 65), "65 characters"),
    ("server_ids_are_short", a2(1, 1), None, lambda t: server(t, 0).update(server_id=" "), "node_0"),
    ("servers_have_devices", a2(2, 1), None, lambda t: server(t, 1).update(device=[]), "no device"),
    ("device_ids_are_unique", a2(), None, lambda t: device(t, 0, 0).update(device_id="1"), "Device 0 is free"),
    ("device_ids_are_physical", a2(), None, lambda t: device(t, 0, 7).update(device_id="8"), "0..7; 8 is beyond"),
    ("device_ids_are_physical", a3(), None, lambda t: device(t, 0, 3).update(device_id="16"), "0..15"),
    ("device_counts_are_legal", a2(1, 3), "910A", lambda t: None, "1, 2, 4 or 8 devices"),
    ("device_counts_are_legal", a2(1, 9), None, lambda t: None, "1 to 8 devices"),
    ("device_counts_are_equal", a2(), None, lambda t: server(t, 1)["device"].pop(), "7 devices here, 8 on"),
    ("devices_are_of_one_half", a2(1, 4), "910A", lambda t: device(t, 0, 3).update(device_id="4"), "0..3 or 4..7"),
    ("device_ips_are_there", a2(), None, lambda t: device(t, 1, 2).pop("device_ip"), "hccn_tool -i 2 -ip -s"),
    ("device_ips_are_there", a2(), None, lambda t: device(t, 1, 2).update(device_ip=""), "address_2"),
    ("device_ips_are_addresses", a2(1), None, lambda t: device(t, 0, 2).update(device_ip="-.-.-.-"), "placeholder"),
    ("device_ips_are_addresses", a2(1), None, lambda t: device(t, 0, 2).update(device_ip="192.0.2.300"), "192.0.2.10"),
    ("device_ips_are_addresses", a2(), None, lambda t: device(t, 0, 2).update(device_ip="127.0.0.1"), "no address"),
    ("device_ips_are_unique", a2(), None, lambda t: device(t, 1, 0).update(device_ip="198.51.0.1"), "device[0] has "
    "the"),
    ("device_ips_are_of_one_family", a2(), None, lambda t: device(t, 1, 0).update(device_ip="2001:db8::1"), "IPv6 "
    "here"),
    ("backup_ips_are_of_the_same_npu", a3(), None, lambda t: device(t, 0, 0).update(backup_device_ip="198.51.0.3"),
     "device 1, and only its"),
    ("host_ips_are_addresses", a2(), None, lambda t: server(t, 0).update(host_ip="node"), "192.0.2.1"),
    ("ports_are_legal", a3(), None, lambda t: device(t, 0, 0).update(device_port="65536"), "1 to 65535"),
    ("host_ports_are_unique", a3(), None, lambda t: device(t, 0, 1).update(host_port="16665"), "each device has its "
    "own"),
    ("backup_ports_differ", a3(), None, lambda t: device(t, 0, 0).update(backup_device_port="16666"), "16667"),
    ("ranks_of_a_server_are_contiguous", a2(), None, lambda t: swapped(t, (0, 7), (1, 0)), "0..6, 8"),
    ("super_device_ids_are_there", a3(), None, lambda t: device(t, 0, 1).pop("super_device_id"), "spod-info"),
    ("super_device_ids_are_unique", a3(), None, lambda t: device(t, 1, 0).update(super_device_id="0"), "super pod '0'"),
    ("super_pods_cover_servers", a3(), None, lambda t: t.pop("super_pod_list"), '"super_pod_id": "0"'),
    ("super_pods_cover_servers", a3(), None, lambda t: t["super_pod_list"][1]["server_list"].pop(), "in no super pod"),
    ("super_pods_cover_servers", a3(), None, lambda t: t["super_pod_list"][1]["server_list"].append(
        {"server_id": "node_9"}), "'node_9', which is not in server_list"),
    ("super_pods_cover_servers", a3(), None, lambda t: t["super_pod_list"][1]["server_list"].append(
        {"server_id": "node_0"}), "already"),
    ("super_pods_cover_servers", a3(), None, lambda t: t["super_pod_list"][1].update(super_pod_id="0"), "its own"),
    ("ranks_of_a_super_pod_are_contiguous", a3(), None, lambda t: [
        t["super_pod_list"][0]["server_list"].__setitem__(1, {"server_id": "node_2"}),
        t["super_pod_list"][1]["server_list"].__setitem__(0, {"server_id": "node_1"}),
        [item.update(super_device_id=str(int(item["super_device_id"]) + 100)) for item in server(t, 2)["device"]],
        [item.update(super_device_id=str(int(item["super_device_id"]) + 100)) for item in server(t, 1)["device"]],
    ], "0..3, 8..11"),
    ("clusters_cover_servers", a2(), None, lambda t: t.update(
        cluster_list=[{"cluster_id": "c0", "server_list": [{"server_id": "node_0"}]}]), "in no cluster"),
    ("local_ids_are_unique", a5(), None, lambda t: t["rank_list"][1].update(local_id=0), "'node_0'"),
    ("ids_are_in_range", a5(), None, lambda t: t["rank_list"][1].update(device_id=65), "0 to 63"),
    ("ids_are_in_range", a5(), None, lambda t: t["rank_list"][1].update(local_id=64), "replaced_local_id"),
    ("levels_ascend", a5(), None, lambda t: t["rank_list"][1]["level_list"].reverse(), "ascends"),
    ("levels_ascend", a5(), None, lambda t: t["rank_list"][1].update(level_list=[]), "1 to 8 levels"),
    ("level_0_is_described", a5(), None, lambda t: level(t, 0, 0).update(net_type="CLOS"), "TOPO_FILE_DESC"),
    ("addresses_fit_their_type", a5(), None, lambda t: address(t, 0).update(addr="::1"), "192.0.2.10"),
    ("addresses_fit_their_type", a5(), None, lambda t: address(t, 0).update(addr_type="MAC"), "EID"),
    ("address_counts_are_equal", a5(), None, lambda t: level(t, 3, 1)["rank_addr_list"].append(
        address(t, 2)), "2 addresses here, 1 at"),
    ("addresses_have_ports", a5(), None, lambda t: address(t, 0).update(ports=["5"]), '"0/1"'),
    ("addresses_have_ports", a5(), None, lambda t: address(t, 0).pop("ports"), "1 to 16"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "document", "chip", "change", "words"), CASES)
def test_a_rule_finds_what_it_is_for(tmp_path, rule, document, chip, change, words):
    change(document)
    found = [problem for problem in checked(tmp_path, document, chip).problems if problem.rule == rule]
    assert found, [str(problem) for problem in checked(tmp_path, document, chip).problems]
    problem = found[0]
    assert words in problem.message
    assert problem.line is not None and problem.file.endswith("hccl.json")
    others = {item.rule for item in checked(tmp_path, document, chip).problems} - {rule}
    assert others <= ALONG.get(rule, set())


ALONG = {
    "version_fits_content": {"version_fits_chip"},
    "version_fits_chip": {"version_fits_content", "device_ids_are_physical"},
    "device_ids_are_physical": {"backup_ips_are_of_the_same_npu"},
    "device_counts_are_legal": {"device_ids_are_physical"},
    "servers_have_devices": {"device_counts_are_equal"},
    "server_ids_are_unique": {"super_device_ids_are_unique"},
    "super_pods_cover_servers": {"super_device_ids_are_unique", "ranks_of_a_super_pod_are_contiguous"},
}
"""What one mistake breaks beside the rule that is looked for."""


def test_every_rule_has_a_case():
    tested = {rule for rule, *_ in CASES} | {"file_is_regular"}
    assert tested == {rule.__name__ for rule in RULES}
    assert all(rule.__module__.startswith("msparallel.cluster") for rule in (*RULES, *ADVICE))


def test_a_link_is_no_rank_table_file(tmp_path):
    path = write(tmp_path, a2())
    link = tmp_path / "link.json"
    link.symlink_to(path)
    assert [problem.rule for problem in check(read_rank_table(link)).problems] == ["file_is_regular"]


def test_a_link_of_a_config_map_is_checked_with_a_word_about_it(tmp_path):
    (tmp_path / "..data").mkdir()
    write(tmp_path / "..data", a2())
    (tmp_path / "hccl.json").symlink_to("..data/hccl.json")
    checked = check(read_rank_table(tmp_path / "hccl.json"))
    assert not checked.problems
    assert [item.rule for item in checked.advice] == ["file_is_copied_from_its_config_map"]


def test_one_server_needs_no_addresses_unless_it_uses_roce(tmp_path):
    table = a2(1)
    for item in server(table, 0)["device"]:
        del item["device_ip"]
    assert not checked(tmp_path, table).problems
    problems = checked(tmp_path, table, roce=True).problems
    assert {problem.rule for problem in problems} == {"device_ips_are_there"}
    assert len(problems) == 5 and "The same is true of 3 more" in problems[-1].message


def test_one_super_pod_needs_no_addresses_and_two_do(tmp_path):
    for pods, wanted in ((1, set()), (2, {"device_ips_are_there"})):
        table = a3(2, 4, pods)
        for number in (0, 1):
            for item in server(table, number)["device"]:
                for name in ("device_ip", "backup_device_ip"):
                    del item[name]
        assert {problem.rule for problem in checked(tmp_path, table).problems} == wanted


@pytest.mark.parametrize(("rule", "document", "change", "words"), [
    ("servers_are_in_dictionary_order", a2(), lambda t: server(t, 0).update(server_id="node_9"), "'node_1' comes "
    "before"),
    ("form_is_current", group_list(), lambda t: None, "template 2"),
    ("ports_are_not_reserved", a3(), lambda t: device(t, 0, 0).update(device_port="80"), "16666"),
    ("dies_are_in_pairs", a3(2, 1, 1), lambda t: [item.pop("backup_device_ip") for number in (0, 1)
                                                  for item in server(t, number)["device"]], "2k"),
])  # fmt: skip
def test_advice(tmp_path, rule, document, change, words):
    change(document)
    found = checked(tmp_path, document)
    assert not found.problems
    assert [item.rule for item in found.advice][:1] == [rule]
    assert words in found.advice[0].message
