"""The process that serves the same requests alone: `python -m msparallel.simulate.serve_single REQUEST.json`.

In: a `ServeRequest`. Out, in its folder: every request's tokens and logits (`read_answers`). This is the server's own
engine for a processor, with plain attention in float32, which equals Hugging Face's models token for token
(tests/serve/test_generation_parity.py).
"""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msparallel.compile.request import FAILURE_FILE, STAGE_FILE, write_json
from msparallel.errors import UserError
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


def main(path: str) -> int:
    """Exit code of this process."""
    request = ServeRequest(**json.loads(Path(path).read_text(encoding="utf-8")))
    folder = Path(path).parent
    try:
        serve_alone(request, folder)
    except Exception as error:  # told to who asked; MindSpore raises many kinds
        traceback.print_exc()
        code = error.exit_code if isinstance(error, UserError) else None
        write_json(folder / FAILURE_FILE, {"type": type(error).__name__, "text": str(error), "exit_code": code})
        return 1
    return 0


def serve_alone(request: ServeRequest, folder: Path) -> None:
    """Answer every request and write what came out."""

    def says(stage: str) -> None:
        (folder / STAGE_FILE).write_text(stage, encoding="utf-8")

    says("importing MindSpore")
    import mindspore as ms

    from msparallel.model.shape import ModelShape
    from msparallel.serve.buckets import Buckets
    from msparallel.serve.engine import Engine
    from msparallel.simulate.drawn_weights import DrawnWeights

    ms.set_context(mode=ms.GRAPH_MODE)
    shape = ModelShape(**request.shape)
    says("building the model")
    sizes = Buckets((request.slots,), (request.chunk,), (request.length,))
    engine = Engine(shape, slots=request.slots, length=request.length, sizes=sizes)
    engine.load(DrawnWeights(shape))
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
    sys.exit(main(sys.argv[1]))
