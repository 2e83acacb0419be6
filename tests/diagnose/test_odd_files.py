"""Files as they come: other encodings, holes, closed folders, links, archives; hostile lines."""

import gzip
import os

import job_logs as logs
import pytest

from msparallel.diagnose.diagnose import diagnose
from msparallel.diagnose.lines import shown
from msparallel.diagnose.reader import blocks, encoding_of
from msparallel.diagnose.rule import rules
from msparallel.diagnose.wanted import Wanted

pytestmark = pytest.mark.pure
TEXT = logs.head(2, 4) + logs.out_of_memory(2, 75)


@pytest.mark.parametrize("written", [
    TEXT.encode("utf-16"), b"\xff\xfe" + TEXT.encode("utf-16-le"), TEXT.encode("utf-16-be"), TEXT.encode("utf-16-le"),
    TEXT.encode("utf-8-sig"), b"\0" * 9000 + TEXT.encode(), TEXT.encode().replace(b"\n", b"\n" + b"\0" * 20_000, 2),
    TEXT.replace("\n", "\r\n").encode(), gzip.compress(TEXT.encode("utf-16")),
])  # fmt: skip
def test_encodings_and_holes(written, tmp_path):
    (tmp_path / "worker_2.log").write_bytes(written)
    found = diagnose(tmp_path)
    assert (found.findings[0].rule.id, found.findings[0].rank) == ("device_out_of_memory", 2)
    assert found.findings[0].evidence[0].text.startswith("[ERROR] DEVICE(5002") and not found.left_out


def test_utf_16_is_whole_at_the_ends_of_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("msparallel.diagnose.reader.BLOCK_BYTES", 51)
    text = "".join(f"line {number} 内存\n" for number in range(200))
    (tmp_path / "a.log").write_bytes(text.encode("utf-16"))
    assert b"".join(blocks(tmp_path / "a.log")).decode() == text


@pytest.mark.parametrize("head", [b"ab\0cd", b"\x7fELF\2\1\1\0\0\0\0\0\0\0\0\0\3\0>\0", b"\0a" * 5 + b"\0\0b\0c\0"])
def test_what_is_no_text(head):
    assert encoding_of(head) is None


def test_chinese_of_older_systems_is_shown():
    assert shown("内存不足".encode("gb18030")) == "内存不足" == shown("内存不足".encode())
    assert shown("内存不足".encode()[:-1]) == "内存不", "a character that was cut off"
    assert "\\xff" in shown(b"\xff\xff\xff")


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    (tmp_path / "worker_0.log").write_text(TEXT)
    (tmp_path / "closed").mkdir()
    os.symlink("/etc", tmp_path / "etc")
    os.symlink(tmp_path, tmp_path / "loop")
    for name in ("a.tar.gz", "b.zip", "c.log.xz"):
        (tmp_path / name).write_bytes(b"x")
    real = os.scandir

    def scandir(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = diagnose(tmp_path)
    archive = "is an archive; unpack it first"
    assert found.files == 1
    assert dict(found.left_out) == {
        "closed": "cannot be listed: Permission denied", "etc": "is a symbolic link", "loop": "is a symbolic link",
        "a.tar.gz": archive, "b.zip": archive, "c.log.xz": archive}  # fmt: skip


def test_no_regex_hangs_on_near_misses():
    """Every regex on long lines that nearly fit, about its literal."""
    ready = Wanted(rules()).of("log").matchers
    tried = 0
    for matcher in ready:
        if matcher.regex is None:
            continue
        literal, head = matcher.literal, matcher.pattern.literal.encode()[:-1]
        runs = [run * 60_000 for run in (b"a", b"7", b" ", b"E")] + [b"[1] " * 9000, b"a." * 30_000, b"(" * 60_000]
        for line in (head * 9000, literal * 9000, *(run + literal + run for run in runs)):
            matcher.groups(line, line[1:], False)
            tried += 1
    assert tried > 1000


def test_of_a_long_line_the_part_that_matters_is_shown(tmp_path):
    (tmp_path / "worker_0.log").write_bytes(b"x" * (3 << 16) + b" EI0005: differ\n" + b"y" * (3 << 20))
    found = diagnose(tmp_path)
    assert "EI0005: differ" in found.findings[0].evidence[0].text and len(found.findings[0].evidence[0].text) < 500
    assert found.bytes_read == (3 << 16) + 16 + (3 << 20)
