"""One run at a time in a folder; what is there must be readable."""

import pytest
from tiny_recipe import sections

from msparallel.errors import RunError
from msparallel.plan import resolve
from msparallel.recipe.load import load_text
from msparallel.train.log import read_records
from msparallel.train.run import run_dir, sole_run

pytestmark = pytest.mark.pure


@pytest.fixture
def plan(tmp_path):
    import yaml

    return resolve(load_text(yaml.safe_dump(sections(tmp_path)), str(tmp_path / "tiny.yaml")))


def test_a_second_run_is_refused_while_the_first_goes_on(plan):
    with sole_run(plan), pytest.raises(RunError, match="Another process is training here"), sole_run(plan):
        pytest.fail("two runs held the folder")
    with sole_run(plan):
        pass


def test_machines_hold_their_own_parts(plan):
    with sole_run(plan, 0), sole_run(plan, 1):
        pass


def test_an_output_dir_that_is_a_file(plan):
    run_dir(plan).parent.write_text("")
    with pytest.raises(RunError, match="cannot be written"), sole_run(plan):
        pytest.fail("a file held a folder")


def test_an_error_inside_is_not_taken_for_one_of_the_lock(plan):
    with pytest.raises(OSError, match="inside"), sole_run(plan):
        raise OSError("inside")


@pytest.mark.parametrize("last", ["[]", '"text"', '{"step": "4"}', "{"])
def test_a_last_line_that_is_no_record_is_left_out(tmp_path, last):
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "train", "step": 1, "loss": 2.0}\n' + last)
    assert [record["step"] for record in read_records(path)] == [1]


def test_a_log_that_is_a_folder(tmp_path):
    with pytest.raises(RunError, match="cannot be read"):
        read_records(tmp_path)
