"""Real logs kept beside the project: the cause that a person has named is found first, and clean logs stay clean."""

import csv

import pytest

from msparallel.diagnose.diagnose import diagnose

pytestmark = pytest.mark.pure

CAUSES = {
    "EI0001_env_var_out_of_range": "env_var_out_of_range",
    "EI0002_notify_wait_timeout_heartbeat_lost": "peer_heartbeat_lost",
    "EI0002_mindspore_graph": "peer_heartbeat_lost",
    "EI0002_new_format_with_group": "notify_timeout",
    "EI0005_args_inconsistent_between_ranks": "collective_arguments_differ",
    "EI0006_get_socket_timeout": "link_timeout",
    "HCCL_link_error_info_table_v1": "link_timeout",
    "HCCL_link_error_info_table_v2": "link_timeout",
    "HCCL_link_error_info_table_v3_tls": "link_timeout",
    "HCCL_topo_server_timeout_rank_missing": "rank_missing_at_start",
    "HCCL_recv_timeout_firewall": "firewall",
    "EI0009_transport_init_error": "transport_init",
    "EJ0001_hccp_previous_process": "device_in_use",
    "EJ0003_device_port_16666_in_use": "device_port_in_use",
    "CQE_error_status_12": "roce_retries_exceeded",
    "heartbeat_lost_chain": "peer_heartbeat_lost",
    "EE1001_invalid_device_id": "invalid_device_id",
    "EE9999_device_oom_mindspore": "device_out_of_memory",
    "EZ9999_aicore_507011": "aicore_error",
    "EZ9999_cannot_find_bin": "kernel_binary_missing",
    "ERR00100_init_500001": "device_init_failed",
    "EC0010_python_module_missing": "cann_python_missing",
    "EK0001_profiler_path": "profiler_path",
    "E80012_op_rank_too_high": "operator_not_supported",
    "sdma_memcpy_E30008": "memory_copy",
    "kernel_heartbeat_lost_0x40F84E00": "device_heartbeat_lost",
    "host_messages_oom_conntrack": "host_out_of_memory",
    "msrun_join_worker_exit_timeout_node": "node_timed_out",
    "msrun_dns_failure": "name_not_resolved",
    "mindspore_cannot_split_by_strategy": "not_divisible_by_strategy",
    "hccl_watchdog_timeout": "watchdog_timeout",
    "ranktable_super_device_id_missing_a3": "rank_table_super_device_id",
    "link_establish_timeout_hccs_vs_roce": "link_timeout",
    "link_oom_peer_207001": "device_out_of_memory",
    "stream_sync_timeout_507046_roce": "stream_sync_timeout",
}


def test_labelled_logs(shared):
    folder = shared / "data" / "samples" / "logs"
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        names = [row["file"] for row in csv.DictReader(file)]
    found = {name: diagnose(folder / name) for name in names}
    right = [name for name in names if found[name].findings[0].rule.id == CAUSES[name.removesuffix(".log")]]
    assert len(right) >= 0.95 * len(names), sorted(set(names) - set(right))
    assert all(found[name].failed for name in names)


@pytest.mark.parametrize("name", ["health_ok", "info_24.1.rc3.7_a3_16die", "info_310p3_25.2.0_300iduo", "map_m_910a",
                                  "ecc_910a", "common_310p_two_chips", "board_npu_23.0.5"])  # fmt: skip
def test_healthy_captures(shared, name):
    found = diagnose(shared / "data" / "samples" / "npu_smi" / f"{name}.txt")
    assert found.files == 1 and not found.findings


@pytest.mark.parametrize(("name", "rule"), [("info_25.2.1_a3_alarm_partial", "device_alarm"),
                                            ("error_8005_container", "driver_not_reachable"),
                                            ("info_23.0.5_warning_elided", "device_warning")])  # fmt: skip
def test_ill_captures(shared, name, rule):
    found = diagnose(shared / "data" / "samples" / "npu_smi" / f"{name}.txt")
    assert [finding.rule.id for finding in found.findings] == [rule]
