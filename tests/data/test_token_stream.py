"""The token cache: what it holds, that it is used again, and that damage is found and mended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from msparallel.data.corpus import open_corpus
from msparallel.data.token_stream import open_token_stream
from msparallel.data.tokenizer import byte_tokenizer, load_tokenizer
from msparallel.errors import RunError, UserError

pytestmark = pytest.mark.pure
SAMPLE = open_corpus(str(Path(__file__).with_name("sample_corpus.txt")))
BYTE = byte_tokenizer()


def test_stream_holds_every_document_and_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("msparallel.data.token_stream._ENCODE_CHARS", 5000)  # several calls of the tokenizer
    stream = open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    expected = [[*text.encode(), 256] for text in SAMPLE.documents()]
    assert stream.tokens.dtype == np.uint16
    assert stream.tokens.tolist() == sum(expected, [])
    assert stream.lengths.tolist() == [len(ids) for ids in expected]
    assert len(np.unique(stream.hashes)) == len(expected)


def test_large_vocabulary_takes_four_bytes(tmp_path):
    vocabulary = {"<unk>": 0, "</s>": 1, **{f"w{i}": i for i in range(2, 70001)}}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("w70000 w5\n")
    stream = open_token_stream(
        open_corpus(str(tmp_path / "a.txt")), load_tokenizer(tmp_path), cache_dir=tmp_path / "cache"
    )
    assert (stream.tokens.dtype, stream.tokens.tolist()) == (np.uint32, [70000, 5, 1])


def test_cache_is_used_again(tmp_path, capsys, monkeypatch):
    first = open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    assert "Encoding" in capsys.readouterr().err
    monkeypatch.setattr("msparallel.data.token_stream._build", None)
    again = open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    assert capsys.readouterr().err == ""
    assert np.array_equal(first.tokens, again.tokens)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("file", ["bin", "documents.npy", "json"])
def test_damaged_cache_is_built_again_with_a_notice(tmp_path, capsys, file, damage):
    first = open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    tokens, lengths = np.array(first.tokens), first.lengths
    (path,) = tmp_path.glob(f"tokens-*.{file}")
    damage(path)
    capsys.readouterr()
    again = open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    err = capsys.readouterr().err
    assert np.array_equal(again.tokens, tokens) and np.array_equal(again.lengths, lengths)
    assert "Encoding" in err
    # Without the description nothing counts as built: that is an interrupted build, not damage.
    assert ("It is built again." in err) == (file != "json" or damage is not Path.unlink)
    assert not list(tmp_path.glob("*.tmp"))


def test_what_a_killed_process_left_is_removed(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from msparallel.data.cache import write_atomically\n"
        "with write_atomically(Path(sys.argv[1], 'tokens-1.bin')) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert len(list(tmp_path.glob("tokens-1.bin.*.tmp"))) == 1
    open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    assert not list(tmp_path.glob("*.tmp")) and not (tmp_path / "tokens-1.bin").exists()


def test_failed_build_leaves_nothing(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    with pytest.raises(UserError, match=r"a\.jsonl:2"):
        open_token_stream(open_corpus(str(tmp_path / "a.jsonl")), BYTE, cache_dir=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_disk_full_is_a_run_error_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("msparallel.data.cache.os.replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_cache_directory_that_is_a_file(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(RunError, match="cache"):
        open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path / "cache")


def test_file_system_without_locks_still_builds(tmp_path, monkeypatch, capsys):
    def refuse(*args):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("msparallel.data.cache.fcntl.flock", refuse)
    assert open_token_stream(SAMPLE, BYTE, cache_dir=tmp_path).lengths.sum() > 60_000
    assert "this file system has no locks" in capsys.readouterr().err


def test_processes_that_start_together_build_once(tmp_path):
    code = (
        "import sys; from msparallel.data.dataset import open_dataset; data = open_dataset(source=sys.argv[1], "
        "tokenizer='bpe', vocab_size=512, seq_length=64, seed=1, eval_fraction=0.1, cache_dir=sys.argv[2]); "
        "print(data.fingerprint, data.train_tokens)"
    )
    command = [sys.executable, "-c", code, SAMPLE.source, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0], results
    assert len({out for out, _ in results}) == 1
    errors = "".join(err for _, err in results)
    assert errors.count("Training a BPE") == errors.count("Encoding") == 1
