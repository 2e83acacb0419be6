"""Tokens to text: one by one as at once, never half a character, stop strings wherever they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from msparallel.data.tokenizer import byte_level_backend, byte_tokenizer
from msparallel.errors import UserError
from msparallel.serve.answer_text import AnswerText
from msparallel.serve.sampling import Choice
from msparallel.serve.stop_strings import StopStrings
from msparallel.serve.token_text import Detokenizer, TokenText

pytestmark = pytest.mark.pure
TEXT = "Das ist ein Text. 这是一段文字，里面有汉字。 naïve café 😀👩‍👩‍👧 def f(x):\n    return x\n" * 20


def byte_level() -> Tokenizer:
    """A byte-level BPE that cut Chinese characters and emoji into pieces, with a control token."""
    backend = byte_level_backend(models.BPE())
    backend.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=330, special_tokens=["<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))  # fmt: skip
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("中 间", special=False)])
    return backend


def sentence_piece() -> Tokenizer:
    """As Llama 2's: U+2581 for a space, <0x0A> for what is not in the vocabulary."""
    vocabulary = {"<unk>": 0, "</s>": 1, **{f"<0x{byte:02X}>": 2 + byte for byte in range(256)}}
    for character in "▁abcdefghijklmnopqrstuvwxyzé中":
        vocabulary[character] = len(vocabulary)
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return backend


BYTE_LEVEL, SENTENCE_PIECE = byte_level(), sentence_piece()


def read(backend: Tokenizer, ids: list[int]) -> list[str]:
    reading = Detokenizer(TokenText.of(backend))
    return [*map(reading.feed, ids), reading.end()]


def check_byte_level(ids: list[int]) -> None:
    pieces = read(BYTE_LEVEL, ids)
    assert "".join(pieces) == BYTE_LEVEL.decode(ids, skip_special_tokens=True)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 5), max_size=40))
def test_any_ids_one_by_one_are_what_they_are_at_once(ids):
    check_byte_level(ids)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None)
@given(st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() + 5), max_size=200))
def test_any_ids_many(ids):
    check_byte_level(ids)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_any_text_comes_back_in_whole_characters(text):
    for backend in (BYTE_LEVEL, SENTENCE_PIECE):
        if backend is SENTENCE_PIECE:
            text = text.replace("▁", " ")  # the two are one to it
        ids = backend.encode(text, add_special_tokens=False).ids
        pieces = read(backend, ids)
        assert "".join(pieces) == text == backend.decode(ids, skip_special_tokens=False)
        assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text
        so_far = ""
        for piece in pieces:  # every piece goes on where the text stood: nothing is taken back
            so_far += piece
            assert text.startswith(so_far)


def test_half_a_character_is_never_shown():
    emoji = "👩‍👩‍👧".encode()
    pieces = read(byte_tokenizer()._backend, [*emoji])
    assert [piece for piece in pieces if piece] == ["👩", "\u200d", "👩", "\u200d", "👧"]
    assert read(byte_tokenizer()._backend, [*emoji[:2]])[-1] == "\ufffd"


def test_control_tokens_are_named_and_not_shown():
    text, end = TokenText.of(BYTE_LEVEL), BYTE_LEVEL.token_to_id("<|end|>")
    assert (text.shown(end), text.name(end), text.name(10**6)) == (b"", b"<|end|>", b"")
    assert text.shown(BYTE_LEVEL.token_to_id("<think>")) == b"<think>"
    assert text.shown(BYTE_LEVEL.token_to_id("中 间")) == "中 间".encode()


def test_another_kind_of_decoder_is_refused():
    backend = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UserError, match="decoder is WordPiece; byte-level BPE"):
        TokenText.of(backend)
    with pytest.raises(UserError, match="decoder is none"):
        TokenText.of(Tokenizer(models.BPE(vocab={"a": 0}, merges=[])))


def plain_stop(text: str, stops: list[str]) -> tuple[str, bool]:
    """By definition: letter by letter, until the text so far ends with a stop string, the longest of them."""
    for end in range(len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            return text[: end - max(map(len, met))], True
    return text, False


def check_stops(pieces: list[str], stops: list[str]) -> None:
    looking, shown, met = StopStrings(stops), "", False
    for piece in pieces:
        more, met = looking.feed(piece)
        shown += more
        if met:
            break
    expected, expected_met = plain_stop("".join(pieces), stops)
    assert expected.startswith(shown)
    assert (shown if met else shown + looking.end(), met) == (expected, expected_met)


PIECES = st.lists(st.text("ab\n", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


@settings(max_examples=600, deadline=None)
@given(PIECES, STOPS)
def test_stop_strings_however_the_text_is_cut(pieces, stops):
    check_stops(pieces, stops)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None)
@given(PIECES, STOPS)
def test_stop_strings_many(pieces, stops):
    check_stops(pieces, stops)


@settings(max_examples=300, deadline=None)
@given(st.text("aé😀\n", max_size=20), st.lists(st.text("aé😀\n", min_size=1, max_size=3), max_size=2))
def test_every_token_of_the_text_is_told_once_and_in_order(text, stops):
    reading = AnswerText(TokenText.of(byte_tokenizer()._backend), stops)
    pieces, fed = [], 0
    for byte in text.encode():
        pieces.append(reading.feed(Choice(byte)))
        fed += 1
        if reading.stopped:
            break
    pieces.append(reading.end())
    shown = "".join(piece.text for piece in pieces)
    told = [one for piece in pieces for one in piece.tokens]
    assert shown == plain_stop(text, stops)[0]
    assert bytes(one.choice.token for one in told).decode() == shown  # no token of a stop string is told
    assert [one.offset for one in told] == sorted(one.offset for one in told)
    if not reading.stopped:
        assert len(told) == fed
