"""Host lists, cards and tables of single hosts become the table that is meant, or an error says what is missing."""

from __future__ import annotations

import json

import pytest
from cluster.tables import a2, a3, a5, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.cluster.check_table import check
from msparallel.cluster.diff_table import difference
from msparallel.cluster.hosts import hccn_file, parse_hccn, parse_hosts
from msparallel.cluster.make_table import in_order_of, make_table, merge_tables
from msparallel.cluster.read_table import read_rank_table
from msparallel.errors import RecipeError, UserError

pytestmark = pytest.mark.pure
HOSTS = "# the cluster\nnode_0 192.0.2.1\n\nnode_1 192.0.2.2   # spare\n"


def conf(host: int, devices: int = 8) -> str:
    return "".join(f"address_{place}=198.51.{host}.{place + 1}\nnetmask_{place}=255.255.255.0\n"
                   for place in range(devices))  # fmt: skip


def capture(host: int, devices: int = 4, pod: int = 0) -> str:
    """What hccn_tool and npu-smi print, device by device."""
    return "".join(
        f"device {place}\nipaddr:198.51.{host}.{place + 1}\nnetmask:255.255.255.0\n"
        f"        SDID                   : {host % 2 * devices + place}\n        Super Pod ID           : {pod}\n"
        for place in range(devices)
    )  # fmt: skip


def test_a_host_list_and_hccn_conf_make_the_table(tmp_path):
    made = make_table(parse_hosts(HOSTS, "hosts.txt"), [parse_hccn(conf(host), "c") for host in (0, 1)], "A2")
    assert made.to_json() == a2()
    assert check(made).problems == ()


def test_captures_with_super_pods_make_an_a3_table():
    hosts = parse_hosts("".join(f"node_{n} 192.0.2.{n + 1}\n" for n in range(4)), "hosts.txt")
    made = make_table(hosts, [parse_hccn(capture(n, pod=n // 2), "c") for n in range(4)], "A3")
    wanted = a3()
    for server in wanted["server_list"]:
        for device in server["device"]:
            for name in ("device_port", "backup_device_ip", "backup_device_port", "host_port"):
                del device[name]
    assert made.to_json() == wanted
    assert check(made, "A3").problems == ()


def test_super_pods_that_interleave_are_told():
    hosts = parse_hosts("".join(f"node_{n} super_pod={n % 2}\n" for n in range(4)), "hosts.txt")
    bare = [parse_hccn(capture(n, pod=9), "c") for n in range(4)]
    with pytest.raises(UserError, match="super_pod=0, c says 9"):
        make_table(hosts, bare, "A3")
    cards = [parse_hccn(capture(n // 2, pod=n % 2).replace(f"198.51.{n // 2}.", f"198.51.{n}."), "c") for n in range(4)]
    problems = check(make_table(hosts, cards, "A3"), "A3").problems
    assert {problem.rule for problem in problems} >= {"ranks_of_a_super_pod_are_contiguous"}


def test_devices_are_chosen_by_physical_number():
    hosts, cards = parse_hosts("a\n", "h"), [parse_hccn(conf(0), "c")]
    made = make_table(hosts, cards, "A2", (4, 5))
    assert [(device.rank_id, device.device_id) for _, device in made.devices()] == [(0, 4), (1, 5)]
    with pytest.raises(UserError, match=r"a has no device 8 in it; it tells of 0..7"):
        make_table(hosts, cards, "A2", (7, 8))


@pytest.mark.parametrize(("chip", "text", "words"), [
    ("A3", conf(0, 2), "no SDID for device 0..1; A3"),
    ("A3", "device 0\nipaddr:192.0.2.1\nSDID : 7\n", "Which super pod"),
    ("A5", conf(0, 2), "EIDs and ports, which no hccn.conf has"),
])  # fmt: skip
def test_what_a_chip_needs_and_the_file_does_not_tell(chip, text, words):
    with pytest.raises(UserError, match=words):
        make_table(parse_hosts("a\n", "h"), [parse_hccn(text, "c")], chip)


def test_a_card_without_address_is_not_left_out():
    cards = parse_hccn("device 0\nipaddr:192.0.2.1\ndevice 1\n\ndevice 2\nipaddr:192.0.2.3\naddress_3=\n", "c")
    assert cards.devices == [0, 1, 2, 3]
    other = parse_hccn(conf(1, 4), "c")
    problems = check(make_table(parse_hosts("a\nb\n", "h"), [cards, other], "A2")).problems
    assert [(problem.rule, problem.key) for problem in problems] == [
        ("device_ips_are_there", "server_list[0].device[1].device_ip"),
        ("device_ips_are_there", "server_list[0].device[3].device_ip"),
    ]


@pytest.mark.parametrize(("text", "line", "words"), [
    ("", None, "No host in it"),
    ("a\nb\na\n", 3, "stands on line 1"),
    ("../a\n", 1, "letters, digits"),
    ("-o\n", 1, "letters, digits"),
    ("a;reboot\n", 1, "letters, digits"),
    ("a 192.0.2.300\n", 1, "neither an address nor super_pod"),
    ("a pod=1\n", 1, "neither an address nor super_pod"),
    ("a super_pod=../x\n", 1, "neither an address nor super_pod"),
    ("n" * 65, 1, "at most 64"),
])  # fmt: skip
def test_host_lists_that_are_refused(text, line, words):
    with pytest.raises(RecipeError) as error:
        parse_hosts(text, "hosts.txt")
    assert error.value.problems[0].line == line
    assert words in error.value.problems[0].message


@pytest.mark.parametrize(("text", "line", "words"), [
    ("", None, "No address of a network card"),
    ("ipaddr:192.0.2.1\n", 1, "Put a line before it"),
    ("address_0=192.0.2\n", 1, "no address"),
    ("address_0=192.0.2.1\naddress_0=192.0.2.2\n", 2, "further up"),
    ("address_64=192.0.2.1\n", 1, "0..63"),
    ("device 0\nhccn_tool is busy, please try again\n", 2, "again"),
    ("device 0\nSuper Pod ID : 1\nSuper Pod ID : 2\n", 1, "one super pod"),
])  # fmt: skip
def test_card_files_that_are_refused(text, line, words):
    with pytest.raises(RecipeError) as error:
        parse_hccn(text, "c")
    assert error.value.problems[0].line == line
    assert words in error.value.problems[0].message


@pytest.mark.parametrize("text", [
    "address_3 = 192.0.2.7\n", "[devid 3]\nipaddr:192.0.2.7\n", "[device 3]: \nipaddr : 192.0.2.7\n",
    "[root@node ~]# hccn_tool -i 3 -ip -g\nipaddr:192.0.2.7\nnetmask:255.255.255.0\n",
    "$ /usr/local/Ascend/driver/tools/hccn_tool -i 3 -ip -g\r\nipaddr:192.0.2.7\r\n",
])  # fmt: skip
def test_forms_of_an_address(text):
    assert parse_hccn(text, "c").ipv4 == {3: "192.0.2.7"}


def test_ipv6():
    cards = parse_hccn("IPv6address_0=2001:db8::101\nIPv6netmask_0=112\n", "c")
    made = make_table(parse_hosts("a\n", "h"), [cards], "A2")
    assert next(made.devices())[1].device_ip == "2001:db8::101"


def test_the_file_of_a_host(tmp_path):
    with pytest.raises(RecipeError, match="looked for a.conf, a.txt, a/hccn.conf"):
        hccn_file(tmp_path, "a")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "hccn.conf").write_text(conf(0))
    assert hccn_file(tmp_path, "a").name == "hccn.conf"
    (tmp_path / "a.txt").write_text(conf(0))
    with pytest.raises(RecipeError, match="Leave one"):
        hccn_file(tmp_path, "a")


def single(tmp_path, document, number: int):
    """The table of one host of a larger one, with ranks from 0."""
    alone = {**document, "server_count": "1", "server_list": [document["server_list"][number]]}
    for place, device in enumerate(alone["server_list"][0]["device"]):
        device["rank_id"] = str(place)
    if "super_pod_list" in document:
        name = f"node_{number}"
        alone["super_pod_list"] = [{**pod, "server_list": [{"server_id": name}]} for pod in document["super_pod_list"]
                                   if {"server_id": name} in pod["server_list"]]  # fmt: skip
    return read_rank_table(write(tmp_path, alone, f"{number}.json"))


def test_all_that_the_hosts_files_do_not_tell_is_told_at_once():
    hosts = parse_hosts("a\nb super_pod=0\n", "hosts.txt")
    cards = [parse_hccn(conf(0, 2), name) for name in ("a.conf", "b.conf")]
    with pytest.raises(RecipeError) as error:
        make_table(hosts, cards, "A3")
    told = [(problem.file, problem.key, problem.rule) for problem in error.value.problems]
    assert told == [("a.conf", "a", "super_device_ids_are_told"), ("a.conf", "a", "super_pods_are_told"),
                    ("b.conf", "b", "super_device_ids_are_told")]  # fmt: skip
    assert "no SDID for device 0..1" in str(error.value)


@pytest.mark.parametrize("make", [a2, a3])
def test_merging_single_hosts_gives_the_whole(tmp_path, make):
    count = len(make()["server_list"])
    tables = [single(tmp_path, make(), number) for number in range(count)]
    assert merge_tables(tables).to_json() == make()
    turned = merge_tables(tables[::-1])
    assert [server.server_id for server in turned.servers] == [f"node_{n}" for n in reversed(range(count))]
    assert [device.rank_id for _, device in turned.devices()] == list(range(turned.size))
    hosts = parse_hosts("".join(f"node_{n}\n" for n in range(count)), "h")
    assert merge_tables(in_order_of(tables[::-1], hosts)).to_json() == make()


def test_merging_version_2(tmp_path):
    tables = [read_rank_table(write(tmp_path, {**a5(), "rank_count": 2, "rank_list": [
        {**rank, "rank_id": rank["rank_id"] % 2} for rank in a5()["rank_list"][at : at + 2]]}, f"{at}.json"))
        for at in (0, 2)]  # fmt: skip
    assert merge_tables(tables).to_json() == a5()


def test_what_is_wrong_in_a_merged_table_is_told_with_its_file(tmp_path):
    """Each entry's own file and line; both files where two collide. Every rule: problems of any rule have a file."""
    names = ["server_ids_are_unique", "device_ips_are_unique"]
    one, other = single(tmp_path, a2(), 0), single(tmp_path, a2(), 1)
    again = read_rank_table(write(tmp_path, json.loads((tmp_path / "0.json").read_text()), "copy.json"))
    problems = check(merge_tables([one, other, again])).problems
    assert {problem.rule for problem in problems} >= set(names)
    for problem in problems:
        assert problem.file == str(tmp_path / "copy.json") and problem.line, problem
        assert f"of {tmp_path}/0.json has the same" in problem.message
    document = json.loads((tmp_path / "1.json").read_text())
    document["server_list"][0]["device"][2]["device_ip"] = "198.51.0.999"
    wrong = read_rank_table(write(tmp_path, document, "wrong.json"))
    (problem,) = check(merge_tables([one, wrong])).problems
    assert problem.file == str(tmp_path / "wrong.json") and problem.line and problem.value == "198.51.0.999"
    ranks = [{**a5()["rank_list"][0], "rank_id": 0}]
    tables = [read_rank_table(write(tmp_path, {**a5(), "rank_count": 1, "rank_list": ranks}, name)) for name in "xy"]
    problems = check(merge_tables(tables)).problems
    assert problems and all(problem.file == str(tmp_path / "y") for problem in problems)
    assert f"of {tmp_path}/x has the same" in problems[0].message


def test_tables_that_are_not_merged(tmp_path):
    one, other = single(tmp_path, a2(), 0), single(tmp_path, a3(), 1)
    with pytest.raises(UserError, match="only tables of one version"):
        merge_tables([one, other])
    with pytest.raises(UserError, match="No table has the server b"):
        in_order_of([one], parse_hosts("b\n", "h"))
    with pytest.raises(UserError, match="Not in the host list: node_1"):
        in_order_of([one, other], parse_hosts("node_0\n", "h"))
    assert {problem.rule for problem in check(merge_tables([one, one])).problems} >= {"server_ids_are_unique"}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(st.sampled_from(conf(0, 2).split("\n") + capture(0, 2).split("\n")),
                          st.text(alphabet="address_0123=:.[] devichsSDIPuper\x00\u2028é", max_size=30)), max_size=12))
def test_any_text_is_read_or_refused(lines):
    text = "\n".join(lines)
    for parser in (parse_hccn, parse_hosts):
        try:
            parser(text, "f")
        except RecipeError as error:
            assert all(problem.message for problem in error.problems)


def test_difference(tmp_path):
    old = read_rank_table(write(tmp_path, a3()))
    new = a3()
    new["server_list"][1]["device"][2]["device_ip"] = "203.0.113.1"
    new["server_list"][0], new["server_list"][1] = new["server_list"][1], new["server_list"][0]
    for rank, device in enumerate(device for server in new["server_list"] for device in server["device"]):
        device["rank_id"] = str(rank)
    new["super_pod_list"][0]["super_pod_id"] = "7"
    new["server_list"][3]["device"].pop()
    new["server_list"][2] |= {"server_id": "node_7"}
    new["server_list"][3]["host_ip"] = "192.0.2.99"
    assert difference(old, read_rank_table(write(tmp_path, new, "new.json"))) == [
        "ranks: 16 -> 15",
        "- node_2: rank 8..11",
        "+ node_7: rank 8..11",
        "node_0 device 0..3: rank 0..3 -> 4..7",
        "node_1 device 0..3: rank 4..7 -> 0..3",
        "node_1 device 2: device_ip 198.51.1.3 -> 203.0.113.1",
        "- node_3 device 3",
        "node_3: host_ip 192.0.2.4 -> 192.0.2.99",
        "node_0: super pod 0 -> 7",
        "node_1: super pod 0 -> 7",
    ]


def test_difference_of_version_2(tmp_path):
    new = a5()
    new["rank_list"][3]["level_list"][1]["rank_addr_list"][0]["addr"] = "203.0.113.1"
    old, changed = read_rank_table(write(tmp_path, a5())), read_rank_table(write(tmp_path, new, "new.json"))
    assert difference(old, changed) == ["node_1 device 1: level 1 cluster, 198.51.1.2 -> cluster, 203.0.113.1"]
