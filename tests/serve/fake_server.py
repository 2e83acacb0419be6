"""The server as `msparallel serve` runs it, with an engine without a model: `fake_server.py PORT [option=value]`.

Options: step_s, die_at (number of the message at which the engine dies), keys of the `serve` section.
"""

from __future__ import annotations

import sys

import fake_engine

from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.serve.server import serve
from msparallel.serve.text_tokenizer import TextTokenizer


def plan_of(**serve_keys: object) -> Plan:
    """The shipped recipe with other numbers in its `serve` section."""
    return resolve(load_recipe("serve_tiny_cpu", [f"serve.{key}={value}" for key, value in serve_keys.items()]))


def main(port: str, *options: str) -> int:
    given = dict(option.split("=", 1) for option in options)
    step_s, die_at = float(given.pop("step_s", "0")), given.pop("die_at", None)
    plan = plan_of(port=port, **given)
    engine = fake_engine.FakeEngine(step_s=step_s, fail_at=int(die_at) if die_at else None,
                                    speaks=fake_engine.next_letter)  # fmt: skip
    return serve(plan, TextTokenizer.bytes(plan.shape.vocab_size), engine,
                 tell=lambda text: print(text, file=sys.stderr, flush=True),
                 on_ready=lambda needs_key: print("ready", flush=True))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
