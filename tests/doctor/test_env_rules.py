"""Environment variables: every row of the table, every rule about several, names that do nothing."""

from __future__ import annotations

import csv

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msparallel.devices.tool_text import Place
from msparallel.doctor.env_rules import NOT_RECORDED, check_variables
from msparallel.doctor.env_values import ALGORITHMS, KINDS, elsewhere, variables, wrong_value
from msparallel.doctor.recording import Value

pytestmark = pytest.mark.pure


def check(chip: str | None = None, **values: str):
    told = {name: Value(text, Place("env.txt", line)) for line, (name, text) in enumerate(values.items(), 1)}
    return check_variables(told, "node_0", chip)


def rules(chip: str | None = None, **values: str) -> list[str]:
    return [one.rule for one in check(chip, **values)]


def test_every_variable_of_the_reference_is_in_the_table(shared):
    with open(shared / "data/samples/env_vars.csv", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    missing = set(rows) - set(variables()) - set(elsewhere())
    assert not missing
    for name, row in variables().items():
        default = rows.get(name, {}).get("default", "")
        if row.default and default.replace("MaxCnt", "").isdigit():
            assert default == row.default, name


@pytest.mark.parametrize("name", sorted(variables()))
def test_every_row_says_what_it_is_and_its_default_and_suggestion_are_legal(name):
    row = variables()[name]
    assert row.meaning and row.source
    assert sum([row.int is not None, bool(row.choices), row.kind is not None]) == 1
    assert row.kind is None or row.kind in KINDS
    if row.default is not None:
        assert wrong_value(name, row.default) is None
    for value in ("", "Tree", "-1", "99999999999", "yes please", "0,0", ";;", "\x00"):
        if broken := wrong_value(name, value):
            assert broken.rule.split()[0] in ("is", "has", "names") and not broken.rule.endswith(".")
            assert wrong_value(name, broken.suggestion) is None, (name, value, broken)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("HCCL_CONNECT_TIMEOUT", ["120", "600", "7200"], ["60", "119", "7201", "1e3", "", "600 "]),
        ("HCCL_RDMA_TC", ["0", "132", "252"], ["133", "256", "-4"]),
        ("HCCL_RDMA_TIMEOUT", ["5", "24"], ["4", "25"]),
        ("HCCL_RDMA_RETRY_CNT", ["1", "7"], ["0", "8"]),
        ("HCCL_IF_BASE_PORT", ["1024", "65520"], ["1023", "65521"]),
        ("HCCL_SOCKET_FAMILY", ["AF_INET", "AF_INET6"], ["ipv4", "af_inet"]),
        ("HCCL_IF_IP", ["192.0.2.1", "2001:db8::1"], ["192.0.2.999", "node_0", "192.0.2.1:60000"]),
        ("HCCL_SOCKET_IFNAME", ["eth0", "=eth0,enp1s0f0", "^docker,lo", "^=eth1", "bond0.100"],
         ["eth0 eth1", "eth0,", ""]),
        ("HCCL_ALGO", ["level0:NA;level1:ring", "level0:NA;level1:NHR;level2:NB", "level1:H-D_R",
                       "allreduce=level0:NA;level1:ring/allgather=level0:NA;level1:H-D_R",
                       "level0:fullmesh;level1:ring",
                       "alltoall=level0:NA;level1:pairwise"],
         ["Tree", "Ring", "level1=ring", "level0:NA;level1:tree", "level0:ring", "sum=level0:NA;level1:ring", ""]),
        ("HCCL_NPU_SOCKET_PORT_RANGE", ["auto", "16666", "16666-16680", "1-2,9"],
         ["0", "70000", "20-10", "AUTO", "a-b"]),
        ("HCCL_OP_RETRY_PARAMS", ["MaxCnt:1,HoldTime:5000,IntervalTime:1000", "MaxCnt:10"],
         ["MaxCnt:11", "MaxCnt:1,MaxCnt:2", "Count:1", "MaxCnt=1"]),
        ("ASCEND_RT_VISIBLE_DEVICES", ["0", "0,1,2,3", "4,7"], ["1,0", "0, 1", "0,0", "all", "0-3", ""]),
        ("PYTORCH_NPU_ALLOC_CONF", ["expandable_segments:True",
          "max_split_size_mb:64,garbage_collection_threshold:0.6"],
         ["max_split_size_mb:20", "garbage_collection_threshold:1", "expandable_segments:yes", "max_split_size:1",
          "expandable_segments=True"]),
        ("MS_ALLOC_CONF", ["enable_vmm:true,vmm_align_size:2"], ["enable_vmm:1", "vmm_align_size:3", "vmm:true"]),
        ("MS_SUBMODULE_LOG_v", ["{PARALLEL:1}", "{PARALLEL:1, DISTRIBUTED:2}"], ["PARALLEL:1", "{PARALLEL:9}"]),
        ("HCCL_DETERMINISTIC", ["true", "False", "STRICT"], ["1", "on"]),
        ("HCCL_INTER_HCCS_DISABLE", ["TRUE", "false"], ["1"]),
        ("GLOG_v", ["0", "4"], ["5", "INFO"]),
        ("MS_TOPO_TIMEOUT", ["-1", "7200"], ["soon"]),
    ],
)  # fmt: skip
def test_legal_and_illegal_values(name, good, bad):
    assert [value for value in good if wrong_value(name, value)] == []
    assert [value for value in bad if not wrong_value(name, value)] == []


def test_all_algorithms_of_hccl_are_legal():
    for algorithm in ALGORITHMS:
        assert wrong_value("HCCL_ALGO", f"level0:NA;level1:{algorithm}") is None


def test_a_wrong_value_is_told_with_its_line_the_rule_and_a_value_that_works():
    found = check(GLOG_v="2", HCCL_CONNECT_TIMEOUT="60")[0]
    assert (found.rule, found.severity, found.host) == ("env_value", "error", "node_0")
    assert found.evidence[0].line == 2 and found.evidence[0].text == "HCCL_CONNECT_TIMEOUT=60"
    assert "120 to 7200" in found.root_cause and "CANN 9.0" in found.root_cause
    assert "export HCCL_CONNECT_TIMEOUT='120'" in found.remedy


@pytest.mark.parametrize(
    ("rule", "broken", "mended"),
    [
        ("env_pcie_and_roce", {"HCCL_INTRA_PCIE_ENABLE": "1", "HCCL_INTRA_ROCE_ENABLE": "1"},
         {"HCCL_INTRA_ROCE_ENABLE": "0"}),
        ("env_event_timeout", {"HCCL_EXEC_TIMEOUT": "3600"}, {"HCCL_EVENT_TIMEOUT": "3632"}),
        ("env_event_timeout", {"HCCL_EXEC_TIMEOUT": "0", "HCCL_EVENT_TIMEOUT": "100"}, {"HCCL_EVENT_TIMEOUT": "0"}),
        ("env_event_timeout", {"HCCL_EVENT_TIMEOUT": "600"}, {"HCCL_EXEC_TIMEOUT": "500"}),
        ("env_aiv_timeout", {"HCCL_OP_EXPANSION_MODE": "AIV", "HCCL_EXEC_TIMEOUT": "1800"},
         {"HCCL_EXEC_TIMEOUT": "1000"}),
        ("env_rdma_timeout", {"HCCL_RDMA_TIMEOUT": "24", "HCCL_EXEC_TIMEOUT": "300"}, {"HCCL_RDMA_TIMEOUT": "20"}),
        ("env_allocator_excludes", {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"},
         {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}),
        ("env_allocator_no_effect", {"MS_ALLOC_CONF": "enable_vmm:false,vmm_align_size:4"},
         {"MS_ALLOC_CONF": "enable_vmm:true,vmm_align_size:4"}),
        ("env_address_family", {"HCCL_IF_IP": "2001:db8::1", "HCCL_SOCKET_FAMILY": "AF_INET"},
         {"HCCL_SOCKET_FAMILY": "AF_INET6"}),
        ("env_whitelist", {"HCCL_WHITELIST_DISABLE": "0"}, {"HCCL_WHITELIST_FILE": "/etc/list.json"}),
        ("env_retry_interval", {"MS_RETRY_INTERVAL_LOWER": "9"}, {"MS_RETRY_INTERVAL_UPPER": "11"}),
        ("env_glog_dir", {"GLOG_log_dir": "/tmp/logs"}, {"GLOG_logtostderr": "0"}),
        ("env_rank_table", {"RANK_TABLE_FILE": "/t.json", "MS_ROLE": "MS_WORKER"}, {"MS_ROLE": None}),
        ("env_overridden", {"HCCL_IF_IP": "192.0.2.1", "HCCL_SOCKET_IFNAME": "eth0"}, {"HCCL_IF_IP": None}),
        ("env_overridden", {"ASCEND_PROCESS_LOG_PATH": "/a", "ASCEND_WORK_PATH": "/b"}, {"ASCEND_WORK_PATH": None}),
        ("env_simulation", {"MS_SIMULATION_LEVEL": "1"}, {"MS_SIMULATION_LEVEL": None}),
        ("env_is_default", {"HCCL_CONNECT_TIMEOUT": "120"}, {"HCCL_CONNECT_TIMEOUT": "600"}),
        ("env_debugging", {"ASCEND_GLOBAL_LOG_LEVEL": "1"}, {"ASCEND_GLOBAL_LOG_LEVEL": "3"}),
        ("env_debugging", {"MS_ALLOC_CONF": "memory_tracker:true"}, {"MS_ALLOC_CONF": "enable_vmm:true"}),
        ("env_no_effect", {"ASCEND_DEVICE_ID": "0"}, {"ASCEND_DEVICE_ID": None}),
        ("env_no_effect", {"ALLOCATOR_FLAGS": "x"}, {"ALLOCATOR_FLAGS": None}),
        ("env_misspelt", {"HCCL_EXECC_TIMEOUT": "9"}, {"HCCL_EXECC_TIMEOUT": None}),
    ],
)  # fmt: skip
def test_each_rule_about_several_variables_speaks_and_is_silent_once_mended(rule, broken, mended):
    found = [one for one in check(**broken) if one.rule == rule]
    assert len(found) == 1 and found[0].remedy and found[0].evidence
    after = {name: value for name, value in {**broken, **mended}.items() if value is not None}
    assert rule not in rules(**after)


def test_rules_of_a_chip():
    assert rules("910A", ASCEND_HOME_PATH="/c", HCCL_EXEC_TIMEOUT="20000", HCCL_EVENT_TIMEOUT="30000") == [
        "env_exec_timeout_chip"]  # fmt: skip
    assert rules("910B2", ASCEND_HOME_PATH="/c", HCCL_EXEC_TIMEOUT="20000", HCCL_EVENT_TIMEOUT="30000") == []
    rounded = check("310P3", ASCEND_HOME_PATH="/c", HCCL_EXEC_TIMEOUT="600")
    assert [(one.rule, one.severity) for one in rounded] == [("env_exec_timeout_chip", "info")]
    assert "544" in rounded[0].root_cause
    assert rules("910B2") == ["env_cann_not_sourced"] and rules(None) == []
    assert check("910B2")[0].severity == "warning", "the shell that recorded need not be the job's"
    assert check_variables({}, "node_0", "910B2", live=True)[0].severity == "error"


def test_files_are_looked_at_where_the_job_would_start(tmp_path):
    (tmp_path / "table.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "table.json")

    def live(path: str) -> list[str]:
        told = {"RANK_TABLE_FILE": Value(path, Place("environment", 1))}
        return [one.root_cause for one in check_variables(told, "here", live=True) if one.rule == "env_file"]

    assert live(str(tmp_path / "table.json")) == [] and rules(RANK_TABLE_FILE="/nowhere") == []
    assert "is a symbolic link" in live(str(tmp_path / "link.json"))[0]
    assert "is no file" in live(str(tmp_path))[0] and "is no file" in live("/nowhere")[0]
    assert live("x" * 9000) and live("a\x00b")


def test_a_name_alone_is_not_judged():
    assert rules(HCCL_SOMETHING_NEW=NOT_RECORDED, MS_INTERNAL=NOT_RECORDED) == []


@pytest.mark.parametrize("name", sorted(elsewhere()))
def test_names_of_guides_that_do_nothing(name):
    row = elsewhere()[name]
    found = check(**{name: "0"})
    assert [one.rule for one in found] == ["env_no_effect"]
    assert row.source and (not row.instead or row.instead in variables())


@given(st.dictionaries(st.sampled_from(sorted([*variables(), *elsewhere()])), st.text(max_size=40), max_size=6))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_values_end_in_findings(values):
    for one in check("910B2", **values):
        assert one.root_cause and one.remedy and len(one.root_cause) < 1200
        one.to_json()
