"""`msparallel kubernetes` as a user meets it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from msparallel.cli.main import main

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
BIG = "llama2_13b_dp4_tp4_pp2"


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*words: str, given: str = "") -> Done:
    """The command in this process, with exit code and streams of its own."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as end:
            main(["kubernetes", *words])
    finally:
        sys.stdin = before
    return Done(end.value.code or 0, out.getvalue(), err.getvalue())


def test_a_manifest_on_stdout_is_what_check_takes() -> None:
    made = run(BIG, "--pvc", "data", "--image", "reg.example/msp:1")
    assert (made.returncode, made.stderr) == (0, "")
    checked = run("--check", "-", given=made.stdout)
    assert checked.returncode == 0 and checked.stdout.splitlines()[-1] == "Every rule holds."
    assert "Job default/llama2-13b-dp4-tp4-pp2" in checked.stdout


SCRIPT = """
import sys
from msparallel.cli.main import main
try:
    main(["kubernetes", sys.argv[1], "--pvc", "data"])
except SystemExit as end:
    assert not end.code
print([name for name in ("mindspore", "torch", "jsonschema", "matplotlib") if name in sys.modules], file=sys.stderr)
"""


def test_a_process_of_its_own_imports_nothing_heavy() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, BIG]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0 and done.stderr.splitlines()[-1] == "[]", done.stderr


def test_a_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    words = (BIG, "train.steps=60000", "--pvc", "data", "-o", str(path))
    done = run(*words)
    assert done.returncode == 0 and done.stdout == "" and f"kubectl apply -f {path}" in done.stderr
    before = path.read_text()
    assert run(*words).returncode == 0 and path.read_text() == before
    other = run(BIG, "--pvc", "other", "-o", str(path))
    assert other.returncode == 2 and "--force" in other.stderr and path.read_text() == before
    assert run(BIG, "--pvc", "other", "-o", str(path), "--force").returncode == 0 and path.read_text() != before


def test_json_is_one_document() -> None:
    done = run(BIG, "--pvc", "data", "--json")
    told = json.loads(done.stdout)
    assert [one["kind"] for one in told["documents"]] == ["ConfigMap", "Job"] and told["pods"] == 4
    assert any("--image" in note for note in told["notes"])
    bad = run(BIG, "--kind", "msjob", "--json")
    assert bad.returncode == 2
    assert {problem["rule"] for problem in json.loads(bad.stdout)["problems"]} == {
        "msjob_ascend",
        "msjob_nodes",
        "one_volume",
    }


def test_what_cannot_be_had_is_refused_without_a_traceback() -> None:
    done = run(BIG, "--kind", "msjob", "--name", "\x1b[31m", "--image", "a b", "--host-path", "/x y")
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr and "\x1b" not in done.stderr
    assert "Try: --kind ascendjob" in done.stderr and "last commit is of August 2022" in done.stderr
    for words in (
        (),
        ("a", "b"),
        ("--check", "x", BIG),
        ("--two-queues", "8", "--scheduler-config"),
        ("no_such_recipe",),
    ):
        done = run(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr


def test_a_recipe_that_serves_is_a_deployment_by_itself() -> None:
    done = run("qwen3_8b_serve_tp1", "--pvc", "data", "--json")
    assert json.loads(done.stdout)["kind"] == "deployment"


def test_check_tells_line_rule_and_value(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = run(BIG, "--pvc", "data").stdout.replace("minAvailable: 4  #", "minAvailable: 9  #")
    path.write_text(text)
    done = run("--check", str(path))
    line = next(at for at, found in enumerate(text.splitlines(), 1) if "minAvailable: 9" in found)
    assert done.returncode == 2 and done.stdout == ""
    assert f"{path}:{line}  spec.minAvailable: 9\n" in done.stderr and "Try: minAvailable: 4" in done.stderr
    told = json.loads(run("--check", str(path), "--json").stdout)
    assert [problem["rule"] for problem in told["problems"]] == ["min_available"]
    missing = run("--check", str(tmp_path / "none"))
    assert missing.returncode == 2 and "cannot be read" in missing.stderr and "Traceback" not in missing.stderr


def test_the_examples_are_what_their_commands_make(tmp_path: Path) -> None:
    """launch/kubernetes/README.md names the command of each file beside it."""
    folder = ROOT / "launch" / "kubernetes"
    lines = (folder / "README.md").read_text(encoding="utf-8").splitlines()
    chinese = (folder / "README.zh-CN.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in chinese if line.startswith("msparallel ")] == [
        line for line in lines if line.startswith("msparallel ")
    ]
    commands = [shlex.split(line) for line in lines if line.startswith("msparallel kubernetes") and " -o " in line]
    made = set()
    for words in commands:
        path = Path(words[words.index("-o") + 1])
        done = run(*words[2 : words.index("-o")])
        assert done.returncode == 0, done.stderr
        assert done.stdout == (folder / path.name).read_text(encoding="utf-8"), (
            f"{path}: run {shlex.join(words)} --force"
        )
        assert run("--check", str(folder / path.name)).returncode == 0
        made.add(path.name)
    assert made == {path.name for path in folder.glob("*.yaml")}
    kinds = {
        one["kind"] for path in folder.glob("*.yaml") for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    }
    assert kinds == {"ConfigMap", "Job", "AscendJob", "MSJob", "Service", "Deployment", "Queue", "PriorityClass"}
