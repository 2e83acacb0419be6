"""Metrics, read back as Prometheus reads them."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace

import pytest
from devices.npu_smi_texts import info_a2, info_a3
from monitor.run_folder import write_checkpoint, write_log, write_rank
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from msparallel.devices.npu_smi import parse_info
from msparallel.errors import RunError, UserError
from msparallel.monitor.job import JobWatch
from msparallel.monitor.machines import Machine
from msparallel.monitor.metrics import registry_of, write_textfile
from msparallel.monitor.snapshot import Watch

pytestmark = pytest.mark.pure
NOW = 1_800_000_000.0


class Told:
    def __init__(self, *machines):
        self.told = machines

    def machines(self, now_s):
        return self.told


def machine(host="node_0", text=None, **fields):
    return Machine(host=host, source="test", time_s=NOW, table=parse_info(text or info_a2((0, 7)), "test"), **fields)


def read(watch, now_s=NOW):
    """name -> {labels: value}, and the families."""
    text = generate_latest(registry_of(lambda: watch.at(now_s))).decode()
    found = list(text_string_to_metric_families(text))
    return {family.name: {tuple(sorted(sample.labels.items())): sample.value for sample in family.samples}
            for family in found}, found  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A run of two ranks at step 40 of 100."""
    folder = tmp_path / "run"
    write_log(folder, now_s=NOW)
    for rank in (0, 1):
        write_rank(folder, rank, now_s=NOW, age_s=1.0 + rank)
    os.utime(write_checkpoint(folder, 20) / "state.json", (NOW - 50, NOW - 50))
    return folder


def test_devices_in_base_units():
    text = info_a2((0, 7), hbm="3416 / 65536", power="91.5", temperature="44", processes={7: [(1, "python", 5)]})
    values, _ = read(Watch(Told(machine(text=text)), None))
    device = (("chip", "0"), ("device", "7"), ("host", "node_0"))
    assert values["msparallel_device_temperature_celsius"][device] == 44
    assert values["msparallel_device_power_watts"][device] == 91.5
    assert values["msparallel_device_memory_used_bytes"][device] == 3416 * 2**20
    assert values["msparallel_device_memory_total_bytes"][device] == 65536 * 2**20
    assert values["msparallel_device_aicore_utilization_ratio"][device] == 0
    assert values["msparallel_device_processes"][device] == 1
    assert values["msparallel_device_healthy"][device] == 1


def test_names_units_and_help(folder):
    values, found = read(Watch(Told(machine()), JobWatch(folder)))
    for family in found:
        assert re.fullmatch(r"msparallel_[a-z_]+", family.name) and family.documentation.endswith(".")
        assert not re.search(r"_(mib|gib|ms|percent|c|w)$", family.name)
    assert len(values) == len(found) > 30


def test_a_value_that_npu_smi_does_not_tell_is_absent_and_a_machine_without_answer_is_down():
    told = [machine("a", info_a3()), Machine(host="b", source="test", time_s=NOW, error="hangs")]
    values, _ = read(Watch(Told(*told), None))
    assert values["msparallel_devices_up"] == {(("host", "a"),): 1, (("host", "b"),): 0}
    assert len(values["msparallel_device_temperature_celsius"]) == 4
    assert len(values["msparallel_device_power_watts"]) == 2  # a card's second die has none
    assert "msparallel_step" not in values


def test_a_run(folder):
    values, _ = read(Watch(None, JobWatch(folder)))
    recipe = (("recipe", "tiny"),)
    expected = {"step": 40, "steps": 100, "loss": 6.0, "loss_step": 40, "tokens_per_second": 4096, "eval_loss": 8.0,
                "step_duration_seconds": 2.0, "remaining_seconds": 120.0, "checkpoint_step": 20,
                "checkpoint_age_seconds": 50, "job_ranks": 2, "grad_norm": 0.7, "job_restarts": 0}  # fmt: skip
    assert {name: values[f"msparallel_{name}"][recipe] for name in expected} == expected
    ages = values["msparallel_step_heartbeat_age_seconds"]
    assert ages == {(("rank", "0"), ("recipe", "tiny")): 1.0, (("rank", "1"), ("recipe", "tiny")): 2.0}
    states = {dict(labels)["state"]: value for labels, value in values["msparallel_job_state"].items()}
    assert states == {"not started": 0, "running": 1, "silent": 0, "failed": 0, "done": 0}


def test_what_is_old_is_not_told_as_live(folder):
    job = JobWatch(folder)
    values, _ = read(Watch(None, job), now_s=NOW + 3600)
    assert {name for name in values if "per_second" in name or "remaining" in name or "duration" in name} == {
        "msparallel_rank_step_duration_seconds"}  # fmt: skip
    assert values["msparallel_step_heartbeat_age_seconds"][("rank", "1"), ("recipe", "tiny")] == 3602
    assert values["msparallel_log_age_seconds"][(("recipe", "tiny"),)] == 3600
    states = {dict(labels)["state"]: value for labels, value in values["msparallel_job_state"].items()}
    assert states["silent"] == 1
    old = Watch(Told(replace(machine(), time_s=NOW - 7200)), None)
    assert read(old)[0]["msparallel_devices_sample_age_seconds"] == {(("host", "node_0"),): 7200}


def test_labels_hold_no_control_characters_and_any_other_text():
    text = info_a2((0,), name='9"1\\0\x1b[31mB')
    values, _ = read(Watch(Told(machine(text=text, host='h"\\')), None))
    (labels,) = values["msparallel_device_info"]
    assert dict(labels)["name"] == '9"1\\0\\x1b[31mB' and dict(labels)["host"] == 'h"\\'


def test_scrapes_at_once_ask_npu_smi_once():
    asked = []

    class Counted(Told):
        def machines(self, now_s):
            asked.append(now_s)
            return self.told

    watch = Watch(Counted(machine()), None)
    registry = registry_of(lambda: watch.at(NOW))
    assert asked == []  # not by registering
    threads = [threading.Thread(target=generate_latest, args=(registry,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


def test_the_textfile_is_whole_or_as_before(tmp_path):
    path = tmp_path / "x.prom"
    registry = registry_of(lambda: Watch(Told(machine()), None).at(NOW))
    write_textfile(path, registry)
    assert list(text_string_to_metric_families(path.read_text())) and os.listdir(tmp_path) == ["x.prom"]

    def fails():
        raise RunError("no")

    before = path.read_text()
    with pytest.raises(RunError):
        write_textfile(path, registry_of(fails))
    assert path.read_text() == before and os.listdir(tmp_path) == ["x.prom"]
    with pytest.raises(UserError, match="cannot be written") as error:
        write_textfile(tmp_path / "none" / "x.prom", registry)
    assert error.value.exit_code == 2
