"""Answers in OpenAI's two forms, whole and as events of a stream.

In: pieces of text with their tokens. Out: the documents of `chat.completion(.chunk)` and `text_completion`.

>>> form = ChatForm("qwen3", 1, None)
>>> form.event(form.delta(Piece("Hi")))["choices"]
[{'index': 0, 'delta': {'content': 'Hi'}, 'logprobs': None, 'finish_reason': None}]
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from msparallel.serve.answer_text import Piece, Told
from msparallel.serve.service import TextAnswer
from msparallel.serve.token_text import TokenText

Document = dict[str, Any]


def usage(answer: TextAnswer) -> Document:
    """Numbers of tokens."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.answer_tokens,
        "total_tokens": answer.prompt_tokens + answer.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": answer.reused_tokens},
    }


class _Form(ABC):
    """Args:
    tokens: to name tokens; None where no log probabilities are wanted.
    usage_at_end: whether a last event of a stream tells it.
    """

    prefix, whole_object, event_object = "", "", ""

    def __init__(self, model: str, created_s: int, tokens: TokenText | None, usage_at_end: bool = False):
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": created_s, "model": model}
        self._tokens, self._usage_at_end = tokens, usage_at_end

    def _choice(self, body: Document, told: Sequence[Told], reason: str | None) -> Document:
        logprobs = None if self._tokens is None else self._logprobs(told, self._tokens)
        return {"index": 0, **body, "logprobs": logprobs, "finish_reason": reason}

    @abstractmethod
    def _logprobs(self, told: Sequence[Told], tokens: TokenText) -> Document:
        """Log probabilities of tokens, in the form's own layout."""

    def event(self, choice: Document) -> Document:
        """A choice as an event of a stream."""
        more = {"usage": None} if self._usage_at_end else {}
        return {**self._head, "object": self.event_object, "choices": [choice], **more}

    def usage_event(self, answer: TextAnswer) -> Document | None:
        """The event behind the answer, where it is wanted."""
        if not self._usage_at_end:
            return None
        return {**self._head, "object": self.event_object, "choices": [], "usage": usage(answer)}

    def whole(self, pieces: Sequence[Piece], answer: TextAnswer) -> Document:
        """The answer at once."""
        text, told = "".join(piece.text for piece in pieces), [one for piece in pieces for one in piece.tokens]
        choice = self._choice(self._said(text), told, answer.reason)
        return {**self._head, "object": self.whole_object, "choices": [choice], "usage": usage(answer)}

    @abstractmethod
    def _said(self, text: str) -> Document:
        """A whole text, in the form's own layout."""


class ChatForm(_Form):
    """/v1/chat/completions"""

    prefix, whole_object, event_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def begin(self) -> Document | None:
        """The first event says whose words follow."""
        return {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def delta(self, piece: Piece) -> Document:
        """A piece of the answer."""
        return self._choice({"delta": {"content": piece.text}}, piece.tokens, None)

    def end(self, reason: str | None) -> Document:
        """The last event of the answer."""
        return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}

    def _said(self, text: str) -> Document:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _logprobs(self, told: Sequence[Told], tokens: TokenText) -> Document:
        def entry(token: int, logprob: float | None) -> Document:
            name = tokens.name(token)
            return {"token": name.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(name)}

        content = [{**entry(one.choice.token, one.choice.logprob),
                    "top_logprobs": [entry(token, value) for token, value in one.choice.top]}
                   for one in told]  # fmt: skip
        return {"content": content, "refusal": None}


class CompletionForm(_Form):
    """/v1/completions"""

    prefix, whole_object, event_object = "cmpl", "text_completion", "text_completion"

    def begin(self) -> Document | None:
        """Nothing: the first event is text."""
        return None

    def delta(self, piece: Piece) -> Document:
        """A piece of the answer."""
        return self._choice({"text": piece.text}, piece.tokens, None)

    def end(self, reason: str | None) -> Document:
        """The last event of the answer."""
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": reason}

    def _said(self, text: str) -> Document:
        return {"text": text}

    def _logprobs(self, told: Sequence[Told], tokens: TokenText) -> Document:
        """Tokens that are no text of their own are told as bytes, as OpenAI does: `bytes:\\xe4`."""
        return {
            "tokens": [_named(one.choice.token, tokens) for one in told],
            "token_logprobs": [one.choice.logprob for one in told],
            "top_logprobs": [{_named(token, tokens): value for token, value in one.choice.top} for one in told],
            "text_offset": [one.offset for one in told],
        }


def _named(token: int, tokens: TokenText) -> str:
    name = tokens.name(token)
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in name)
