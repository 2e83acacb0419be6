"""Quoted output of `msparallel dryrun`, run again with the MindSpore that is installed.

Seconds and MindSpore's version may differ; every other number must be what the command prints now. The Chinese pages
quote the same (tests/test_docs.py holds that).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest
from test_docs import REPO, Shell, as_pattern, quoted
from tiny_recipe import arguments, environment

pytestmark = [pytest.mark.cpu, pytest.mark.slow]
CHANGING = ((r" +\d+\.\d s", " 0.0 s"), (r"MindSpore \d+\.\d+\.\d+ compiled", "MindSpore compiled"))


def settled(text: str) -> str:
    """A text without what changes from run to run."""
    for pattern, replacement in CHANGING:
        text = re.sub(pattern, replacement, text)
    return text


@pytest.mark.parametrize("page", ["README.md", "docs/08_dry_run.md"])
def test_dry_runs_print_what_the_page_shows(page, tmp_path):
    shell, wrong, compared = Shell(tmp_path), [], 0
    for item in quoted(REPO / page):
        if "msparallel dryrun" not in item.command:
            shell.run(item.command)
            continue
        words = shlex.split(item.command)
        variables = dict(word.split("=", 1) for word in words[: words.index("msparallel")])
        done = subprocess.run(
            arguments(*words[words.index("dryrun") :]),
            cwd=tmp_path,
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        printed = done.stdout.replace(f"{os.fspath(REPO)}/", "")
        if "--time-limit" in item.command:  # how far it came is the machine's
            assert done.returncode == 1 and "--time-limit" in printed
        elif item.output is not None:
            compared += 1
            shown = settled("\n".join(item.output)).split("\n")
            if not re.fullmatch(as_pattern(shown), settled(printed)):
                wrong.append(f"$ {item.command}\nprints\n{printed}\nthe page shows\n{chr(10).join(item.output)}")
    assert compared
    assert not wrong, "\n\n".join(wrong)
