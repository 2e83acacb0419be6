"""Progress where stderr is no terminal."""

from __future__ import annotations

import pytest

from msparallel.cli import launch_text
from msparallel.cli.launch_text import Follower
from msparallel.plan import resolve
from msparallel.recipe.load import load_recipe

pytestmark = pytest.mark.pure


def test_a_line_is_told_once_while_nothing_changes(capsys, monkeypatch):
    monkeypatch.setattr(launch_text, "LINE_S", 0.0)
    with Follower(resolve(load_recipe("gpt_tiny_dp2_cpu"))) as follower:
        compiles, first, second = ("compile", 0, None), ("step", 1, 6.5), ("step", 2, 6.5)
        for phase, step, loss in (("start", None, None), compiles, compiles, first, first, second, compiles):
            follower.show(phase, step, loss)
    told = [line.partition("step ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [line.split(" of ")[0] for line in told] == ["0", "1", "2", "0"]
    assert told[0].endswith(", compile") and told[1].endswith(", loss 6.5000")
