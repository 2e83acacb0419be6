"""Documents from every kind of source, and what is said where a source is wrong."""

from __future__ import annotations

import json
import runpy
import sysconfig
from pathlib import Path

import pytest

from msparallel.data.corpus import MAX_DOCUMENT_CHARS, STDLIB, open_corpus
from msparallel.errors import UserError

pytestmark = pytest.mark.pure
SAMPLE = Path(__file__).with_name("sample_corpus.txt")


def documents(path: Path, **options: str) -> list[str]:
    return list(open_corpus(str(path), **options).documents())


def test_sample_corpus_is_what_its_script_writes():
    script = runpy.run_path(str(SAMPLE.with_name("make_sample_corpus.py")))
    assert SAMPLE.read_bytes() == script["make_sample_corpus"]().encode()
    assert 60_000 < SAMPLE.stat().st_size < 100_000


def test_standard_library_leaves_out_tests_and_what_the_machine_put_there():
    corpus = open_corpus(STDLIB)
    root = Path(sysconfig.get_path("stdlib"))
    names = [path.relative_to(root).as_posix() for path in corpus.files]
    assert "argparse.py" in names and "json/decoder.py" in names
    assert names == sorted(names)
    left_out = ("test/", "site-packages/", "dist-packages/", "_sysconfigdata", "sitecustomize", "idlelib/idle_test/")
    assert not [name for name in names if name.startswith(left_out) or "/tests/" in name or "/test/" in name]
    assert corpus.size_bytes > 5_000_000
    assert corpus.sha256 == open_corpus(STDLIB).sha256
    assert Path(root, names[0]).read_text(encoding="utf-8").startswith(next(corpus.documents())[:1000])


def test_plain_text_splits_at_end_of_text_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n<|endoftext|>\n \n<|endoftext|>\nthree <|endoftext|> four\n")
    assert documents(tmp_path / "a.txt") == ["one\ntwo\n", "three <|endoftext|> four\n"]


def test_byte_order_mark_and_windows_lines(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n<|endoftext|>\r\ntwo\r\n")
    assert documents(tmp_path / "a.txt") == ["one\r\n", "two\r\n"]


@pytest.mark.parametrize("line", ["x" * 99 + "\n", "y" * (3 * MAX_DOCUMENT_CHARS + 5)])
def test_long_text_is_cut_and_nothing_is_lost(tmp_path, line):
    text = line * 2000 if len(line) == 100 else line
    (tmp_path / "a.txt").write_text(text)
    parts = documents(tmp_path / "a.txt")
    assert "".join(parts) == text
    assert all(MAX_DOCUMENT_CHARS <= len(part) < MAX_DOCUMENT_CHARS + len(line) for part in parts[:-1])
    assert len(parts) > 2


def test_glob_reads_sorted_files_and_hash_follows_content_not_names(tmp_path):
    (tmp_path / "b.txt").write_text("second")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "c.md").write_text("other")
    corpus = open_corpus(str(tmp_path / "*.txt"))
    assert list(corpus.documents()) == ["first", "second"]
    (tmp_path / "b.txt").rename(tmp_path / "z.txt")
    assert open_corpus(str(tmp_path / "*.txt")).sha256 == corpus.sha256
    (tmp_path / "z.txt").write_text("secone")
    assert open_corpus(str(tmp_path / "*.txt")).sha256 != corpus.sha256
    (tmp_path / "a.txt").write_text("firsts")
    (tmp_path / "z.txt").write_text("econd")
    assert open_corpus(str(tmp_path / "*.txt")).sha256 != corpus.sha256


def test_json_lines(tmp_path):
    long = "w" * (2 * MAX_DOCUMENT_CHARS)
    lines = [json.dumps({"text": "né\n", "n": 1}), "", json.dumps({"text": long}), json.dumps({"text": " "})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert documents(tmp_path / "a.jsonl") == ["né\n", long]
    (tmp_path / "b.ndjson").write_text('{"body": "b", "text": "t"}\n')
    assert documents(tmp_path / "b.ndjson", text_field="body") == ["b"]
    one, other = (open_corpus(str(tmp_path / "b.ndjson"), text_field=field) for field in ("body", "text"))
    assert one.sha256 != other.sha256


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "a"', ["not a JSON document", "delimiter"]),
        (b"[" * 100_000, ["not a JSON document", "nested too deeply"]),
        (b'{"text": ' + b"1" * 5000 + b"}", ["not a JSON document"]),
        (b'["a"]', ["a JSON list, not an object"]),
        (b'{"body": "a", "id": 3}', ['no field "text"', '"body", "id"', "Try: data.text_field=body"]),
        (b"{}", ['no field "text"', "none"]),
        (b'{"text": 5}', ['"text" is a int']),
        (b'{"text": "\\ud83d"}', ["half of a surrogate pair", "\\ud83d"]),
        (b'{"text": "caf\xe9"}', ["byte 14 of the line (0xe9) is not UTF-8", "iconv"]),
    ],
)
def test_bad_json_line_says_file_and_line(tmp_path, line, words):
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    with pytest.raises(UserError) as caught:
        documents(tmp_path / "a.jsonl")
    assert str(caught.value).startswith(f"{tmp_path / 'a.jsonl'}:3  ")
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_text_that_is_not_utf8_says_file_and_line(tmp_path):
    (tmp_path / "a.txt").write_bytes("gut\nschön\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"a\.txt:2  byte 4 of the line \(0xf6\) is not UTF-8"):
        documents(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("corpus.tx", ["No such file", "Try: data.corpus=corpus.txt"]),
        ("elsewhere/nothing.bin", ["No such file", "Try: data.corpus=python_stdlib"]),
        ("folder", ["is a directory", "Try: data.corpus=folder/*.txt"]),
        ("*.csv", ["No file matches", "Try: data.corpus=python_stdlib"]),
    ],
)
def test_source_that_is_not_there(tmp_path, monkeypatch, source, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text("text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError) as caught:
        open_corpus(source)
    assert str(caught.value).startswith(f"data.corpus: {source}\n")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(("name", "content"), [("a.txt", ""), ("a.txt", " \n\n"), ("a.jsonl", '{"text": ""}\n')])
def test_empty_corpus(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match="The corpus is empty"):
        documents(tmp_path / name)


def test_unreadable_file(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UserError, match=r"a\.txt\n  Cannot be read: Permission denied"):
        open_corpus(str(tmp_path / "a.txt"))
