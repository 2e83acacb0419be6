"""`plan-evaluate` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from measured_rows import LLAMA, STATIC, static_row, written

from msparallel.cli.main import commands

pytestmark = pytest.mark.pure


def run(*words: str):
    return CliRunner().invoke(commands, ["plan-evaluate", *words])


@pytest.fixture
def table(tmp_path: Path) -> str:
    rows = [static_row(name) for name in STATIC]
    suspect = {**LLAMA, "trust": "suspect"}
    wrong = {**rows[0], "value_by_rank": "", "value": "40"}
    return str(written(tmp_path / "cases.csv", *rows, suspect, suspect, wrong))


def test_text_has_figures_outliers_and_reasons(table: str, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")  # the folder of a test may have a long name
    done = run(table)
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[:2] == [table, "8 of 10 rows estimated, 2 skipped"]
    (state,) = [line for line in lines if line.startswith("  model state ") and line.split()[2] == "8"][:1]
    assert state.split()[:3] == ["model", "state", "8"] and float(state.split()[3]) < 0.1
    assert "Model state within 3 %: 6 of 7 dense rows" in lines
    outliers = next(place for place, line in enumerate(lines) if line.startswith("Outliers: model state beyond 3 %"))
    assert lines[outliers + 2].split()[:2] == ["11", "llama2_tp1_pp8_patch_gloo_ptd"]
    skipped = lines[lines.index("Skipped rows") + 2]
    assert skipped.split() == ["2", "trust:", "suspect", "9,", "10"]


def test_json_is_one_document(table: str) -> None:
    done = run(table, "--json")
    assert done.exit_code == 0
    found = json.loads(done.output)
    assert found["metrics"]["model_state"]["n"] == 8 and len(found["skipped"]) == 2


def test_picture_is_written(table: str, tmp_path: Path) -> None:
    target = tmp_path / "errors.png"
    done = run(table, "--plot", str(target))
    assert done.exit_code == 0 and target.read_bytes().startswith(b"\x89PNG")
    assert done.output.splitlines()[-1] == f"Picture  {target}"


def test_a_picture_that_cannot_be_written_is_told(table: str, tmp_path: Path) -> None:
    done = run(table, "--plot", str(tmp_path / "absent" / "errors.png"))
    assert done.exception.exit_code == 2 and "cannot be written" in str(done.exception)


def test_a_file_that_is_no_table_is_told(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    for name in ("other.csv", "absent.csv"):
        done = run(str(tmp_path / name))
        assert done.exit_code != 0 and name in str(done.exception)


def test_a_file_without_usable_rows_says_why(tmp_path: Path) -> None:
    done = run(str(written(tmp_path / "c.csv", {**LLAMA, "layers": ""})))
    assert done.exit_code == 0
    assert "0 of 1 rows estimated, 1 skipped" in done.output and "column layers: empty" in done.output


def test_a_picture_takes_no_other_files_place(table: str, tmp_path: Path) -> None:
    """Not that of the table itself either; an older picture's it does."""
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    for path in (other, Path(table)):
        before = path.read_bytes()
        done = run(table, "--plot", str(path))
        assert done.exception.exit_code == 2 and "left as it is" in str(done.exception) and path.read_bytes() == before
        assert not done.output
    for _ in range(2):
        assert run(table, "--plot", str(tmp_path / "errors.png")).exit_code == 0


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    done = run("/dev/zero")
    assert done.exit_code == 1 and "/dev/zero: has more than 64 MiB" in str(done.exception)
