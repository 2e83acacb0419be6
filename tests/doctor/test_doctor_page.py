"""docs/21_doctor.md says what the doctor does: every rule has its place, the quoted recording prints what is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from msparallel.doctor.ladder import RUNGS
from msparallel.doctor.recording import HCCN_QUERIES, PLAIN

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("21_doctor.md", "21_doctor.zh-CN.md")]


def rules() -> set[str]:
    """Names of rules, as the source has them."""
    found = set()
    for path in (ROOT / "msparallel/doctor").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r'(?:report|_found|_differ|_recipe_broken)\((?:plan, )?\s*"([a-z_]+)"', text))
        found |= set(re.findall(r'rule="([a-z_]+)"', text))
        found |= set(re.findall(r'"((?:ecc|device|npu)_[a-z_]+)", *(?:"error"|"warning"|"info"|\n)', text))
    return found - {"device_index"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_rule_file_and_rung_is_on_the_page(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)`", text))
    assert len(rules()) > 70 and rules() - named == set()
    assert {name for name in PLAIN if f"`{name}`" not in text} == set()
    assert {query for query in HCCN_QUERIES if f"`{query}`" not in text} == set()
    assert {rung for rung in RUNGS if f"`{rung}`" not in text} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_example_prints_what_the_page_shows(page):
    text = page.read_text(encoding="utf-8")
    shown = re.search(r"\$ msparallel doctor --from docs/examples/doctor\n(.*?)```", text, re.S)
    command = [sys.executable, "-m", "msparallel", "doctor", "--from", "docs/examples/doctor"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=environment)
    pattern = "".join(r"(.*\n)*?" if line == "..." else re.escape(line) + "\n" for line in shown[1].splitlines())
    assert done.returncode == 1 and re.fullmatch(pattern, done.stdout), done.stdout


def test_what_setup_env_says_is_on_the_pages():
    script = (ROOT / "launch/setup_env.sh").read_text(encoding="utf-8")
    for page in PAGES:
        block = page.read_text(encoding="utf-8").split("$ source launch/setup_env.sh --explain\n")[1].split("```")[0]
        for line in block.splitlines():
            if line.startswith(" "):
                assert line.strip().replace("`", "\\`") in script, line
