"""One engine process of a server: `python -m msparallel.serve.worker SOCKET RECIPE [section.key=value ...]`.

In: the server's Unix socket, the recipe. Out: the model loaded and compiled, then an answer to every Prefill and
Decode. The process ends with the server, or when the socket closes.
"""

from __future__ import annotations

import os
import socket
import sys
import traceback
from typing import TYPE_CHECKING

from msparallel.errors import UserError
from msparallel.launch.processes import die_with_parent
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.serve.protocol import (
    Chosen,
    Decode,
    Failed,
    Hello,
    Loading,
    Message,
    Prefill,
    Ready,
    decode_message,
    encode_message,
)

if TYPE_CHECKING:
    from msparallel.serve.engine import Engine
    from msparallel.serve.paged_engine import PagedEngine


def main(arguments: list[str]) -> int:
    """Exit code of this process."""
    os.environ.setdefault("GLOG_v", "3")  # MindSpore's warnings are for its developers
    die_with_parent()
    path, recipe, *overrides = arguments
    rank = int(os.environ.get("RANK_ID", "0"))
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(path)

        def say(message: Message) -> None:
            channel.sendall(encode_message(message))

        say(Hello(rank))
        try:
            _serve(channel, say, resolve(load_recipe(recipe, overrides)), rank)
        except UserError as error:
            say(Failed(str(error), error.exit_code))
            return error.exit_code
        except (BrokenPipeError, ConnectionResetError):
            return 0  # the server is gone
        except Exception as error:  # the process's last word: the server reads it, its log keeps the traceback
            traceback.print_exc()
            say(Failed(f"{type(error).__name__}: {error}", 1))
            return 1
    return 0


def _serve(channel: socket.socket, say, plan: Plan, rank: int) -> None:
    """Until the server closes the socket."""
    from msparallel.serve.row import Row
    from msparallel.serve.sampling import choose

    engine = _loaded(say, plan, rank)
    graphs = engine.sizes.shapes()
    say(Loading("graphs", 0, len(graphs)))
    engine.warm_up(lambda shape: say(Loading("graphs", 1 + graphs.index(shape), len(graphs))))
    say(Ready())
    for line in channel.makefile("rb"):
        message = decode_message(line)
        if isinstance(message, Prefill):
            logits = engine.prefill(slot=message.slot, start=message.start, tokens=message.tokens)
            found = [] if message.sampling is None else choose(logits[None], [(message.sampling, 0)])
        elif isinstance(message, Decode):
            logits = engine.decode([Row(step.slot, step.position, step.token) for step in message.steps])
            found = choose(logits, [(step.sampling, step.place) for step in message.steps])
        else:
            raise AssertionError(f"the server says {message}")
        if rank == 0:
            say(Chosen(found))


def _loaded(say, plan: Plan, rank: int) -> Engine | PagedEngine:
    """With its weights; their files are closed."""
    from msparallel.context import apply
    from msparallel.weights.source import open_weights

    serve = plan.recipe.serve
    assert serve is not None, "the server starts only recipes that serve"
    weights = open_weights(serve.weights, plan.shape, to_read=True)
    apply(plan, rank, serving=True)
    engine = _engine(plan, rank)
    total, done = engine.parameter_count, 0

    def loaded(name: str) -> None:
        nonlocal done
        done += 1
        say(Loading("weights", done, total))

    engine.load(weights.source, loaded)
    return engine


def _engine(plan: Plan, rank: int) -> Engine | PagedEngine:
    """For a processor, or for this rank's Ascend device."""
    if plan.attention == "flash":
        from msparallel.serve.paged_engine import PagedEngine

        return PagedEngine(plan, rank)
    from msparallel.serve.engine import Engine

    serve = plan.recipe.serve
    assert serve is not None, "the server starts only recipes that serve"
    return Engine(plan.shape, slots=serve.max_concurrency, length=serve.max_length)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
