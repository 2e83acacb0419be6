"""Entry point: finds the verb, runs it, and turns what goes wrong into text and an exit code.

In: command-line arguments. Out: exit code 0, 1 for a run that failed, 2 for bad input, 130 after Ctrl-C. A verb's
file is imported when the verb is called, so that no verb pays for another one's imports.

>>> main(["ls", "--json"])  # doctest: +SKIP
"""

from __future__ import annotations

import errno
import importlib
import json
import keyword
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn, TextIO

import click

from msparallel import __version__
from msparallel.errors import RecipeError, UserError, printable, short

VERBS = {
    "ls": "The recipes that come with msparallel, or model presets.",
    "cp": "Copy a shipped recipe, to change it.",
    "show": "The recipe with everything resolved, or MindSpore's own calls.",
    "validate": "Check recipes against every rule.",
    "schema": "JSON Schema of recipes, for editors.",
    "plan": "Memory, time and the best strategy, on paper.",
    "plan-evaluate": "The planner's estimates against published measurements.",
    "run": "Train: alone, by local workers, or this node's part.",
    "launch": "Train on several machines from one place, after asking them all.",
    "supervise": "Train to the end: watch, and start again after a fault.",
    "dryrun": "Compile for a cluster that is not there, and report what each rank holds and sends.",
    "simulate": "Execute all ranks on a virtual cluster and compare with one device.",
    "serve": "An OpenAI-compatible server.",
    "generate": "Text from a checkpoint, in the terminal.",
    "monitor": "Devices and a run while it runs: in the terminal, as JSON, for Prometheus.",
    "doctor": "Environment, devices, links, a collective, a recipe: the first thing that is broken.",
    "diagnose": "Logs of a job that failed: the root cause, its evidence, what to do.",
    "profile": "Profiles of a run: slow ranks and links, where steps go, what to change.",
    "import": "A MindFormers training YAML as a recipe.",
    "export": "A recipe as a MindFormers YAML.",
    "bench-serve": "Load for a server, and the latencies that its clients see.",
    "convert": "Weights: Hugging Face, checkpoints, and checkpoints of another plan.",
    "ranktable": "Make, check and compare rank tables.",
    "kubernetes": "A recipe as a Kubernetes manifest, or a manifest against the rules.",
    "queue-simulate": "A trace of jobs under the policies of a queue: waiting, utilisation, lost work.",
}
"""Verb -> what it does; its command is `command` in msparallel/cli/VERB.py, with _ for a dash, or VERB_.py for a word
of Python's own."""


class _Verbs(click.Group):
    """Commands by name, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = cmd_name.replace("-", "_") + "_" * keyword.iskeyword(cmd_name)
        return importlib.import_module(f"msparallel.cli.{module}").command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = get_close_matches(args[0], VERBS, n=1)
        if args[0] not in VERBS and close:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]}, epilog="""\b
Examples:
  $ msparallel ls
  $ msparallel validate quickstart
  $ msparallel run quickstart
  $ msparallel show gpt_tiny_dp2_cpu parallel.data_parallel=1
  $ msparallel cp llama2_7b_dp2_tp2_pp2 my.yaml
""")  # fmt: skip
@click.version_option(__version__, prog_name="msparallel")
def commands() -> None:
    """Recipes in YAML that train and serve large models on Ascend clusters with MindSpore.

    RECIPE is the name of a shipped recipe or the path of a YAML file. Values are changed from the command line as
    section.key=value, for example train.steps=100.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit the process."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell (`>&-`): Python then has no stream at all
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for the rest of the process
        stream = getattr(sys, name)
        if hasattr(stream, "reconfigure"):  # a terminal that cannot show a character gets its code instead
            stream.reconfigure(errors="backslashreplace")
    code = _run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:
        code = _unwritable(error)
    try:
        sys.stderr.flush()
    except OSError as error:
        code = _unwritable(error)
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """The exit code. What goes wrong while something is told (a reader that has left, a full disk) is no traceback
    either."""
    as_json = "--json" in arguments
    try:
        try:
            result = commands.main(args=list(arguments), prog_name="msparallel", standalone_mode=False)
            return result if isinstance(result, int) else 0
        except UserError as error:
            _tell(error, as_json)
            return error.exit_code
        except click.exceptions.Exit as error:
            return error.exit_code
        except click.ClickException as error:
            error.message = printable(error.message)
            if as_json:
                click.echo(json.dumps({"error": error.format_message()}, indent=2))
            else:
                error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("Interrupted.", err=True)
            return 130
        except OSError as error:
            if (wrong := _input_error(error)) is None:
                raise
            _tell(wrong, as_json)
            return wrong.exit_code
    except BrokenPipeError as error:
        return _unwritable(error)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return _unwritable(error)


def _input_error(error: OSError) -> UserError | None:
    """What only the caller can have caused: a name that no file can have, a file that is not theirs to read or write, a
    present folder that was deleted."""
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EROFS) and error.filename:
        return UserError(f"{short(error.filename)}: {error.strerror}.")
    try:
        os.getcwd()
    except FileNotFoundError:
        return UserError("The folder that this command was started in is not there any more. cd to another one.")
    return None


def _tell(error: UserError, as_json: bool) -> None:
    if not as_json:
        click.echo(printable(str(error)), err=True)
    elif isinstance(error, RecipeError):
        click.echo(json.dumps({"problems": [problem.to_json() for problem in error.problems]}, indent=2))
    else:
        click.echo(json.dumps({"error": str(error)}, indent=2))


def _unwritable(error: OSError) -> int:
    """Output has no place to go: say so where that is news and possible, and leave nothing for the interpreter's own
    flush to fail on."""
    if not isinstance(error, BrokenPipeError):  # a reader that has left knows
        try:
            click.echo(f"The output could not be written: {error.strerror}.", err=True)
        except OSError:  # nor can this
            _to_nowhere(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _to_nowhere(stream)
    return 1


def _to_nowhere(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
