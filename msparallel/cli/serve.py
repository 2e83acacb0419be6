"""`msparallel serve`: an OpenAI-compatible server for a recipe with a `serve` section."""

from __future__ import annotations

import json
import sys

import click


@click.command(
    epilog="""\b
Examples:
  $ msparallel serve serve_tiny_cpu
  $ msparallel serve serve_tiny_cpu serve.port=8100 serve.max_concurrency=16
  $ msparallel serve my.yaml serve.host=0.0.0.0 serve.api_keys_file=keys.txt
"""
)
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("overrides", metavar="[SECTION.KEY=VALUE...]", nargs=-1)
@click.option("--access-log", is_flag=True, help="A line on stderr for every request; keys and texts are not in it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, when requests are taken.")
def command(recipe_name: str, overrides: tuple[str, ...], access_log: bool, as_json: bool) -> int:
    """Serve RECIPE: /v1/chat/completions, /v1/completions, a page to chat with, metrics.

    Ends with Ctrl-C or SIGTERM, after the answers that have begun.
    """
    import logging
    from pathlib import Path

    from msparallel.launch.devices import check_devices, check_mindspore
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.serve.prepare import LoadingBar, build_kernels, prepare

    plan = resolve(load_recipe(recipe_name, overrides))
    tokenizer = prepare(plan)
    check_devices(plan)
    check_mindspore()
    build_kernels(plan)
    from msparallel.serve.engine_client import EngineClient
    from msparallel.serve.server import serve

    settings = plan.recipe.serve
    assert settings is not None, "prepare looked"
    output = Path(plan.recipe.train.output_dir if plan.recipe.train else "output")
    log = output / "serve" / f"{plan.recipe.name}-{settings.port}" / "engine.log"
    _make_folder(log.parent)
    if access_log:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(message)s")
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    address = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"

    bar = LoadingBar()

    def ready(needs_key: bool) -> None:
        bar.close()
        if as_json:
            click.echo(json.dumps({"address": address, "model": plan.recipe.name, "engine_log": str(log)}))
        else:
            click.echo(_ready_text(address, plan.recipe.name, needs_key))
        sys.stdout.flush()

    try:
        return serve(plan, tokenizer, EngineClient(plan, log), tell=_tell, progress=bar, on_ready=ready,
                     access_log=access_log)  # fmt: skip
    finally:
        bar.close()


def _tell(text: str) -> None:
    from msparallel.errors import printable

    click.echo(printable(text), err=True)


def _make_folder(folder) -> None:
    from msparallel.errors import RunError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}\n  The engine's log cannot be written there: {error.strerror}.") from None


def _ready_text(address: str, model: str, needs_key: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if needs_key else ""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32})
    return (f"Serving {model} at {address}; a page to chat with is there, Ctrl-C ends it.\n\n"
            f"  curl {address}/v1/chat/completions{key} -H 'Content-Type: application/json' \\\n    -d '{body}'"
            )  # fmt: skip
