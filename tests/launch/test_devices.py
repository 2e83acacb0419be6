"""A machine without MindSpore: recipes can be read, and `run` says what is missing."""

import pytest

from msparallel.cli.main import main
from msparallel.launch import devices

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("recipe", ["quickstart", "gpt_tiny_dp2_cpu"])
def test_run_says_that_mindspore_is_missing(recipe, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["run", recipe])
    told = capsys.readouterr()
    assert end.value.code == 2 and told.out == ""
    assert "MindSpore is not installed" in told.err and "validate" in told.err
    assert not list(tmp_path.iterdir())
