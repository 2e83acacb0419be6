"""Messages -> the text that a model was trained on, by its chat template.

In: a Jinja template as Hugging Face writes them, messages, options such as Qwen3's `enable_thinking`. Out: text. The
sandbox changes nothing outside and calls nothing of Python's own.

>>> template = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", {})
>>> template.render([{"role": "user", "content": "Hi"}], {})
'<user>Hi'

What templates may use is what Hugging Face's `apply_chat_template` gives them (huggingface/transformers,
utils/chat_template_utils.py): loop controls, `tojson` that leaves characters as they are, `raise_exception`,
`strftime_now`, the `generation` block, and the tokenizer's special tokens by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from msparallel.errors import UserError, short

PLAIN = """{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}
{% endfor %}Assistant:"""
"""For a model that brings no template: it was trained on text, not on conversations, so this is only a layout."""

_GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
_FAILS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
          MemoryError)  # fmt: skip
"""What a template's code can raise over messages that it was not written for."""


class TemplateRefused(Exception):
    """The template does not take these messages; the text says why."""


class _Generation(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's words for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Args:
    source: the template; None takes PLAIN.
    named: special tokens by their names.

    Raises UserError for a template that does not compile.
    """

    def __init__(self, source: str | None, named: Mapping[str, str | list[str]]):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self._named = dict(named)
        try:
            self._template = environment.from_string(PLAIN if source is None else source)
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"The chat template, line {error.lineno}: {short(error.message)}.") from None
        except (RecursionError, MemoryError):
            raise UserError("The chat template is nested too deeply.") from None

    @property
    def taken(self) -> frozenset[str]:
        """Names that no option can have."""
        return frozenset([*_GIVEN, *self._named, "raise_exception", "strftime_now"])

    def render(self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> str:
        """The text up to where the assistant's answer begins. Raises TemplateRefused."""
        given = {"messages": list(messages), "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            text = self._template.render({**self._named, **options, **given})
            text.encode()  # halves of characters, which a template can make, have no tokens
            return text
        except _FAILS as error:
            raise TemplateRefused(short(error) or type(error).__name__) from None


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:  # fmt: skip
    """Jinja's own filter writes < and & as codes, which is for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
