"""Messages -> token ids, with control tokens from the template alone.

In: a TextTokenizer, its ChatTemplate, messages. Out: the ids of the prompt.

A template mixes its own control tokens with what clients wrote, and works on that text (trims it, splits it), so its
output alone no longer says whose "<|im_end|>" it is. Before rendering, every control token's name in a client's text is
broken by one character that occurs nowhere in the request; afterwards what is still whole came from the template, and
the character is taken out again. A beginning or an end of such a name at the edge of a client's text is broken too, so
that it cannot be completed by the template's next words.

Tokens that were added but are not special, such as Qwen3's <think>, are parsed in text, as everywhere.

>>> Names(["<|x|>"]).broken("a<|x|>b<", mark="~")
'a<~|x|>b<~'
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msparallel.serve.chat_template import ChatTemplate, TemplateRefused
from msparallel.serve.text_tokenizer import SpecialToken, TextTokenizer

_MARKS = [chr(code) for code in (*range(0xFDD0, 0xFDF0), *(plane * 0x10000 + low for plane in range(17)
                                                         for low in (0xFFFE, 0xFFFF)))]  # fmt: skip
"""Unicode's noncharacters, which no text for interchange holds."""


class ChatPrompt:
    """Args:
    tokenizer, template: of one model.
    """

    def __init__(self, tokenizer: TextTokenizer, template: ChatTemplate):
        self._tokenizer, self.template = tokenizer, template
        self._special = sorted(tokenizer.special, key=lambda token: len(token.text), reverse=True)
        self._names = Names([token.text for token in self._special])
        whole = "|".join(f"({_pattern(token)})" for token in self._special)
        self._whole = re.compile(whole or r"(?!)")

    def tokens(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[int]:
        """Args:
            messages: role and content, and what else the template may read.
            options: `chat_template_kwargs`.

        Raises TemplateRefused.
        """
        everything = "".join(_texts([list(messages), dict(options)]))
        mark = next((mark for mark in _MARKS if mark not in everything), None)
        if mark is None:
            raise TemplateRefused(f"the request holds all {len(_MARKS)} noncharacters of Unicode")

        def broken(text: str) -> str:
            return self._names.broken(text, mark)

        safe = [_changed(message, broken) for message in messages]
        rendered = self.template.render(safe, {key: _changed(value, broken) for key, value in options.items()})
        if mark not in rendered:
            return self._tokenizer.encode_with_controls(rendered)
        return self._cut(rendered, mark)

    def _cut(self, rendered: str, mark: str) -> list[int]:
        """Control tokens that are whole, and the text between them."""
        ids: list[int] = []
        start = 0
        for found in self._whole.finditer(rendered):
            if found.lastindex is None or rendered.startswith(mark, found.end()):
                continue  # a name of one character, in a client's text
            ids += self._between(rendered[start : found.start()], mark)
            ids.append(self._special[found.lastindex - 1].id)
            start = found.end()
        return ids + self._between(rendered[start:], mark)

    def _between(self, text: str, mark: str) -> list[int]:
        return self._tokenizer.encode_part(text.replace(mark, "")) if text else []


class Names:
    """Args:
    names: of control tokens.
    """

    def __init__(self, names: Sequence[str]):
        self._begin = re.compile(f"(?={'|'.join(map(re.escape, names))})" if names else r"(?!)")
        self._beginnings = {name[:size] for name in names for size in range(1, len(name))}
        self._ends = {name[-size:] for name in names for size in range(1, len(name))}
        self._longest = max(map(len, names), default=0)

    def broken(self, text: str, mark: str) -> str:
        """`mark` behind the first character of every name in the text, and inside what an edge of it has of one."""
        places = {found.start() + 1 for found in self._begin.finditer(text)}
        for size in range(1, min(self._longest, len(text) + 1)):
            if text[-size:] in self._beginnings:
                places.add(len(text) - size + 1)
            if text[:size] in self._ends:
                places.add(size - 1)
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return mark.join(text[start:stop] for start, stop in zip(cuts, cuts[1:], strict=False))


def _pattern(token: SpecialToken) -> str:
    space = r"\s*"
    return space * token.strips_left + re.escape(token.text) + space * token.strips_right


def _texts(value: Any) -> list[str]:
    """All texts in messages or options."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = [*value.keys(), *value.values()]
    return [text for one in value for text in _texts(one)] if isinstance(value, list) else []


def _changed(value: Any, change) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: one if key == "role" else _changed(one, change) for key, one in value.items()}
    return [_changed(one, change) for one in value] if isinstance(value, list) else value
