"""Files of any content end in a table or in a problem with file and line."""

from __future__ import annotations

import json
import os

import pytest
from cluster.tables import a2, a3, a5, group_list, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.cluster.check_table import check
from msparallel.cluster.diff_table import difference
from msparallel.cluster.json_lines import MOST_BYTES, parse, read_bytes
from msparallel.cluster.read_table import plain, read_rank_table, table_of
from msparallel.errors import RecipeError, printable

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("document", [a2(), a3(), a5()], ids=["1.0", "1.2", "2.0"])
def test_a_table_is_written_as_it_was_read(tmp_path, document):
    table = read_rank_table(write(tmp_path, document))
    assert table.to_json() == document
    assert table.size == (16 if table.version != "2.0" else 4)
    again = read_rank_table(write(tmp_path, table.to_json(), "again.json"))
    assert difference(table, again) == []


def test_the_old_form_is_read_server_by_server(tmp_path):
    table = read_rank_table(write(tmp_path, group_list()))
    assert (table.form, table.size, table.version) == ("groups", 2, None)
    assert [(device.rank_id, device.device_id) for _, device in table.devices()] == [(0, 0), (1, 1)]


def test_lines_are_those_of_the_file(tmp_path):
    path = write(tmp_path, a2(1, 2))
    lines = path.read_text().splitlines()
    device = read_rank_table(path).servers[0].devices[1]
    assert '"device_id": "1"' in lines[device.place.lines["device_id"] - 1]
    assert device.place.key == "server_list[0].device[1]"


@pytest.mark.parametrize(("text", "line", "words"), [
    ("", 1, "the file is empty"),
    ('{\n "status": "completed", // ready\n}', 2, "a comment (// ready)"),
    ('{\n "a": "1"\n "b": "2"\n}', 3, "expected ',' or '}', found \"b\""),
    ('{\n "a": "1",\n}', 3, "a comma before '}'"),
    ('{\n "a": ["1",]\n}', 2, "a comma before ']'"),
    ('{\n "a": "1",\n "a": "2"\n}', 3, "stands twice in one object (first on line 2)"),
    ('{"a": NaN}', 1, "expected a value"),
    ('{"a": 1.5}', 1, "expected a value"),
    ('{"a": 12345678901234567890}', 1, "18 digits"),
    ("{'a': 1}", 1, "a key in double quotes"),
    ('{"a" 1}', 1, "':' after the key a"),
    ('{"a": "b', 1, "broken"),
    ('{"a": "\n"}', 1, "broken"),
    ("[" * 40, 1, "nested deeper than 16 levels"),
    ('{"a": "1"}\n{}', 2, "the end of the file"),
])  # fmt: skip
def test_json_errors_name_the_line(text, line, words):
    with pytest.raises(RecipeError) as error:
        parse(text, "t.json")
    problem = error.value.problems[0]
    assert (problem.file, problem.line) == ("t.json", line)
    assert words in problem.message


@pytest.mark.parametrize(("change", "key", "words"), [
    (lambda t: t.update(server_count=2), "server_count", 'Write "2"'),
    (lambda t: t["server_list"][0]["device"][0].update(rank_id=0), "server_list[0].device[0].rank_id", 'Write "0"'),
    (lambda t: t["server_list"][0]["device"][0].update(device_id="-1"), "server_list[0].device[0].device_id", "from 0"),
    (lambda t: t["server_list"][0]["device"][0].pop("rank_id"), "server_list[0].device[0].rank_id", "is missing"),
    (lambda t: t["server_list"][0].pop("device"), "server_list[0].device", "is missing"),
    (lambda t: t["server_list"][0].update(server_id=None), "server_list[0].server_id", "found null"),
    (lambda t: t["server_list"].append("node_2"), "server_list[2]", "Expected an object"),
    (lambda t: t.update(server_list={}), "server_list", "Expected a list"),
    (lambda t: t.pop("server_list"), "server_list", "this file has neither"),
    (lambda t: t.pop("version"), "version", "is missing"),
    (lambda t: t.update(server_group_list=[]), "server_group_list", "ClusterD"),
    (lambda t: t.update(prefill_device_list=[]), "prefill_device_list", "vLLM"),
])  # fmt: skip
def test_what_is_not_of_the_expected_shape(tmp_path, change, key, words):
    document = a2()
    change(document)
    with pytest.raises(RecipeError) as error:
        read_rank_table(write(tmp_path, document))
    assert [problem.key for problem in error.value.problems] == [key]
    assert words in error.value.problems[0].message and error.value.problems[0].line is not None


def test_numbers_of_version_2_have_no_quotes(tmp_path):
    document = a5()
    document["rank_list"][0]["rank_id"] = "0"
    with pytest.raises(RecipeError, match="without quotes"):
        read_rank_table(write(tmp_path, document))


def test_what_is_no_readable_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"{\n\xff}")
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    for name, words in (("absent", "No such file"), ("", "not a regular file"), ("pipe", "not a regular file"),
                        ("binary", "not UTF-8 text: byte 0xff"), ("large", "larger than")):  # fmt: skip
        with pytest.raises(RecipeError, match=words):
            read_rank_table(tmp_path / name)
    with pytest.raises(RecipeError, match="larger than 3 bytes"):
        read_bytes(write(tmp_path, a2()), most=3)


def test_a_large_table_is_read_and_checked_in_time(tmp_path):
    document = a2(1000, 8)
    for number, server in enumerate(document["server_list"]):
        server["server_id"] = f"node_{number:04}"
        for place, device in enumerate(server["device"]):
            device["device_ip"] = f"198.18.{number // 32}.{number % 32 * 8 + place}"
        server["host_ip"] = "192.0.2.1"
    found = check(read_rank_table(write(tmp_path, document)))
    assert (found.problems, found.advice) == ((), ())


def goes_well(text: str) -> None:
    """A table with its problems in words, or an error in words."""
    try:
        table = table_of(parse(text, "t.json"), "t.json")
        for chip in (None, "910A", "A2", "A3", "A5"):
            found = check(table, chip, roce=True)
            printable("\n".join(map(str, (*found.problems, *found.advice)))).encode("utf-8", "backslashreplace")
            json.dumps([problem.to_json() for problem in found.problems])
        difference(table, table)
    except RecipeError as error:
        assert error.problems and all(problem.message and problem.file for problem in error.problems)
        printable(str(error)).encode("utf-8", "backslashreplace")
        return
    assert difference(table, table) == []
    json.dumps(table.to_json())


BASES = [a2(2, 2), a3(2, 2, 1), a5(), group_list()]
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 70), st.integers(), st.text(max_size=6), st.just([]),
                   st.just({}), st.sampled_from(["0", "1", "65536", "-.-.-.-", "192.0.2.1", "::1", "\ud800", "x" * 90]))
SIGNS = st.text(alphabet='{}[]",:0123456789.-eE/\\ \n\tnulltrfasxé\x00\ud800', max_size=120)


def places(value, way=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in items for place in [(*way, key), *places(item, (*way, key))]]


@st.composite
def mutated(draw) -> str:
    """A good table in which a few values are others, gone or copied, or whose text is damaged."""
    document = json.loads(json.dumps(draw(st.sampled_from(BASES))))
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from(places(document)))
        parent = document
        for key in way:
            parent = parent[key]
        change = draw(st.integers(0, 2))
        if change == 0:
            parent[last] = draw(VALUES)
        elif change == 1:
            del parent[last]
        elif isinstance(parent, list):
            parent.append(parent[last])
        else:
            parent[draw(st.text(max_size=4))] = parent[last]
        if not places(document):
            break
    text = json.dumps(document, indent=draw(st.sampled_from([None, 1])), ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(SIGNS) + text[at + draw(st.integers(0, 9)) :]
    return text


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck)}


@settings(max_examples=100, **QUIET)
@given(mutated())
def test_damaged_tables(text):
    goes_well(text)


@settings(max_examples=100, **QUIET)
@given(SIGNS)
def test_any_text(text):
    goes_well(text)


@pytest.mark.slow
@settings(max_examples=2000, **QUIET)
@given(st.one_of(mutated(), SIGNS, st.text(max_size=200)))
def test_damaged_tables_for_long(text):
    goes_well(text)


@settings(max_examples=100, **QUIET)
@given(st.recursive(st.one_of(st.none(), st.booleans(), st.integers(-10**17, 10**17), st.text(max_size=8)),
                    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner,
                                                                                       max_size=3)), max_leaves=8))
def test_the_reader_reads_what_pythons_reads(value):
    for indent in (None, 2):
        assert plain(parse(json.dumps(value, indent=indent), "t.json")) == value
