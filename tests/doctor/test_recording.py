"""Folders of recorded outputs: written and read back, whatever else lies in them."""

from __future__ import annotations

import os

import pytest
from doctor.node import clean, recording, write

from msparallel.doctor.recording import is_record, read_recordings, write_recording
from msparallel.errors import RunError, UserError

pytestmark = pytest.mark.pure


def test_a_recording_is_read_as_it_was_written(tmp_path):
    files = clean()
    written = write_recording(recording(files), tmp_path / "node_0")
    assert {path.name for path in written} == set(files) and all(map(is_record, files))
    told = read_recordings(tmp_path / "node_0")
    assert [one.host for one in told] == ["node-0"], "the name that hostname.txt tells"
    assert {name: record.text for name, record in told[0].records.items()} == files
    assert (written[0].stat().st_mode & 0o777) == 0o640


def test_hosts_are_sub_folders(tmp_path):
    for name in ("node_1", "node_0"):
        write(tmp_path / name, clean(name))
    (tmp_path / "notes").mkdir()
    assert [one.host for one in read_recordings(tmp_path)] == ["node_0", "node_1"]


def test_what_is_not_read_is_told(tmp_path):
    write(tmp_path, {"env.txt": "GLOG_v=2\n", "notes.md": "x", "npu-smi_health_x.txt": "",
                     "meminfo.txt": "x" * 5_000_000})  # fmt: skip
    os.mkfifo(tmp_path / "versions.txt")
    told = read_recordings(tmp_path)[0]
    assert list(told.records) == ["env.txt"]
    assert {os.path.basename(name): reason for name, reason in told.left_out} == {
        "notes.md": "no name that the doctor reads", "npu-smi_health_x.txt": "no name that the doctor reads",
        "meminfo.txt": "longer than 4,194,304 bytes", "versions.txt": "no regular file"}  # fmt: skip


def test_numbers_pairs_and_sections(tmp_path):
    told = read_recordings(write(tmp_path, {
        "hccn_link_10.txt": "a", "hccn_link_2.txt": "b", "hccn_link_stat_1.txt": "c", "env.txt": "# x\n\nA=1\r\nB = "
                                                                                                 "2\n",
        "clock.txt": "before\n$ one two\nline\n\n$ three\n"}))[0]  # fmt: skip
    assert [number for number, _ in told.numbered("hccn_link")] == [2, 10]
    assert {name: (value.text, value.place.line) for name, value in told.values("env.txt").items()} == {
        "A": ("1", 3), "B": ("2", 4)}  # fmt: skip
    sections = told.sections("clock.txt")
    assert list(sections) == ["", "one two", "three"] and sections["three"] == []
    assert sections["one two"][0][0].line == 3
    assert told.values("versions.txt") == {} and told.get("versions.txt") is None


def test_lines_of_another_form_are_refused(tmp_path):
    told = read_recordings(write(tmp_path, {"env.txt": "A=1\nwhat is this\n"}))[0]
    with pytest.raises(UserError, match=r"env.txt:2  what is this\n.*NAME=VALUE"):
        told.values("env.txt")


@pytest.mark.parametrize(
    "name", ["../env.txt", "env.txt.bak", "npu-smi_info.txt ", "hccn_rm_0.txt", "hccn_link_99999.txt"]
)
def test_other_names_are_no_records(name):
    assert not is_record(name)


def test_nothing_to_read_is_told(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        read_recordings(tmp_path / "missing")
    with pytest.raises(UserError, match="Nothing that the doctor reads"):
        read_recordings(tmp_path)


def test_nothing_is_overwritten(tmp_path):
    write(tmp_path / "full", {"env.txt": ""})
    with pytest.raises(UserError, match="something there already"):
        write_recording(recording(clean()), tmp_path / "full")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="something there already"):
        write_recording(recording(clean()), tmp_path / "file")
    with pytest.raises(RunError, match="cannot be written"):
        write_recording(recording(clean()), tmp_path / "file" / "below")


def test_bytes_of_any_kind_are_read(tmp_path):
    (tmp_path / "env.txt").write_bytes(b"\xff\xfe\x00A=1\n")
    (tmp_path / "versions.txt").write_bytes("\ufeffcann=9.0.0\n".encode())
    told = read_recordings(tmp_path)[0]
    assert told.values("versions.txt")["cann"].text == "9.0.0"
