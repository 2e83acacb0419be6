"""Documents from a source: this Python's standard library, plain text files, or JSON lines.

In: `python_stdlib`, a path, or a glob pattern. Out: a Corpus, whose `documents()` yields strings in a fixed order and
whose `sha256` says which text it was.

Plain text: a line that says `<|endoftext|>` ends a document; a document of more than 65,536 characters is cut at the
next line end, so that one large file is encoded in pieces, split and shuffled like many. Files that end in `.jsonl` or
`.ndjson` hold one JSON object a line with the text under `text_field`; those documents are never cut.

>>> corpus = open_corpus("python_stdlib")
>>> next(corpus.documents())[:20]   # doctest: +SKIP
'\"\"\"Record of phased-i'
"""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msparallel.errors import UserError

STDLIB = "python_stdlib"
END_OF_TEXT = "<|endoftext|>"
MAX_DOCUMENT_CHARS = 65536
JSONL_SUFFIXES = (".jsonl", ".ndjson")
# Tests repeat themselves, and what a machine or its owner put there is not the library's source.
_STDLIB_LEFT_OUT_DIRS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_STDLIB_LEFT_OUT_PREFIXES = ("_sysconfigdata", "sitecustomize", "usercustomize", "config-")


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Text files and how to read them.

    Attributes:
        source: as written in the recipe.
        files: in reading order.
        text_field: key of the text in JSON lines.
        size_bytes: of all files.
        sha256: of the files' contents and the way they are read (hexadecimal).
    """

    source: str
    files: tuple[Path, ...]
    text_field: str
    size_bytes: int
    sha256: str

    def documents(self) -> Iterator[str]:
        """Non-blank documents, file by file.

        Raises UserError: bytes that are not UTF-8, a bad JSON line, a missing text field (each with file and line), an
        unreadable file, no document at all.
        """
        empty = True
        for path in self.files:
            reader = self._json_texts(path) if _is_jsonl(path) else _plain_texts(path)
            for text in reader:
                if text.strip():
                    empty = False
                    yield text
        if empty:
            raise UserError(
                f"data.corpus: {self.source}\n  The corpus is empty: {len(self.files):,} file(s), "
                f"{self.size_bytes:,} bytes, and no text in them.\n  Try: data.corpus={STDLIB}"
            )

    def _json_texts(self, path: Path) -> Iterator[str]:
        for number, line in _lines(path):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply, or a number too long")
                raise UserError(
                    f"{path}:{number}  not a JSON document: {reason}.\n"
                    f"  Each line of a {path.suffix} file is one object, such as "
                    f'{{"{self.text_field}": "..."}}.'
                ) from error
            if not isinstance(record, dict):
                raise UserError(
                    f"{path}:{number}  a JSON {type(record).__name__}, not an object.\n"
                    f'  Each line of a {path.suffix} file is one object, such as {{"{self.text_field}": "..."}}.'
                )
            text = record.get(self.text_field)
            if not isinstance(text, str):
                raise _no_text(path, number, self.text_field, record)
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise UserError(
                    f'{path}:{number}  the text under "{self.text_field}" holds half of a surrogate pair '
                    f"(\\u{ord(text[error.start]):04x}), which is no character. Write the whole pair, or leave it out."
                ) from error
            yield text


def open_corpus(source: str, *, text_field: str = "text") -> Corpus:
    """Find the files of `source` and hash them.

    Args:
        source: `python_stdlib`, a path, or a glob pattern (`**` crosses directories); `~` is the home directory.
        text_field: key of the text in JSON lines.

    Raises UserError: no such file, a directory, a pattern that matches nothing, an unreadable file.
    """
    files = corpus_files(source)
    digest = hashlib.sha256()
    size_bytes = 0
    for path in files:
        # What a file says depends on how it is read, so the way is part of the hash; its name is not.
        way = f"jsonl {text_field}" if _is_jsonl(path) else "text"
        file_digest, file_bytes = _hash_file(path)
        digest.update(f"{way}\n{file_bytes}\n".encode() + file_digest)
        size_bytes += file_bytes
    return Corpus(
        source=source, files=tuple(files), text_field=text_field, size_bytes=size_bytes, sha256=digest.hexdigest()
    )


def corpus_files(source: str) -> list[Path]:
    """Files of `source` in reading order; nothing is hashed. Raises UserError as open_corpus does."""
    return _stdlib_files() if source == STDLIB else _find_files(source)


def document_hash(text: str) -> int:
    """64 bits that depend on the document's text alone (BLAKE2b)."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")


def _stdlib_files() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = [
            name
            for name in subdirectories
            if name not in _STDLIB_LEFT_OUT_DIRS and not name.startswith(_STDLIB_LEFT_OUT_PREFIXES)
        ]
        files += [
            Path(directory, name)
            for name in names
            if name.endswith(".py") and not name.startswith(_STDLIB_LEFT_OUT_PREFIXES)
        ]
    files = [path for path in files if _is_utf8(path)]
    if not files:
        raise UserError(
            f"data.corpus: {STDLIB}\n  This Python has no sources of its standard library under {root}.\n"
            "  Install them, or name text files: data.corpus=PATH"
        )
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def _is_utf8(path: Path) -> bool:
    """False for the few old sources that declare another encoding, and for dangling links."""
    try:
        path.read_bytes().decode("utf-8")
    except (UnicodeDecodeError, OSError):
        return False
    return True


def _find_files(source: str) -> list[Path]:
    path = Path(source).expanduser()
    if path.is_dir():
        raise UserError(
            f"data.corpus: {source}\n  This is a directory; say which of its files are meant.\n"
            f"  Try: data.corpus={path / '*.txt'}"
        )
    if path.exists():
        return [path]
    if glob.has_magic(source):
        files = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
        files = [file for file in files if file.is_file()]
        if files:
            return files
        raise UserError(
            f"data.corpus: {source}\n  No file matches this pattern in {Path.cwd()}.\n  Try: data.corpus={STDLIB}"
        )
    near = _near_names(path)
    raise UserError(f"data.corpus: {source}\n  No such file: {path.absolute()}.\n  Try: data.corpus={near or STDLIB}")


def _near_names(path: Path) -> str:
    """A file beside `path` with a similar name, or nothing."""
    try:
        names = sorted(entry.name for entry in path.parent.iterdir() if entry.is_file())
    except OSError:
        return ""
    near = difflib.get_close_matches(path.name, names, n=1)
    return str(path.with_name(near[0])) if near else ""


def _is_jsonl(path: Path) -> bool:
    return path.suffix.lower() in JSONL_SUFFIXES


def _hash_file(path: Path) -> tuple[bytes, int]:
    digest = hashlib.sha256()
    size_bytes = 0
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size_bytes += len(block)
    except OSError as error:
        raise _unreadable(path, error) from error
    return digest.digest(), size_bytes


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends; a line feed never stands inside a character of UTF-8, so lines decode alone."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number}  byte {error.start + 1} of the line (0x{error.object[error.start]:02x}) is not UTF-8.\n"
            f"  Convert the file first, for example: iconv -f LATIN1 -t UTF-8 {path.name} > utf8{path.suffix}"
        ) from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _plain_texts(path: Path) -> Iterator[str]:
    parts: list[str] = []
    chars = 0
    for _, line in _lines(path):
        if line.strip() == END_OF_TEXT:
            yield "".join(parts)
            parts, chars = [], 0
            continue
        for start in range(0, len(line), MAX_DOCUMENT_CHARS):  # more than once only for a line without an end in sight
            if chars >= MAX_DOCUMENT_CHARS:
                yield "".join(parts)
                parts, chars = [], 0
            parts.append(line[start : start + MAX_DOCUMENT_CHARS])
            chars += len(parts[-1])
    yield "".join(parts)


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(f"data.corpus: {path}\n  Cannot be read: {error.strerror or error}.")


def _no_text(path: Path, number: int, text_field: str, record: dict[str, object]) -> UserError:
    strings = [key for key, value in record.items() if isinstance(value, str)]
    if text_field in record:
        reason = f'"{text_field}" is a {type(record[text_field]).__name__}, not a string'
    else:
        reason = f'no field "{text_field}"'
    fix = f"\n  Try: data.text_field={strings[0]}" if strings else ""
    known = ", ".join(f'"{key}"' for key in list(record)[:8]) or "none"
    return UserError(f"{path}:{number}  data.text_field: {text_field}\n  {reason}; the object has: {known}.{fix}")
