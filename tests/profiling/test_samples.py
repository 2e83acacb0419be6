"""Files that came from elsewhere: each is read, or refused with a reason; what is known of them is found."""

from __future__ import annotations

import shutil

import pytest

from msparallel.profiling.profile import profile
from msparallel.profiling.read import read_folder

pytestmark = pytest.mark.pure


@pytest.fixture
def alone(shared, tmp_path):
    """Measured of one sample, or of several, in a folder of their own."""

    def make(*names: str):
        for name in names:
            shutil.copy(shared / "data" / "samples" / name, tmp_path)
        return read_folder(tmp_path)

    return make


def test_every_profiler_sample_is_read(shared, tmp_path):
    for file in sorted((shared / "data" / "samples" / "profiler").iterdir()):
        (tmp_path / file.stem).mkdir()
        shutil.copy(file, tmp_path / file.stem)
        found = read_folder(tmp_path / file.stem)
        assert sum(found.read.values()) == 1 and found.left_out == (), file.name
        assert not any("rows left out" in note for note in found.notes), (file.name, found.notes)


def test_every_other_sample_has_its_reason(shared):
    found = read_folder(shared / "data" / "samples")
    read = sum(found.read.values())
    files = [path for path in (shared / "data" / "samples").rglob("*") if path.is_file()]
    assert read + len(found.left_out) == len(files)
    assert all(reason for _, reason in found.left_out)


def test_a_tab_before_the_closing_quote(alone):
    (found,) = alone("profiler/kernel_details_level1_pipeutil.csv").operators
    products = {one.type: one for one in found.operators}
    assert products["MatMulV3"].cube_share == pytest.approx(0.9538, abs=0.001) and products["MatMulV2"].blocks == 16
    assert found.gaps and found.span_us > 0


def test_the_cluster_that_msprof_analyze_ships(alone):
    found = alone("profiler/cluster_step_trace_time.csv")
    assert len(found.steps) == 8 and found.steps[1].rank == 1
    assert all(abs(part.step_us - part.stage_us) < 0.01 * part.step_us for part in found.steps)


def test_the_late_rank_of_that_cluster_is_the_one_that_waits_least(alone, tmp_path):
    alone("profiler/cluster_step_trace_time.csv", "profiler/cluster_communication.json")
    found = profile(tmp_path)
    late = [one for one in found.findings if one.rule == "slow_rank_is_free"]
    assert late[0].rank == 1 and "entered 2 of 2 collectives last" in late[0].root_cause
    assert not any(one.rule == "slow_rank_computes" for one in found.findings)  # computing differs by 2 %


def test_a_clock_that_falls(alone, tmp_path):
    (power,) = alone("profiler/npu_smi_power_trace.csv").power
    assert (power.high_mhz, power.low_mhz, power.hottest_c) == (1000, 800, 107)
    (finding,) = profile(tmp_path).findings
    assert finding.rule == "clock_falls" and "Cooling" in finding.remedy and finding.evidence[0].line == 11


def test_hccl_test_prints_powers_of_two(alone):
    (test,) = alone("hccl_test/all_reduce_test_8p_fp32_sum.txt").hccl_tests
    assert (test.operation, test.ranks, len(test.rows)) == ("all_reduce", 8, 14)
    for row in test.rows:
        assert row.printed_gb_s / row.gb_s == pytest.approx(1e9 / 2**30, rel=2e-3)


def test_failed_rows_end_in_exit_code_1(alone, tmp_path):
    alone("hccl_test/failed_and_null__derived.txt")
    found = profile(tmp_path)
    assert found.failed and {one.rule for one in found.findings} == {"hccl_test_failed", "hccl_test_unchecked"}


def test_counters_over_time(alone, tmp_path):
    (port,) = alone("hccn/npu_details_roce_counters.csv").counters
    assert port.seconds == 2 and port.changes["mac_rx_pfc_pkt_num"] == 50583 and port.captures == 2
    assert "port_paused" in {one.rule for one in profile(tmp_path).findings}


def test_one_capture_is_information_alone(alone, tmp_path):
    alone("hccn/stat_g_errors.txt")
    found = profile(tmp_path)
    assert {one.severity for one in found.findings} == {"info"} and not found.failed
