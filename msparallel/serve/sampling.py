"""Logits -> the next token of every request.

In: logits [requests, vocabulary] and what each request wants. Out: a Choice for each. A draw depends on the request's
seed and on the place of the token in its answer, not on who else is in the batch: the same request gives the same text.

>>> import numpy as np
>>> choose(np.array([[0.0, 2.0, 1.0]], np.float32), [(Sampling(temperature=0.0), 0)])[0].token
1

temperature divides the logits; then top_k keeps the k likeliest tokens, then top_p the fewest whose probabilities add
up to at least p (Holtzman et al. 2020). Temperature 0 takes the likeliest, of equals the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_FIRST_LOOK = 256
"""Tokens among which top_p looks first: sorting a whole vocabulary of 150,000 takes ten milliseconds a row."""


@dataclass(frozen=True)
class Sampling:
    """Attributes:
    top_k: 0 keeps all. top_p: 1 keeps all.
    seed: of the draws.
    logprobs: how many of the likeliest tokens are told with their log probability; None tells none, not even the
        chosen one's.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    logprobs: int | None = None


@dataclass(frozen=True)
class Choice:
    """A token.

    Attributes:
        logprob: natural logarithm of its probability by the model itself, without temperature and cuts; None where
            nobody asked.
        top: (token, log probability) of the likeliest, the likeliest first.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def choose(logits: np.ndarray, wanted: Sequence[tuple[Sampling, int]]) -> list[Choice]:
    """One token for each row.

    Args:
        logits: float32 [rows, vocabulary].
        wanted: for each row what it wants, and the place of the token in its answer, from 0.
    """
    return [_one(row, sampling, place) for row, (sampling, place) in zip(logits, wanted, strict=True)]


def _one(logits: np.ndarray, sampling: Sampling, place: int) -> Choice:
    token = int(logits.argmax()) if sampling.temperature == 0 else _draw(logits, sampling, place)
    if sampling.logprobs is None:
        return Choice(token)
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    likeliest = _likeliest(scores, min(sampling.logprobs, len(scores)))
    return Choice(token, float(scores[token]), tuple((int(one), float(scores[one])) for one in likeliest))


def _draw(logits: np.ndarray, sampling: Sampling, place: int) -> int:
    scores = logits.astype(np.float64)
    with np.errstate(over="ignore"):  # a temperature of next to nothing
        scores = (scores - scores.max()) / sampling.temperature
    cut = 0 < sampling.top_k < len(scores)
    if cut:
        kept = _likeliest(scores, sampling.top_k)
    elif sampling.top_p < 1:
        kept = _nucleus_candidates(scores, sampling.top_p)
    else:
        kept = None
    weights = np.exp(scores if kept is None else scores[kept])
    if sampling.top_p < 1:
        assert kept is not None
        total = weights.sum() if cut else np.exp(scores).sum()
        enough = int(np.searchsorted(np.cumsum(weights), sampling.top_p * total)) + 1
        weights, kept = weights[:enough], kept[:enough]
    below = np.cumsum(weights)
    random = np.random.Generator(np.random.Philox(key=sampling.seed, counter=place)).random()
    drawn = min(int(np.searchsorted(below, random * below[-1], side="right")), len(below) - 1)
    return drawn if kept is None else int(kept[drawn])


def _likeliest(scores: np.ndarray, count: int) -> np.ndarray:
    """Indices of the `count` highest scores, the highest first, of equals the first."""
    if count == 0:
        return np.zeros(0, np.int64)
    if count < len(scores):
        border = np.partition(scores, -count)[-count]
        above = np.flatnonzero(scores > border)
        found = np.concatenate([above, np.flatnonzero(scores == border)[: count - len(above)]])
    else:
        found = np.arange(len(scores))
    return found[np.argsort(-scores[found], kind="stable")]


def _nucleus_candidates(scores: np.ndarray, top_p: float) -> np.ndarray:
    """Likeliest tokens, sorted, that hold at least `top_p` of the probability; the highest score is 0."""
    total = np.exp(scores).sum()
    count = _FIRST_LOOK
    while True:
        found = _likeliest(scores, min(count, len(scores)))
        if count >= len(scores) or np.exp(scores[found]).sum() >= top_p * total:
            return found
        count *= 4
