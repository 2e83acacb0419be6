"""Versions: pairs from the tables, and what driver and firmware say of each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msparallel.devices.tool_text import Place
from msparallel.doctor.recording import Value
from msparallel.doctor.version_rules import check_versions, release, tables, version_key

pytestmark = pytest.mark.pure
GOOD = {"driver": "26.0.rc1", "driver_needs_firmware": "[7.0.0,8.9.9]", "firmware": "8.0.0.1.231", "cann": "9.0.0",
        "mindspore": "2.9.0", "mindformers": "1.9.0", "numpy": "1.26.4", "python": "3.11.4"}  # fmt: skip


def check(**versions: str | None):
    told = {name: value for name, value in {**GOOD, **versions}.items() if value is not None}
    return check_versions({name: Value(text, Place("versions.txt", line))
                           for line, (name, text) in enumerate(told.items(), 1)}, "node_0")  # fmt: skip


def test_order_of_versions():
    names = ["8.0.RC3", "8.0.0.alpha001", "8.0.0", "8.1.RC1", "8.3.RC1", "8.5.0", "9.0.0", "25.0.rc1", "25.0.rc1.1",
             "25.5.0", "26.0.RC1", "26.0.0"]  # fmt: skip
    assert sorted(names, key=version_key) == names
    assert release("2.9.0+cpu") == release("2.9.0.3.220") == (2, 9, 0)
    assert release("8.0.RC2") != release("8.0.RC3") and version_key("unknown") == ()


def test_what_belongs_together_is_not_told():
    assert check() == []
    for row in tables()["mindformers"]["rows"]:
        pair = dict(row, driver_needs_firmware=None, firmware=None, numpy=None)
        assert [one.rule for one in check(**pair)] == [], row


@pytest.mark.parametrize(
    ("versions", "rule", "severity", "says"),
    [
        ({"firmware": "6.4.12.1.241"}, "driver_firmware", "error", "7.0.0 to 8.9.9"),
        ({"firmware_needs_driver": "[23.0.rc3,23.0.rc3.],[25.0,25.0.]"}, "driver_firmware", "warning", "25.0"),
        ({"cann": "8.5.0", "mindspore": "2.7.2", "mindformers": "1.8.0", "driver": "24.1.0"},
         "cann_driver", "error", "25.5.x"),
        ({"cann": "8.5.0", "mindspore": "2.7.2", "mindformers": "1.8.0", "driver": "26.0.rc1"},
         "cann_driver", "warning", "25.5.x"),
        ({"cann": "8.3.RC1", "mindspore": "2.7.1", "mindformers": "1.7.0", "driver": "24.1.rc3"},
         "cann_driver", "warning", "25.3.RC1"),
        ({"cann": "8.5.0", "driver": "25.5.0"}, "mindspore_cann", "error", "CANN 9.0.0"),
        ({"cann": "9.1.0"}, "mindspore_cann", "warning", "newer"),
        ({"mindformers": "1.8.0"}, "mindformers_mindspore", "warning", "MindSpore 2.7.2"),
        ({"torch": "2.7.1", "torch_npu": "2.9.0.post2"}, "torch_npu_torch", "error", "torch 2.9.0"),
        ({"torch": "2.7.1+cpu", "torch_npu": "2.7.1.post2"}, "torch_npu_cann", "warning", "CANN 8.5.0"),
        ({"numpy": "2.1.0"}, "numpy_two", "error", "NumPy 1"),
        ({"mindspore": None, "mindformers": None, "python": "3.13.1"}, "python_mindspore", "warning", "3.9 to 3.12"),
        ({"mindspore": None, "mindformers": None}, "mindspore_missing", "warning", "not installed"),
    ],
)  # fmt: skip
def test_what_does_not_belong_together_is_told(versions, rule, severity, says):
    found = check(**versions)
    assert [(one.rule, one.severity) for one in found] == [(rule, severity)]
    assert says in found[0].root_cause and found[0].remedy and found[0].evidence


def test_a_missing_mindspore_is_an_error_where_the_job_would_run():
    told = {"python": Value("3.11.4", Place("versions", 1))}
    assert [one.severity for one in check_versions(told, "here", live=True)] == ["error"]
    assert check(mindspore=None, mindformers=None, torch="2.9.0", torch_npu="2.9.0.post2") == [], "a host for torch"


def test_the_other_way_out_is_named():
    found = check(cann="8.5.0", driver="25.5.0")[0]
    assert "MindSpore 2.7.2, which goes with CANN 8.5.0" in found.remedy


def test_versions_that_no_table_has_are_not_judged():
    assert check(mindspore="2.10.0", mindformers=None) == []
    assert check(cann="7.0.0", mindspore="2.2.14", mindformers=None, numpy=None) == []
    assert check(torch="2.4.0", torch_npu="2.4.0.post99") == []


@given(st.text(max_size=40))
def test_any_text_is_a_version(text):
    assert isinstance(version_key(text), tuple)
    check(driver=text, firmware=text, driver_needs_firmware=text, firmware_needs_driver=text, cann=text, mindspore=text,
          torch=text, torch_npu=text)  # fmt: skip


def test_every_table_has_its_source():
    assert all(table["source"] and table["rows"] for table in tables().values())
