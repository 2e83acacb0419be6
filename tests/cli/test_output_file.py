"""Files that verbs write: whole, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from msparallel.cli.main import main
from msparallel.cli.output_file import write_output
from msparallel.errors import UserError
from msparallel.report.scatter import check_picture

pytestmark = pytest.mark.pure


class Full:
    """A file that takes half of what it is given, as the last one on a full disk does."""

    def __init__(self, descriptor: int, mode: str, encoding: str):
        self._file = open(descriptor, mode, encoding=encoding)  # noqa: SIM115 - closed by __exit__

    def __enter__(self) -> Full:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, text: str) -> int:
        self._file.write(text[: len(text) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("older", [None, "older"])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, monkeypatch, older):
    monkeypatch.setattr("msparallel.cli.output_file.open", Full, raising=False)
    target = tmp_path / "x.yaml"
    if older:
        target.write_text(older)
    with pytest.raises(UserError, match="No space left"):
        write_output(str(target), "newer" * 100, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ([target.name] if older else [])
    assert not older or target.read_text() == older


def test_modes_links_and_names(tmp_path: Path):
    old = os.umask(0o027)
    try:
        write_output(str(tmp_path / "a.yaml"), "1", force=False)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.yaml").stat().st_mode) == 0o640
    (tmp_path / "a.yaml").chmod(0o600)
    (tmp_path / "link").symlink_to("a.yaml")
    (tmp_path / "nowhere").symlink_to("gone/x")
    write_output(str(tmp_path / "link"), "2", force=True)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a.yaml").read_text() == "2"
    assert stat.S_IMODE((tmp_path / "a.yaml").stat().st_mode) == 0o600
    write_output(str(tmp_path / ("n" * 255)), "3", force=False)
    with pytest.raises(UserError, match="exists and differs"):
        write_output(str(tmp_path / "link"), "4", force=False)
    for name in ("gone/x", "nowhere", ".", "n" * 256, "a\0b", ""):
        with pytest.raises(UserError, match="cannot be written"):
            write_output(str(tmp_path / name) if name else "", "5", force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.yaml", "link", "nowhere", "n" * 255])


def test_devices_are_written_as_they_are():
    write_output(os.devnull, "1", force=False)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize("name", ["gone/x.png", "file/x.png"])
def test_a_picture_without_a_folder_is_refused_before_the_work(tmp_path: Path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written") as error:
        check_picture(tmp_path / name)
    assert error.value.exit_code == 2
    check_picture(tmp_path / "x.png")


@pytest.mark.parametrize("words", [
    ["profile", ".", "--report", "gone/x.html"],
    ["plan", "quickstart", "--report", "gone/x.html"],
    ["queue-simulate", "--synthetic", "1", "--days", "1", "--plot", "gone/x.png"],
    ["queue-simulate", "--synthetic", "1", "--days", "1", "--save-trace", "gone/x.csv"],
    ["queue-simulate", "--synthetic", "1", "--days", "1", "--plot", "x.gif"],
    ["monitor", "run", "--textfile", "gone/x.prom", "--once"],
    ["bench-serve", "http://127.0.0.1:9", "--plot", "gone/x.png"],
    ["bench-serve", "http://127.0.0.1:9", "--plot", "x.svg"],
    ["plan-evaluate", "x.csv", "--plot", "gone/x.png"],
    ["cp", "quickstart", "gone/x.yaml"],
])  # fmt: skip
def test_a_place_that_cannot_be_written_is_wrong_input_of_every_verb(tmp_path: Path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run" / "logs").mkdir(parents=True)
    with pytest.raises(SystemExit) as end:
        main(words)
    told = capsys.readouterr()
    place = next(word for word in words if "x." in word and word != "x.csv")
    assert end.value.code == 2 and place in told.err and "Traceback" not in told.err, told.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
