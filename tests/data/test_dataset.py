"""From a recipe's values to batches in one call, and every way in which the values do not fit the data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msparallel.data.corpus import Corpus, open_corpus
from msparallel.data.dataset import Dataset, open_dataset
from msparallel.errors import UserError
from msparallel.recipe.override import read_overrides

pytestmark = pytest.mark.pure
SAMPLE = str(Path(__file__).with_name("sample_corpus.txt"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def opened(cache: Path, **changes: Any) -> Dataset:
    values = dict(
        source=SAMPLE, tokenizer="byte", vocab_size=257, seq_length=64, seed=3, eval_fraction=0.1, cache_dir=cache
    )
    return open_dataset(**{**values, **changes})


def suggestions(error: UserError) -> list[dict[str, Any]]:
    """The overrides after `Try:` as arguments of `opened`."""
    options = str(error).split("Try: ")[1].split(", or ")
    typed, refused, problems = read_overrides(options)
    assert typed and not refused and not problems, problems  # the schema takes every one
    pairs = [option.split("=") for option in options if not option.startswith("data.corpus")]
    return [{key.split(".")[1]: float(value) if "." in value else int(value)} for key, value in pairs]


def test_dataset_of_the_sample(cache):
    data = opened(cache)
    assert data.train_tokens + data.eval_tokens == len(Path(SAMPLE).read_bytes()) - 96 * len("<|endoftext|>\n") + 97
    assert 0.1 <= data.eval_tokens / (data.train_tokens + data.eval_tokens) < 0.15
    assert data.corpus_sha256 == open_corpus(SAMPLE).sha256
    assert "97 documents" in data.summary() and data.corpus_sha256 in data.summary()
    batch = data.train_loader(global_batch_size=4).global_batch(0)
    assert batch.input_ids.shape == (4, 64)
    text = "".join(Path(SAMPLE).read_text(encoding="utf-8").split("<|endoftext|>\n"))
    for row in batch.input_ids:
        pieces = bytes(int(i) for i in row if i < 256) if 256 not in row else b""
        assert pieces.decode(errors="ignore") in text


def test_everything_is_the_same_again(cache, tmp_path):
    one, other = opened(cache, tokenizer="bpe", vocab_size=512), opened(tmp_path, tokenizer="bpe", vocab_size=512)
    assert one.fingerprint == other.fingerprint
    a, b = (data.train_loader(global_batch_size=8).global_batch(11) for data in (one, other))
    assert np.array_equal(a.input_ids, b.input_ids)
    # ... and with the trained tokenizer named by its path.
    one.tokenizer.save(tmp_path / "saved")
    assert opened(tmp_path, tokenizer=str(tmp_path / "saved"), vocab_size=512).fingerprint == one.fingerprint


def test_fingerprint_follows_what_decides_the_sequences(cache):
    base = opened(cache).fingerprint
    assert opened(cache, seed=4).fingerprint == base  # the seed stands in the state by itself
    changed = [
        opened(cache, seq_length=65),
        opened(cache, eval_fraction=0.2),
        opened(cache, tokenizer="bpe", vocab_size=300),
    ]
    assert len({base, *(data.fingerprint for data in changed)}) == 4


def test_split_does_not_depend_on_the_seed(cache):
    one, other = (next(opened(cache, seed=seed).eval_batches(batch_size=2)) for seed in (1, 2))
    assert np.array_equal(one.input_ids, other.input_ids)


def test_without_evaluation(cache):
    data = opened(cache, eval_fraction=0)
    assert data.eval is None and data.eval_tokens == 0
    assert list(data.eval_batches(batch_size=4)) == []


def test_checkpoint_of_other_data_is_refused(cache):
    state = opened(cache).train_loader(global_batch_size=4).state(5)
    with pytest.raises(UserError, match="seq_length: 64 in the checkpoint, 32 now"):
        opened(cache, seq_length=32).train_loader(global_batch_size=4).restore(state)


def test_a_part_of_the_standard_library(cache, monkeypatch):
    def part_of_it(source: str, *, text_field: str) -> Corpus:
        files = [path for path in open_corpus(source).files if path.parent.name in ("json", "email")]
        return Corpus(source=source, files=tuple(files), text_field=text_field, size_bytes=400_000, sha256="part")

    monkeypatch.setattr("msparallel.data.dataset.open_corpus", part_of_it)
    data = opened(cache, source="python_stdlib", tokenizer="bpe", vocab_size=1024)
    assert data.train_tokens > 50_000
    batch = data.eval.batch([0])
    assert data.tokenizer.decode(batch.input_ids[0])


def test_data_shorter_than_one_sequence(cache, tmp_path):
    (tmp_path / "a.txt").write_text("0123456789")
    with pytest.raises(UserError, match="has 11 tokens; one sequence takes 65.*\n.*Try: train.seq_length=10") as caught:
        opened(cache, source=str(tmp_path / "a.txt"), eval_fraction=0)
    (fix,) = suggestions(caught.value)
    opened(cache, source=str(tmp_path / "a.txt"), eval_fraction=0, **fix)


@pytest.mark.parametrize(
    ("texts", "changes", "words"),
    [
        (["d" * 5, "b" * 300, "c" * 200], {"eval_fraction": 0.001}, "evaluation split has 7 tokens of 510 (1 of 3"),
        (["a" * 400], {"eval_fraction": 0.1}, "leaves 0 for training"),
        (["a" * 30, "b" * 30, "c" * 30], {"eval_fraction": 0.3}, "fewer than one sequence of 65"),
        (["a" * 300, "b" * 300, "c" * 30], {"eval_fraction": 0.95}, "than one sequence of 65"),
        (["a" * 200, "b" * 5], {"eval_fraction": 0.6, "seq_length": 150}, "fewer than one sequence of 151"),
        (["b" * 5, "a" * 70], {"eval_fraction": 0.4, "seq_length": 70}, "fewer than one sequence of 71"),
    ],
)
def test_split_too_short_names_values_that_work(cache, tmp_path, texts, changes, words):
    # Which text goes to evaluation first is fixed by its hash: of the first case, the short one.
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(texts))
    with pytest.raises(UserError) as caught:
        opened(cache, source=str(tmp_path / "a.txt"), **changes)
    assert words in str(caught.value), str(caught.value)
    for fix in suggestions(caught.value):
        opened(cache, source=str(tmp_path / "a.txt"), **{**changes, **fix})


def test_batch_larger_than_the_data(cache):
    data = opened(cache)
    with pytest.raises(UserError) as caught:
        data.train_loader(global_batch_size=100_000)
    assert f"can be at most {len(data.train):,} here" in str(caught.value)
    data.train_loader(global_batch_size=len(data.train))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"eval_fraction": 1.0}, "data.eval_fraction: 1.0"),
        ({"eval_fraction": -0.1}, "data.eval_fraction: -0.1"),
        ({"eval_fraction": float("nan")}, "data.eval_fraction: nan"),
        ({"seq_length": 0}, "train.seq_length: 0"),
        ({"seed": -1}, "train.seed: -1"),
        ({"source": "/no/such/corpus.txt"}, "data.corpus: /no/such/corpus.txt"),
        ({"tokenizer": "/no/such/tokenizer.json"}, "data.tokenizer: /no/such/tokenizer.json"),
        ({"vocab_size": 100}, "Try: model.vocab_size=257"),
    ],
)
def test_values_that_cannot_be(cache, changes, words):
    with pytest.raises(UserError) as caught:
        opened(cache, **changes)
    assert words in str(caught.value)
    assert "Try: " in str(caught.value)


def test_reading_data_does_not_import_mindspore():
    code = "import sys, msparallel.data.dataset; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
