"""Recordings: one output, series, hosts; what names tell; what is refused."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest
from devices.npu_smi_texts import info_a2, info_a3
from doctor.node import clean, write
from hypothesis import given, settings
from hypothesis import strategies as st

from msparallel.errors import UserError
from msparallel.monitor import captures
from msparallel.monitor.captures import RECORDED, read_recording

pytestmark = pytest.mark.pure


def put(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def temperatures(recording, moment):
    return {machine.host: machine.table.devices[0].temperature_c for machine in recording.machines(moment)}


def test_one_file(tmp_path):
    path = tmp_path / "npu-smi_info.txt"
    path.write_text(info_a3())
    recording = read_recording(path)
    assert recording.hosts == (RECORDED,) and len(recording.moments) == 1
    assert len(recording.machines(0)[0].table.devices) == 4


def test_a_file_for_each_host(tmp_path):
    for host in ("node_10", "node_2", "192.0.2.7"):
        (tmp_path / f"npu-smi_{host}.txt").write_text(info_a2())
    recording = read_recording(tmp_path)
    assert recording.hosts == ("192.0.2.7", "node_2", "node_10") and len(recording.moments) == 1


def test_numbers_alone_are_places_in_a_series(tmp_path):
    for number in (10, 9, 1):
        (tmp_path / f"capture_{number}.txt").write_text(info_a2(temperature=str(40 + number)))
    recording = read_recording(tmp_path)
    assert recording.hosts == (RECORDED,)
    assert [temperatures(recording, moment)[RECORDED] for moment in range(3)] == [41, 49, 50]


@pytest.mark.parametrize("written", ["20261129-101530", "2026-11-29_10-15-30", "2026-11-29T10:15:30", "20261129101530"])
def test_times_in_names(tmp_path, written):
    (tmp_path / f"node_3_{written}.txt").write_text(info_a2())
    machine = read_recording(tmp_path).machines(0)[0]
    assert (machine.host, machine.time_s) == ("node_3", datetime(2026, 11, 29, 10, 15, 30).timestamp())


def test_unix_seconds_in_a_name_and_a_day_that_is_none(tmp_path):
    (tmp_path / "a_1800000000.txt").write_text(info_a2())
    (tmp_path / "b_20261345-101530.txt").write_text(info_a2())
    told = {machine.host: machine.time_s for machine in read_recording(tmp_path).machines(0)}
    assert told["a"] == 1_800_000_000 and None in told.values()


def test_hosts_that_were_recorded_at_different_times(tmp_path):
    """At each moment what is known by then of each host."""
    put(tmp_path, a_20261129_100000=info_a2(temperature="40"), a_20261129_100010=info_a2(temperature="41"),
        b_20261129_100005=info_a2(temperature="50"))  # fmt: skip
    recording = read_recording(tmp_path)
    assert [temperatures(recording, moment) for moment in range(3)] == [
        {"a": 40}, {"a": 40, "b": 50}, {"a": 41, "b": 50}]  # fmt: skip


def test_folders_are_hosts(tmp_path):
    put(tmp_path, node_0__1DOTtxt=info_a2(temperature="40"), node_0__2DOTtxt=info_a2(temperature="41"),
        node_1__1DOTtxt=info_a2(temperature="50"))  # fmt: skip
    recording = read_recording(tmp_path)
    assert [temperatures(recording, moment) for moment in range(2)] == [
        {"node_0": 40, "node_1": 50}, {"node_0": 41, "node_1": 50}]  # fmt: skip


@pytest.mark.parametrize(
    "clock", ["Sun Nov 29 10:15:{:02d} CST 2026", "2026-11-29 10:15:{:02d}", "2026-11-29T10:15:{:02d}"]
)
def test_a_file_with_one_output_after_the_other(tmp_path, clock):
    path = tmp_path / "watch.log"
    path.write_text("".join(f"{clock.format(second)}\n{info_a2(temperature=str(40 + second))}" for second in (0, 5)))
    recording = read_recording(path)
    first = datetime(2026, 11, 29, 10, 15, 0).timestamp()
    assert [machine.time_s for moment in range(2) for machine in recording.machines(moment)] == [first, first + 5]
    assert [temperatures(recording, moment)[RECORDED] for moment in range(2)] == [40, 45]


def test_an_output_that_failed_in_a_series_is_shown_as_such(tmp_path):
    put(tmp_path, capture_1=info_a2(), capture_2="dcmi module initialize failed. ret is -8005\n", capture_3=info_a2())
    recording = read_recording(tmp_path)
    machine = recording.machines(1)[0]
    assert machine.table is None and "-8005" in machine.error
    assert recording.machines(2)[0].table is not None


@pytest.mark.parametrize("folder", ["", "node_0"])
def test_what_doctor_saves_beside_npu_smi_is_no_sample(tmp_path, folder):
    """hccn_tls_1.txt is no later look at the devices, and no other file of a recording or of a person is."""
    place = tmp_path / folder
    write(place, {**clean(), "npu-smi_info.txt": info_a2(range(8)), "notes.txt": "a word\n",
                  "npu-smi_health_0.txt": "dcmi module initialize failed. ret is -8005\n"})  # fmt: skip
    assert len(list(place.iterdir())) > 20
    recording = read_recording(tmp_path)
    assert len(recording.moments) == 1 and len(recording.hosts) == 1
    assert len(recording.machines(0)[0].table.devices) == 8


def test_npu_smi_that_never_answered_is_a_failure_and_files_of_something_else_are_wrong_input(tmp_path):
    (tmp_path / "notes.txt").write_text("a word\n")
    with pytest.raises(UserError, match="no table of npu-smi") as error:
        read_recording(tmp_path)
    assert error.value.exit_code == 2
    (tmp_path / "node_0.txt").write_text("dcmi module initialize failed. ret is -8005\n")
    with pytest.raises(UserError, match="cannot be initialised") as error:
        read_recording(tmp_path)
    assert error.value.exit_code == 1


def test_the_samples_of_public_reports(shared):
    folder = shared / "data/samples/npu_smi"
    recording = read_recording(folder)
    tables = {machine.source.rpartition("/")[2]: machine.table for machine in recording.machines(0)}
    info = {name: table for name, table in tables.items() if name.startswith("info_")}
    assert len(info) == 6 and all(info.values())
    assert all(table is None for name, table in tables.items() if name not in info)


def test_what_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="It cannot be read"):
        read_recording(tmp_path / "none")
    with pytest.raises(UserError, match="It cannot be read"):
        read_recording(Path("a\0b"))
    with pytest.raises(UserError, match="no file in it"):
        read_recording(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="This is no file"):
        read_recording(tmp_path / "pipe")
    (tmp_path / "words.txt").write_text("nothing of npu-smi\n")
    with pytest.raises(UserError, match="no table of npu-smi"):
        read_recording(tmp_path)
    (tmp_path / "node.txt").write_text(info_a2())
    monkeypatch.setattr(captures, "MOST_TOTAL_BYTES", 100)
    with pytest.raises(UserError, match="MiB of captures"):
        read_recording(tmp_path)
    monkeypatch.setattr(captures, "MOST_FILE_BYTES", 100)
    with pytest.raises(UserError, match="at most 100 of a file"):
        read_recording(tmp_path / "node.txt")
    monkeypatch.setattr(captures, "MOST_FILES", 1)
    with pytest.raises(UserError, match="2 files; at most 1"):
        read_recording(tmp_path)


def test_symbolic_links_in_a_folder_are_not_followed(tmp_path):
    (tmp_path / "secret").write_text(info_a2())
    folder = put(tmp_path / "folder", node_0=info_a2())
    (folder / "node_1").symlink_to(tmp_path / "secret")
    assert read_recording(folder).hosts == ("node_0",)


lines = st.sampled_from([*info_a2((0,), processes={0: [(4711, "python", 28170)]}).splitlines(),
                         *info_a3((0,)).splitlines(),
                         "Sun Nov 29 10:15:30 CST 2026", "2026-99-29 10:15:30", "| npu-smi", "|", ""])  # fmt: skip


def check_any_text(folder, name, text):
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / f"x{name}").write_bytes(text.encode("utf-8", "replace"))
    try:
        recording = read_recording(folder)
    except UserError as error:
        assert str(folder) in str(error)
        return
    for moment in range(len(recording.moments)):
        for machine in recording.machines(moment):
            assert machine.host and (machine.table is None) == bool(machine.error)


names = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="/\0"), max_size=20)
texts = st.lists(lines | st.text(max_size=30), max_size=40).map("\n".join)


@settings(max_examples=200, deadline=None)
@given(name=names, text=texts)
def test_any_text_under_any_name(tmp_path_factory, name, text):
    check_any_text(tmp_path_factory.getbasetemp() / "any_text", name, text)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(name=names, text=texts)
def test_any_text_under_any_name_long(tmp_path_factory, name, text):
    check_any_text(tmp_path_factory.getbasetemp() / "any_text", name, text)
