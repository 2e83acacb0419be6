"""Documentation that can be wrong is run: commands, their quoted output, links, tables, recipe headers.

Quoted output of `ls`, `cp`, `schema`, `show`, `validate`, `plan`, `plan-evaluate`, `import`, `export`, `profile`,
`kubernetes` and `ranktable` (also in pipes) must be what the command prints now; a line `...` stands for any number of
lines. `run` is not started: its recipe, overrides and options are resolved; what it writes under output/ is quoted as
it was seen.
After a change that is meant: MSPARALLEL_WRITE_DOCS=1 python -m pytest tests/test_docs.py, then read the diff.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
import yaml

from msparallel.cli.main import commands, main
from msparallel.cli.recipe_arguments import split_overrides
from msparallel.compile.mindformers_job import mindformers_job
from msparallel.interop.mindformers import is_mindformers, read_mindformers
from msparallel.plan import resolve
from msparallel.recipe.library import shipped_recipes
from msparallel.recipe.load import load_recipe
from msparallel.recipe.schema import SECTIONS

pytestmark = pytest.mark.pure
REPO = Path(__file__).resolve().parents[1]
PAGES = sorted([*REPO.glob("README*.md"), *(REPO / "docs").glob("*.md")])
PAIRS = [(page, page.with_name(f"{page.name[:-3]}.zh-CN.md")) for page in PAGES if not page.name.endswith(".zh-CN.md")]
WRITE = bool(os.environ.get("MSPARALLEL_WRITE_DOCS"))
EXECUTED = ("ls", "cp", "schema", "show", "validate", "plan", "plan-evaluate", "import", "export", "ranktable",
            "kubernetes", "profile")  # fmt: skip
SHELL = ("diff", "sed", "cat", "head", "tail", "grep", "echo")
"""Programs that a quoted command may use beside msparallel; they run for real, in a folder of their own."""
CODE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.M | re.S)
ONE_LANGUAGE = ("out_of_reach.md", "troubleshooting.md")
"""Pages that need no translation: made from the rules, or lists of public reports."""


@dataclass(frozen=True, kw_only=True)
class Quoted:
    """A command of a page and the lines that the page shows below it; None where it shows none (a bash block)."""

    command: str
    output: list[str] | None


def name(page: Path) -> str:
    return page.relative_to(REPO).as_posix()


def blocks(page: Path, *languages: str) -> list[str]:
    """Fenced code of some languages; `yaml wrong` marks a block that is meant to be wrong."""
    return [body for language, note, body in CODE.findall(page.read_text(encoding="utf-8"))
            if language in languages and "wrong" not in note]  # fmt: skip


def quoted(page: Path) -> list[Quoted]:
    """All commands of a page, in order."""
    found = []
    for language, _, body in CODE.findall(page.read_text(encoding="utf-8")):
        if language == "bash":
            body = body.replace("\\\n", "")
            found += [Quoted(command=without_remark(line), output=None) for line in body.splitlines()
                      if line.strip() and not line.startswith("#")]  # fmt: skip
        elif language == "console":
            while re.search(r"^\$ .*\\\n", body, re.M):  # a command's lines; what is printed may end so too
                body = re.sub(r"^(\$ .*)\\\n", r"\1", body, flags=re.M)
            for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
                command, *output = part.rstrip("\n").split("\n")
                found.append(Quoted(command=without_remark(command), output=output))
    return found


def without_remark(command: str) -> str:
    """A command without `# remark` or a remark in round brackets behind it."""
    return re.sub(r"\s+(#.*|\((?!\)).*\))$", "", command).strip() if "<(" not in command else command


def call(arguments: list[str]) -> tuple[int, str, str]:
    """Exit code, stdout and both streams together, of `msparallel ARGUMENTS`; the repository's own path is cut off."""
    both, out = io.StringIO(), io.StringIO()

    class Tee(io.StringIO):
        def write(self, text: str) -> int:
            out.write(text)
            return both.write(text)

    with contextlib.redirect_stdout(Tee()), contextlib.redirect_stderr(both), pytest.raises(SystemExit) as end:
        main(arguments)
    told = [stream.getvalue().replace(f"{REPO}/", "") for stream in (out, both)]
    return end.value.code or 0, told[0], told[1]


def verb_of(command: str) -> str | None:
    words = shlex.split(command) if command.startswith("msparallel ") else []
    return words[1] if len(words) > 1 else None


def check_run(command: str) -> None:
    """Options parse; recipe and overrides resolve. Nothing is started."""
    verb, *words = shlex.split(command)[1:]
    parsed = commands.get_command(click.Context(commands), verb)
    assert parsed is not None, f"no such verb: {verb}"
    context = parsed.make_context(verb, list(words))  # click takes words out of the list it is given
    given = [word for value in context.params.values() for word in (value if isinstance(value, tuple) else [value])]
    recipes, overrides = split_overrides(word for word in given if isinstance(word, str) and word in words)
    for recipe in recipes:
        if verb == "dryrun" and Path(recipe).is_file() and is_mindformers(recipe):
            mindformers_job(read_mindformers(recipe, overrides=overrides))
        elif recipe in shipped_recipes() or recipe.endswith(".yaml"):
            loaded = load_recipe(recipe, overrides)
            several = verb == "run" and resolve(loaded).nodes > 1
            assert not several or None not in (context.params["master_addr"], context.params["master_port"]), command


class Shell:
    """Runs the commands of one page, in order, in a folder that has the recipes in it."""

    def __init__(self, folder: Path):
        self.folder, self.code, self.count = folder, 0, 0
        (folder / "recipes").symlink_to(REPO / "recipes")
        for part in ("launch", "docs"):
            (folder / part).symlink_to(REPO / part)

    def run(self, command: str) -> str | None:
        """What the command prints; None for one that is only checked."""
        if command == "echo $?":
            return f"{self.code}\n"
        verb = verb_of(command)
        printed = verb in EXECUTED or "--print-command" in command
        if printed and not re.search(r"[|<>]", command):
            words = [str(path) for word in shlex.split(command)[1:] for path in self._glob(word)]
            with _chdir(self.folder):
                self.code, _, told = called(tuple(words)) if verb == "plan" else call(words)
            return told
        if verb is not None and not printed:
            with _chdir(self.folder):
                check_run(command)
            return None
        if command.startswith("python -c "):
            environment = {**os.environ, "PYTHONPATH": str(REPO)}
            done = subprocess.run([sys.executable, *shlex.split(command)[1:]], capture_output=True, text=True,
                                  cwd=self.folder, env=environment)  # fmt: skip
            assert done.returncode == 0, done.stderr
            return done.stdout
        reads_a_run = verb is None and "output/" in command
        if (command.split()[0] in SHELL or "|" in command) and not reads_a_run:
            return self._bash(command)
        return None

    def _glob(self, word: str) -> list[str]:
        found = self.folder.glob(word) if "*" in word else []
        return sorted(path.relative_to(self.folder).as_posix() for path in found) or [word]

    def _bash(self, command: str) -> str:
        """A pipe or a comparison: what msparallel prints comes from files, the rest runs."""

        def substitute(match: re.Match[str]) -> str:
            arguments = shlex.split(match.group(1))
            assert arguments[0] in EXECUTED, f"in a pipe: {command}"
            with _chdir(self.folder):
                _, told, _ = call(arguments)
            self.count += 1
            file = self.folder / f".printed_{self.count}"
            file.write_text(told, encoding="utf-8")
            return f"cat {file.name}"

        replaced = re.sub(r"msparallel ([^|<>();&]+)", substitute, command)
        for part in re.split(r"[|]|<\(", re.sub(r"'[^']*'", "''", replaced)):
            assert part.split()[0] in SHELL, f"not among the programs a page may use: {part}"
        done = subprocess.run(["bash", "-c", replaced], capture_output=True, text=True, cwd=self.folder)
        self.code = done.returncode
        return done.stdout + done.stderr


@contextlib.contextmanager
def _chdir(folder: Path):
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@functools.cache
def called(arguments: tuple[str, ...]) -> tuple[int, str, str]:
    """`call` of what reads no file that a page makes; pages in two languages show the same."""
    return call(list(arguments))


def refreshed(shown: list[str], printed: str) -> list[str]:
    """Printed lines where a page shows older ones: what stands behind a `...` begins at the next line of the same
    words, whatever its numbers; all of it where there is none."""

    def words(line: str) -> str:
        return re.sub(r"[\W\d_]+", " ", line).strip()

    lines, found, place = printed.rstrip("\n").split("\n"), [], 0
    for number, line in enumerate(shown):
        if line.strip() == "...":
            found.append(line)
            continue
        if number and shown[number - 1].strip() == "...":
            alike = [at for at in range(place, len(lines)) if words(lines[at]) == words(line)]
            if not alike:
                return lines
            place = alike[0]
        found += lines[place : place + 1]
        place += 1
    return found


def as_pattern(lines: list[str]) -> str:
    """Quoted output as a regular expression: `...` is any number of lines."""
    return "".join(r"(.*\n)*?" if line.strip() == "..." else re.escape(line.rstrip()) + r"[ ]*\n" for line in lines)


def test_there_are_pages():
    assert len(PAGES) > 10


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_do_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    shell, wrong = Shell(tmp_path), []
    for item in quoted(page):
        printed = shell.run(item.command)
        if printed is None or item.output is None:
            looked_for = re.match(r"grep -ho '(.+?)'", item.command)  # quoted from a run: at least what grep can find
            assert not looked_for or all(re.fullmatch(looked_for[1], line) for line in item.output or [])
            continue
        if not re.fullmatch(as_pattern(item.output), printed):
            wrong.append((item, printed))
    if WRITE and wrong:
        text = page.read_text(encoding="utf-8")
        for item, printed in wrong:
            start = re.search(rf"^\$ {re.escape(item.command)}([ ]+#.*)?$", text, re.M)
            assert start, f"{item.command}: is not on one line of the page"
            begin = start.end() + 1
            end = min(at for mark in ("\n$ ", "\n```") if (at := text.find(mark, begin - 1)) >= 0) + 1
            now = "\n".join(refreshed(item.output, printed)) + "\n"
            text = text[:begin] + re.sub(r"[ ]+$", "", now, flags=re.M) + text[end:]
        page.write_text(text, encoding="utf-8")
    elif wrong:
        item, printed = wrong[0]
        shown = "\n".join(item.output or [])
        pytest.fail(f"{name(page)}: $ {item.command}\nprints\n{printed}\nthe page shows\n{shown}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_yaml_has_known_keys(page):
    for block in blocks(page, "yaml"):
        content = yaml.safe_load(block)
        assert isinstance(content, dict), block
        for section, keys in content.items():
            assert section in SECTIONS, section
            assert set(keys or {}) <= set(SECTIONS[section].model_fields), keys


def headings(page: Path) -> list[tuple[int, str]]:
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return [(len(marks), title) for marks, title in re.findall(r"^(#+) (.+)$", text, re.M)]


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of a page's headings."""
    slugs = (re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()) for _, title in headings(page))
    return {slug.replace(" ", "-") for slug in slugs}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name(page)}: {target}"
        assert file.is_relative_to(REPO), f"{name(page)} leads out of the repository: {target}"
        assert not anchor or anchor in anchors(file), f"{name(page)}: {target} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_that_are_named_exist(page):
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(r"`((?:tests|msparallel|launch|recipes|docs)/[\w./]*)`", text):
        assert (REPO / path).exists() or (REPO / "msparallel" / path).exists(), f"{name(page)}: {path}"


@pytest.mark.parametrize("page", ["00_read_the_code.md", "00_read_the_code.zh-CN.md"])
def test_every_module_has_its_line(page):
    text = (REPO / "docs" / page).read_text(encoding="utf-8")
    for file in (REPO / "msparallel").rglob("*.py"):
        verb_or_rule = file.parent.name in ("cli", "rules", "hardware")
        assert file.name == "__init__.py" or verb_or_rule or file.name in text, f"{page} leaves out {name(file)}"


@pytest.mark.parametrize(("english", "chinese"), PAIRS, ids=lambda page: name(page))
def test_both_languages_say_the_same(english, chinese):
    if english.name in ONE_LANGUAGE:
        return
    assert chinese.exists(), f"{name(english)} has no {chinese.name}"
    if english.name == "recipe_reference.md":  # generated; the Chinese page says how to read it
        return
    assert [level for level, _ in headings(english)] == [level for level, _ in headings(chinese)]
    assert [item.command for item in quoted(english)] == [item.command for item in quoted(chinese)]
    assert [item.output for item in quoted(english)] == [item.output for item in quoted(chinese)]
    assert re.search(r"[一-鿿]", chinese.read_text(encoding="utf-8"))


def test_no_translation_without_an_original():
    for page in PAGES:
        if page.name.endswith(".zh-CN.md"):
            assert page.with_name(page.name.replace(".zh-CN.md", ".md")).exists()


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_every_recipe_stands_in_the_table(page):
    rows = {cells[1].strip(" `"): cells for line in (REPO / page).read_text(encoding="utf-8").splitlines()
            if line.startswith("| `") and len(cells := line.split("|")) >= 6}  # fmt: skip
    assert set(shipped_recipes()) <= set(rows)
    for recipe in shipped_recipes():
        plan = resolve(load_recipe(recipe))
        assert rows[recipe][2].strip() == str(plan.world_size), rows[recipe]
        assert str(plan.mesh).rpartition(" (")[0] in rows[recipe][3] or plan.world_size == 1, rows[recipe]


def header_lines(recipe: str) -> dict[str, str]:
    """`Run`, `Try` ... of a recipe's header comment."""
    return dict(re.findall(r"^# (\w+): +(.+)$", shipped_recipes()[recipe].read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize("recipe", sorted(shipped_recipes()))
def test_recipe_headers_work(recipe, tmp_path):
    lines = header_lines(recipe)
    assert {"Teaches", "Devices", "Run", "Try"} <= set(lines)
    shell = Shell(tmp_path)
    for line in (lines["Run"], lines["Try"]):
        command = without_remark(line)
        assert verb_of(command) is not None, line
        shell.run(command)
        assert shell.code == (2 if "shows the error" in line else 0), line


def test_reference_is_up_to_date():
    file = REPO / "docs" / "make_reference.py"
    spec = importlib.util.spec_from_file_location("make_reference", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if WRITE:
        module.PAGE.write_text(module.page(), encoding="utf-8")
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), f"run: python {name(file)}"
