"""Waiting for a table that somebody else writes."""

from __future__ import annotations

import threading
import time

import pytest
from cluster.tables import a2, write

from msparallel.cluster.wait_table import wait_for_table
from msparallel.errors import RecipeError, RunError

pytestmark = pytest.mark.pure
EMPTY = {"status": "initializing", "server_list": [], "server_count": "0", "version": "1.0"}


def test_a_table_that_is_whole_is_not_waited_for(tmp_path):
    begin = time.monotonic()
    assert wait_for_table(write(tmp_path, a2()), 60).size == 16
    assert time.monotonic() - begin < 5


def test_it_comes_by_and_by(tmp_path):
    stages = [EMPTY, '{"status": "compl', a2()]

    def operator() -> None:
        for stage in stages:
            time.sleep(0.3)
            write(tmp_path, stage)

    writer = threading.Thread(target=operator)
    writer.start()
    try:
        assert wait_for_table(tmp_path / "hccl.json", 60).size == 16
    finally:
        writer.join()


def test_the_time_is_over(tmp_path):
    with pytest.raises(RunError, match=r"still no such file after 0.1 s"):
        wait_for_table(tmp_path / "hccl.json", 0.1)
    with pytest.raises(RunError, match=r"status is still initializing after 0.1 s"):
        wait_for_table(write(tmp_path, EMPTY), 0.1)
    with pytest.raises(RunError, match=r"status is still unknown"):
        wait_for_table(write(tmp_path, EMPTY | {"status": "unknown"}), 0)
    with pytest.raises(RecipeError, match="broken"):
        wait_for_table(write(tmp_path, '{"status": "compl'), 0.1)


def test_a_wrong_status_is_not_waited_for(tmp_path):
    assert wait_for_table(write(tmp_path, a2() | {"status": "done"}), 60).status == "done"
