"""The tokenizer of what is served: ids for prompts, control tokens, where an answer ends, defaults of sampling.

In: a folder with tokenizer.json, and tokenizer_config.json, generation_config.json, chat_template.jinja where they
are; or nothing, for random weights. Out: a TextTokenizer.

>>> tokenizer = TextTokenizer.bytes(vocab_size=300)
>>> tokenizer.encode("Hi<|endoftext|>")[:4], sorted(tokenizer.end_ids)
([72, 105, 60, 124], [256])

Text of a client is text: "<|im_end|>" in it becomes the characters, never the control token. Only a chat template puts
control tokens into a prompt (`chat_prompt.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, models

from msparallel.data.tokenizer import byte_characters, byte_level_backend
from msparallel.errors import UserError, short
from msparallel.serve.token_text import TokenText

_MAX_BYTES = 512 * 1024 * 1024
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class SpecialToken:
    """A control token; `strips_left` and `strips_right` take the white space beside it."""

    id: int
    text: str
    strips_left: bool = False
    strips_right: bool = False


@dataclass(frozen=True)
class SamplingDefaults:
    """Where a request does not say: what generation_config.json recommends, else OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class TextTokenizer:
    """Attributes:
    vocab_size: highest id + 1.
    end_ids: ids that end an answer.
    special: control tokens.
    named: bos_token, eos_token ... as templates know them.
    template: the chat template's text; None where the model has none.
    longest: bytes of the longest token.
    """

    vocab_size: int
    end_ids: frozenset[int]
    special: tuple[SpecialToken, ...]
    named: Mapping[str, str | list[str]]
    template: str | None
    defaults: SamplingDefaults
    text: TokenText
    longest: int
    _plain: tokenizers.Tokenizer = field(repr=False)
    _parsing: tokenizers.Tokenizer = field(repr=False)
    _bos: int | None = None
    _adds_bos: bool | None = None

    @classmethod
    def open(cls, folder: Path) -> TextTokenizer:
        """Raises UserError: no tokenizer.json, or one that is not understood; a damaged file beside it."""
        path = folder / "tokenizer.json"
        source = _read(path)
        if source is None:
            raise UserError(f"{path}\n  There is no such file: text cannot be turned into tokens. A model folder from "
                            "Hugging Face has one, and training writes it beside its checkpoints.")  # fmt: skip
        config = _object(folder / "tokenizer_config.json")
        generation = _object(folder / "generation_config.json")
        try:
            backends = [tokenizers.Tokenizer.from_str(source) for _ in range(2)]
        except Exception as error:  # the library raises no narrower class
            raise UserError(f"{path}\n  This is no tokenizer.json: {short(error)}.") from None
        named = _named(config)
        template = _read(folder / "chat_template.jinja")
        if template is None:
            template = _template(config, folder / "tokenizer_config.json")
        try:
            return cls._of(backends, json.loads(source), named, template, generation, config)
        except UserError as error:
            raise UserError(f"{path}\n  {error}") from None

    @classmethod
    def bytes(cls, vocab_size: int) -> TextTokenizer:
        """Ids 0 to 255 are bytes, 256 ends an answer; the others, which no text becomes, read as their number: what
        random weights say.

        Raises UserError for a vocabulary below 257.
        """
        if vocab_size < 257:
            raise UserError(f"model.vocab_size: {vocab_size}\n  Random weights are served with a tokenizer of 256 "
                            "bytes and an end of text, so at least 257.\n  Try: model.vocab_size=257")  # fmt: skip
        space = byte_characters()[ord(" ")]
        words = {character: byte for byte, character in enumerate(byte_characters())}
        words |= {f"{space}{number}": number for number in range(257, vocab_size)}
        backends = []
        for _ in range(2):
            # In the vocabulary too: a token that is only added takes the id behind all others.
            backend = byte_level_backend(models.BPE(vocab={**words, END_OF_TEXT: 256}, merges=[]))
            backend.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
            backends.append(backend)
        return cls._of(backends, json.loads(backends[0].to_str()), {"eos_token": END_OF_TEXT}, None, {}, {})

    @classmethod
    def _of(cls, backends: list[tokenizers.Tokenizer], description: dict[str, Any], named: dict[str, str | list[str]],
            template: str | None, generation: dict[str, Any], config: dict[str, Any]) -> TextTokenizer:  # fmt: skip
        plain, parsing = backends
        for backend in backends:
            backend.no_padding()
            backend.no_truncation()
        plain.encode_special_tokens, parsing.encode_special_tokens = True, False
        added = [token for token in description.get("added_tokens") or () if token.get("special")]
        special = tuple(SpecialToken(token["id"], token["content"], bool(token.get("lstrip")),
                                     bool(token.get("rstrip"))) for token in added if token["content"])  # fmt: skip
        vocabulary = plain.get_vocab(with_added_tokens=True)
        ends = _ids(generation.get("eos_token_id"))
        eos = named.get("eos_token")
        if isinstance(eos, str) and eos in vocabulary:
            ends.add(vocabulary[eos])
        bos = named.get("bos_token")
        adds_bos = config.get("add_bos_token")
        return cls(
            vocab_size=max(vocabulary.values(), default=-1) + 1,
            end_ids=frozenset(ends),
            special=special,
            named=named,
            template=template,
            defaults=_defaults(generation),
            text=TokenText.of(plain, description),
            longest=max((len(name.encode()) for name in vocabulary), default=1),
            _plain=plain,
            _parsing=parsing,
            _bos=vocabulary.get(bos) if isinstance(bos, str) else None,
            _adds_bos=adds_bos if isinstance(adds_bos, bool) else None,
        )

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt that is plain text, with the begin token where the model's own tokenizer adds one.

        `add_bos_token` of tokenizer_config.json decides; without it, the post-processor of tokenizer.json does.
        """
        ids = list(self._plain.encode(text, add_special_tokens=True).ids)
        if ids and ids[-1] in self.end_ids and self._plain.encode(text, add_special_tokens=False).ids[-1:] != ids[-1:]:
            ids.pop()  # an end behind the prompt would end the answer before it begins
        if self._bos is not None and self._adds_bos is not None:
            has = ids[:1] == [self._bos]
            ids = [self._bos, *ids] if self._adds_bos and not has else ids[1:] if has and not self._adds_bos else ids
        return ids

    def encode_part(self, text: str) -> list[int]:
        """Ids of a part of a prompt; control tokens in it are text, and nothing is added."""
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def encode_with_controls(self, text: str) -> list[int]:
        """Ids of a template's own text: control tokens in it are control tokens."""
        return list(self._parsing.encode(text, add_special_tokens=False).ids)

    def least_tokens(self, text: str) -> int:
        """No encoding of the text is shorter: it is told without encoding. Normalisation may make a text shorter, to a
        quarter at the very most."""
        return len(text) // (4 * self.longest)


def _ids(value: Any) -> set[int]:
    """eos_token_id: a number, a list of numbers, or nothing."""
    return {one for one in (value if isinstance(value, list) else [value]) if type(one) is int and one >= 0}


def _defaults(generation: dict[str, Any]) -> SamplingDefaults:
    """What the model's authors recommend, where the numbers can be used as they are."""
    if generation.get("do_sample") is not True:
        return SamplingDefaults()
    plain = SamplingDefaults()
    temperature, top_p, top_k = (generation.get(key) for key in ("temperature", "top_p", "top_k"))
    return SamplingDefaults(
        float(temperature) if type(temperature) in (int, float) and 0 <= temperature <= 2 else plain.temperature,
        float(top_p) if type(top_p) in (int, float) and 0 < top_p <= 1 else plain.top_p,
        top_k if type(top_k) is int and 0 <= top_k < 2**31 else plain.top_k,
    )


def _named(config: dict[str, Any]) -> dict[str, str | list[str]]:
    """Special tokens by name, in the short or the long form of an added token."""
    found: dict[str, str | list[str]] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            found[name] = text
    return found


def _template(config: dict[str, Any], path: Path) -> str | None:
    """`chat_template`: a text, or a list of named ones, of which `default` counts."""
    value = config.get("chat_template")
    if isinstance(value, list):
        value = next((one.get("template") for one in value if isinstance(one, dict) and one.get("name") == "default"),
                     None)  # fmt: skip
    if value is not None and not isinstance(value, str):
        raise UserError(f"{path}\n  chat_template is a text, or a list of {{name, template}}.")
    return value


def _object(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is no file."""
    text = _read(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{path}\n  This is not a JSON object.")
    return value


def _read(path: Path) -> str | None:
    """Text of a file; None where there is none."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UserError(f"{path}\n  It has more than {_MAX_BYTES >> 20} MiB.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}\n  It cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}\n  It is not UTF-8 text.") from None
