"""The process that serves the same requests alone: `python -m msparallel.simulate.serve_single REQUEST.json`.

In: a `ServeRequest`. Out, in its folder: every request's tokens and logits (`read_answers`). This is the server's own
engine for a processor, in float32, which equals Hugging Face's models token for token
(tests/serve/test_generation_parity.py).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.simulate.alone import Says, run_alone
from msparallel.simulate.requests import Answer, answered

ANSWERS = "answers.npz"


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """Attributes:
    shape: fields of the model's ModelShape.
    slots, length: requests that have room at once, tokens of each.
    chunk: of a prompt that are read at once.
    tokens: of each answer.
    """

    shape: dict[str, Any]
    slots: int
    length: int
    chunk: int
    tokens: int
    prompts: list[list[int]]


def serve_alone(request: ServeRequest, folder: Path, says: Says) -> None:
    """Answer every request and write what came out."""
    says("importing MindSpore")
    import mindspore as ms

    from msparallel.model.shape import ModelShape
    from msparallel.serve.buckets import Buckets
    from msparallel.serve.engine import Engine
    from msparallel.simulate.drawn_weights import DrawnWeights

    ms.set_context(mode=ms.GRAPH_MODE)
    shape = ModelShape(**request.shape)
    says("building the model")
    sizes = Buckets((request.slots,), (request.chunk,))
    engine = Engine(shape, slots=request.slots, length=request.length, sizes=sizes)
    engine.load(DrawnWeights())
    says("answering")
    answers = answered(engine, request.prompts, tokens=request.tokens, slots=request.slots, chunk=request.chunk)
    np.savez(folder / ANSWERS, *(answer.logits for answer in answers))


def read_answers(folder: Path, prompts: list[list[int]]) -> list[Answer]:
    """What the process left in a folder."""
    with np.load(folder / ANSWERS) as stored:
        logits = [stored[name] for name in stored.files]
    return [
        Answer(len(prompt), tuple(one.argmax(-1).tolist()), one) for prompt, one in zip(prompts, logits, strict=True)
    ]


if __name__ == "__main__":
    sys.exit(run_alone(sys.argv[1], ServeRequest, serve_alone))
