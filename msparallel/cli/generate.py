"""`msparallel generate`: text from a model, through the same engine process as `serve`."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import click

from msparallel.cli.numbers import Number

_MOST_STDIN_BYTES = 8 << 20


@click.command(
    epilog="""\b
Examples:
  $ msparallel generate quickstart "def read(path):"          the newest checkpoint of the run
  $ msparallel generate my.yaml --chat "What is a mesh?"      through the model's chat template
  $ msparallel generate my.yaml serve.max_length=8192 - < prompt.txt
"""
)
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("words", metavar="[SECTION.KEY=VALUE...] PROMPT...", nargs=-1)
@click.option("--max-tokens", type=click.IntRange(min=1), default=64, show_default=True, help="Of each answer.")
@click.option("--temperature", type=Number(0, 2), help="0: the likeliest token each time.")
@click.option("--top-p", type=Number(0, 1, min_open=True), help="Fewest tokens that add up to it.")
@click.option("--top-k", type=click.IntRange(min=0), help="Likeliest tokens; 0: all.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="The same seed gives the same text.")
@click.option("--stop", "stops", multiple=True, help="Text that ends the answer; may be given several times.")
@click.option("--chat", is_flag=True, help="Each PROMPT is a user's message in the model's chat template.")
@click.option("--system", help="With --chat: a system message in front.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, at the end.")
def command(recipe_name: str, words: tuple[str, ...], max_tokens: int, temperature: float | None, top_p: float | None,
            top_k: int | None, seed: int | None, stops: tuple[str, ...], chat: bool, system: str | None,
            as_json: bool) -> None:  # fmt: skip
    """Go on from each PROMPT, or from stdin (`-`, or no PROMPT at all).

    A recipe without a `serve` section takes the newest checkpoint of its training run. Words of the form
    section.key=value in front of the first PROMPT are overrides.
    """
    from msparallel.errors import RunError, UserError
    from msparallel.launch.devices import check_devices, check_mindspore
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.serve.prepare import build_kernels, of_training, prepare

    overrides, prompts = split_words(words)
    if system is not None and not chat:
        raise UserError("--system is a message of a conversation: add --chat.")
    if any(not stop for stop in stops):
        raise UserError("--stop is empty; an empty text would end every answer.")
    recipe = load_recipe(recipe_name, overrides)
    prompts = [_stdin() if prompt == "-" else prompt for prompt in prompts or ["-"]]
    if empty := [number for number, prompt in enumerate(prompts, 1) if not prompt]:
        raise UserError(f"PROMPT {empty[0]} is empty; a prompt has at least one character.")
    with tempfile.TemporaryDirectory(prefix="msparallel-generate-") as folder:
        plan = resolve(of_training(recipe, Path(folder)) if recipe.serve is None else recipe)
        tokenizer = prepare(plan, "generate")
        check_devices(plan)
        check_mindspore()
        build_kernels(plan)
        from msparallel.serve.generate import Asked, generate

        asked = Asked(prompts=tuple(prompts), chat=chat, system=system, limit=max_tokens, temperature=temperature,
                      top_p=top_p, top_k=top_k, seed=seed, stops=stops)  # fmt: skip
        log = Path(folder) / "engine.log"
        try:
            answers = asyncio.run(generate(plan, tokenizer, asked, log, None if as_json else _show))
        except RunError as error:
            raise RunError(str(error).replace(str(log), str(_kept(log)))) from None
    if as_json:
        click.echo(json.dumps({"model": recipe.name, "answers": answers}, ensure_ascii=False))


def _kept(log: Path) -> Path:
    """A copy that outlives this command: a message names it."""
    with tempfile.NamedTemporaryFile(prefix="msparallel-generate-", suffix=".log", delete=False) as file:
        if log.is_file():
            file.write(log.read_bytes())
    return Path(file.name)


def split_words(words: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(overrides, prompts): overrides stand in front and name a section.

    >>> split_words(("serve.port=1", "x = 1", "serve.port=2"))
    (['serve.port=1'], ['x = 1', 'serve.port=2'])
    """
    from msparallel.recipe.schema import SECTIONS

    sections = [word.partition("=")[0].partition(".")[0] if "=" in word else "" for word in words]
    count = next((number for number, section in enumerate(sections) if section not in SECTIONS), len(words))
    return list(words[:count]), list(words[count:])


def _stdin() -> str:
    from msparallel.errors import UserError

    data = sys.stdin.buffer.read(_MOST_STDIN_BYTES + 1)
    if len(data) > _MOST_STDIN_BYTES:
        raise UserError(f"stdin has more than {_MOST_STDIN_BYTES >> 20} MiB; a prompt is far shorter.")
    try:
        return data.decode("utf-8").rstrip("\n")
    except UnicodeDecodeError:
        raise UserError("stdin is not UTF-8 text.") from None


def _show(text: str) -> None:
    """As it comes; control characters other than line feed and tab are seen as their codes."""
    from msparallel.errors import printable

    click.echo(printable(text), nl=False)
    sys.stdout.flush()
