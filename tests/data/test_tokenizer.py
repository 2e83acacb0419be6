"""Every kind of tokenizer behind one interface: round trips, cache, and what is said where one does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from msparallel.data.corpus import open_corpus
from msparallel.data.tokenizer import byte_tokenizer, load_tokenizer, open_tokenizer, train_bpe
from msparallel.errors import RunError, UserError

pytestmark = pytest.mark.pure
SAMPLE = open_corpus(str(Path(__file__).with_name("sample_corpus.txt")))
BYTE = byte_tokenizer()


@pytest.fixture(scope="module")
def bpe():
    return train_bpe(SAMPLE, 512)


def word_level(*words: str) -> Backend:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


@given(st.text())
@settings(max_examples=50, deadline=None)
def test_bytes_are_utf8(text):
    ids = BYTE.encode([text])[0]
    assert ids == list(text.encode())
    assert BYTE.decode(ids) == text


def test_byte_tokenizer_sizes():
    assert (BYTE.vocab_size, BYTE.eos_id) == (257, 256)
    assert BYTE.decode([72, 256, 105, 9999]) == "Hi"
    assert BYTE.encode([]) == [] and BYTE.encode([""]) == [[]]


def test_bpe_covers_any_text_and_uses_the_vocabulary(bpe):
    texts = [*SAMPLE.documents(), "\x00\t\x7f 猫 é 🙂\r\n"]
    encoded = bpe.encode(texts)
    assert [bpe.decode(ids) for ids in encoded] == texts
    assert bpe.vocab_size == 512
    assert max(max(ids) for ids in encoded) < 512
    assert sum(map(len, encoded)) < 0.5 * sum(len(text.encode()) for text in texts)


def test_bpe_is_deterministic(bpe):
    assert train_bpe(SAMPLE, 512).sha256 == bpe.sha256


def test_bpe_of_a_large_corpus_reads_a_sample_of_it(monkeypatch, bpe):
    monkeypatch.setattr("msparallel.data.tokenizer.BPE_SAMPLE_BYTES", SAMPLE.size_bytes // 3)
    sampled = train_bpe(SAMPLE, 512)
    assert sampled.sha256 == train_bpe(SAMPLE, 512).sha256 != bpe.sha256
    assert len(sampled.encode(["morning"])[0]) < len("morning")
    monkeypatch.setattr("msparallel.data.tokenizer.BPE_SAMPLE_BYTES", 0)
    assert train_bpe(SAMPLE, 512).vocab_size > 257  # the first document, always


def test_end_of_text_inside_a_document_is_text(bpe):
    for tokenizer in (bpe, BYTE):
        ids = tokenizer.encode(["a<|endoftext|>b"])[0]
        assert tokenizer.eos_id not in ids
        assert tokenizer.decode(ids) == "a<|endoftext|>b"


def test_saved_tokenizer_is_the_same_one(tmp_path, bpe):
    for name, tokenizer in {"bpe": bpe, "byte": BYTE}.items():
        tokenizer.save(tmp_path / name)
        for path in (tmp_path / name, tmp_path / name / "tokenizer.json"):
            loaded = load_tokenizer(path)
            assert (loaded.sha256, loaded.eos_id) == (tokenizer.sha256, tokenizer.eos_id)
            assert loaded.encode(["the mill, é"]) == tokenizer.encode(["the mill, é"])


def test_saving_where_nothing_can_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="tokenizer.json: cannot be written"):
        BYTE.save(tmp_path / "file")


def test_trained_tokenizer_is_cached(tmp_path, capsys, bpe):
    first = open_tokenizer("bpe", corpus=SAMPLE, vocab_size=512, cache_dir=tmp_path)
    assert "Training a BPE of 512 tokens" in capsys.readouterr().err
    again = open_tokenizer("bpe", corpus=SAMPLE, vocab_size=512, cache_dir=tmp_path)
    assert capsys.readouterr().err == ""
    assert first.sha256 == again.sha256 == bpe.sha256


def test_damaged_cached_tokenizer_is_trained_again(tmp_path, capsys):
    first = open_tokenizer("bpe", corpus=SAMPLE, vocab_size=300, cache_dir=tmp_path)
    (file,) = tmp_path.glob("bpe-300-*.json")
    for damage in (file.read_bytes()[:1000], b"", b"\xff\xfe"):
        file.write_bytes(damage)
        capsys.readouterr()
        assert open_tokenizer("bpe", corpus=SAMPLE, vocab_size=300, cache_dir=tmp_path).sha256 == first.sha256
        assert f"{file}: the cached tokenizer is damaged. It is built again." in capsys.readouterr().err


def test_small_corpus_gives_fewer_tokens_and_says_so(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("abab abab")
    corpus = open_corpus(str(tmp_path / "a.txt"))
    tokenizer = open_tokenizer("bpe", corpus=corpus, vocab_size=4096, cache_dir=tmp_path)
    assert 257 < tokenizer.vocab_size < 270
    assert f"too small for 4,096 tokens; the tokenizer has {tokenizer.vocab_size}" in capsys.readouterr().err


def test_foreign_tokenizer_neither_pads_nor_truncates_nor_adds_tokens(tmp_path):
    backend = word_level("<unk>", "</s>", "a", "b")
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.post_processor = processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 1)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode(["a b a b c", "a"]) == [[2, 3, 2, 3, 0], [2]]
    assert (tokenizer.eos_id, tokenizer.vocab_size) == (1, 4)


@pytest.mark.parametrize("stated", ["<stop>", {"content": "<stop>", "lstrip": False}])
def test_tokenizer_config_names_the_end_of_text(tmp_path, stated):
    word_level("<unk>", "</s>", "<stop>").save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": stated}))
    assert load_tokenizer(tmp_path).eos_id == 2


def test_tokenizer_without_end_of_text(tmp_path):
    word_level("<unk>", "a").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"No end-of-text token.*<\|endoftext\|>, .*tokenizer_config.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<gone>"}')
    with pytest.raises(UserError, match="none of <gone> is in the vocabulary"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with pytest.raises(UserError, match="tokenizer_config.json beside it is not a JSON object"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[1, 2"])
def test_unreadable_tokenizer_file(tmp_path, content):
    file = tmp_path / "tokenizer.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        open_tokenizer(str(file), corpus=SAMPLE, vocab_size=512, cache_dir=tmp_path)
    assert str(caught.value).startswith(f"data.tokenizer: {file}\n  {file} ")
    assert "Try: data.tokenizer=bpe" in str(caught.value)


def test_vocabulary_smaller_than_the_tokenizer(tmp_path):
    with pytest.raises(UserError) as caught:
        open_tokenizer("byte", corpus=SAMPLE, vocab_size=256, cache_dir=tmp_path)
    for words in ("has 257 ids", "model.vocab_size is 256", "Try: model.vocab_size=257"):
        assert words in str(caught.value)
    open_tokenizer("byte", corpus=SAMPLE, vocab_size=257, cache_dir=tmp_path)
    with pytest.raises(UserError, match="Try: model.vocab_size=257"):
        open_tokenizer("bpe", corpus=SAMPLE, vocab_size=256, cache_dir=tmp_path)


def test_bad_corpus_is_reported_from_within_training(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"text": \n')
    corpus = open_corpus(str(tmp_path / "a.jsonl"))
    with pytest.raises(UserError, match=r"a\.jsonl:2  not a JSON document"):
        open_tokenizer("bpe", corpus=corpus, vocab_size=300, cache_dir=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("bpe*"))


def test_text_without_utf8_form():
    with pytest.raises(UserError, match="half of a surrogate pair"):
        BYTE.encode(["fine", "a\ud800"])
