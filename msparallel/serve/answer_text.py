"""The tokens of an answer -> pieces of text, each with the tokens that it is made of.

In: Choices, one by one. Out: Pieces: text that is safe to show, and its tokens for log probabilities. Streamed or not,
an answer goes through here, so both give the same text.

>>> from msparallel.data.tokenizer import byte_tokenizer
>>> text = AnswerText(TokenText.of(byte_tokenizer()._backend), stop=["!"])
>>> [text.feed(Choice(byte)).text for byte in b"Hi!"], text.stopped
(['H', 'i', ''], True)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msparallel.serve.sampling import Choice
from msparallel.serve.stop_strings import StopStrings
from msparallel.serve.token_text import Detokenizer, TokenText


@dataclass(frozen=True)
class Told:
    """A token of an answer; its text begins at character `offset`."""

    choice: Choice
    offset: int


@dataclass(frozen=True)
class Piece:
    """May be empty: what a token adds may have to wait."""

    text: str = ""
    tokens: list[Told] = field(default_factory=list)


class AnswerText:
    """Attributes:
    stopped: a stop string was met; nothing more is shown.
    """

    def __init__(self, tokens: TokenText, stop: Sequence[str] = ()):
        self._reading, self._stops = Detokenizer(tokens), StopStrings(stop)
        self._waiting: list[Told] = []
        self._read = self._shown = 0
        self.stopped = False

    def feed(self, choice: Choice) -> Piece:
        """What can be shown after one more token. A token goes with the text in which it begins; one without text of
        its own with the text behind it."""
        self._waiting.append(Told(choice, self._read))
        new = self._reading.feed(choice.token)
        self._read += len(new)
        text, self.stopped = self._stops.feed(new)
        self._shown += len(text)
        if not text:
            return Piece()
        if self.stopped or self._stops.holds or self._reading.holds:
            told = [one for one in self._waiting if one.offset < self._shown]
        else:
            told = self._waiting
        self._waiting = self._waiting[len(told) :]
        return Piece(text, told)

    def end(self) -> Piece:
        """The rest, after the last token: nothing where a stop string was met."""
        if self.stopped:
            return Piece()
        shown, stopped = self._stops.feed(self._reading.end())
        self.stopped = stopped
        text = shown if stopped else shown + self._stops.end()
        return Piece(text, [] if stopped else self._waiting)
