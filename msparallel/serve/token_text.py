"""Token ids -> text, one by one, never half a character.

In: a tokenizer, ids as they are chosen. Out: text that is safe to show; what is not yet a whole character waits for the
next token. A token stands for bytes, so the text is the bytes of all tokens, decoded: the same however it is cut.

>>> from msparallel.data.tokenizer import byte_tokenizer
>>> reading = Detokenizer(TokenText.of(byte_tokenizer()._backend))
>>> [reading.feed(byte) for byte in "né".encode()], reading.end()
(['n', '', 'é'], '')

Two kinds of vocabulary are known: byte-level BPE (GPT-2, Llama 3, Qwen), in which a printable character stands for
each byte, and SentencePiece (Llama 2), in which U+2581 stands for a space and <0x0A> for a byte. Bytes that are no
UTF-8 become U+FFFD, as many as the Unicode standard recommends (one for each maximal part of a character).
"""

from __future__ import annotations

import codecs
import json
import re
from typing import Any

import tokenizers

from msparallel.data.tokenizer import byte_characters
from msparallel.errors import UserError

_SPACE = "\u2581"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SENTENCE_PIECE = {"Metaspace", "ByteFallback", "Replace"}


class TokenText:
    """What each id stands for.

    Args:
        backend: the tokenizer.
        byte_level: whether its vocabulary is byte-level BPE; SentencePiece otherwise.
        special: ids of control tokens, which no text shows.
    """

    def __init__(self, backend: tokenizers.Tokenizer, byte_level: bool, special: frozenset[int]):
        self._backend, self._byte_level, self._special = backend, byte_level, special
        self._bytes_of = {character: byte for byte, character in enumerate(byte_characters())}
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, description: dict[str, Any] | None = None) -> TokenText:
        """Args:
        description: the tokenizer's JSON form, where the caller has it.

        Raises UserError for a decoder of another kind.
        """
        description = description or json.loads(backend.to_str())
        special = frozenset(token["id"] for token in description.get("added_tokens") or () if token.get("special"))
        return cls(backend, _is_byte_level(description.get("decoder")), special)

    def name(self, token: int) -> bytes:
        """Bytes of a token, control tokens under their names; empty for an id that the tokenizer does not have."""
        if token not in self._known:
            self._known[token] = self._look_up(token)
        return self._known[token]

    def shown(self, token: int) -> bytes:
        """Bytes that a text shows."""
        return b"" if token in self._special else self.name(token)

    def _look_up(self, token: int) -> bytes:
        name = self._backend.id_to_token(token)
        if name is None:
            return b""
        if self._byte_level:
            found = [self._bytes_of.get(character) for character in name]
            # A token that was added by hand is written as it is.
            return name.encode() if None in found else bytes(byte for byte in found if byte is not None)
        if byte := _BYTE.fullmatch(name):
            return bytes([int(byte[1], 16)])
        return name.replace(_SPACE, " ").encode()


class Detokenizer:
    """The text of one answer as it grows."""

    def __init__(self, tokens: TokenText):
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """What can be shown now and could not before."""
        return self._decoder.decode(self._tokens.shown(token))

    @property
    def holds(self) -> bool:
        """Whether the last character is not whole yet."""
        return bool(self._decoder.getstate()[0])

    def end(self) -> str:
        """U+FFFD where the answer ends inside a character, else nothing."""
        return self._decoder.decode(b"", final=True)


def _is_byte_level(decoder: Any) -> bool:
    steps = decoder.get("decoders", [decoder]) if isinstance(decoder, dict) else []
    kinds = {step.get("type") for step in steps if isinstance(step, dict)}
    if "ByteLevel" in kinds:
        return True
    if kinds & _SENTENCE_PIECE:
        return False
    told = ", ".join(sorted(map(str, kinds))) or "none"
    raise UserError(f"The tokenizer's decoder is {told}; byte-level BPE (ByteLevel) and SentencePiece (Metaspace, "
                    "ByteFallback) are served.")  # fmt: skip
