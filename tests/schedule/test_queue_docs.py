"""docs/24: its quoted output, its table and the two languages are what comes out now."""

from __future__ import annotations

import re

import pytest
from test_docs import REPO, Shell, as_pattern, call, quoted, verb_of

from msparallel.cli.queue_simulate_text import span
from msparallel.schedule.queue.job import Cluster
from msparallel.schedule.queue.measure import Measures, measure
from msparallel.schedule.queue.policies import POLICIES
from msparallel.schedule.queue.replay import replay
from msparallel.schedule.queue.synthetic import synthetic_trace
from msparallel.schedule.queue.trace import COLUMNS

pytestmark = pytest.mark.pure
PAGES = [REPO / "docs" / name for name in ("24_queues.md", "24_queues.zh-CN.md")]
CLUSTER = Cluster(nodes=8, devices_per_node=8)


def test_quoted_output(tmp_path, monkeypatch):
    """The Chinese page quotes the same (tests/test_docs.py)."""
    monkeypatch.setenv("COLUMNS", "100")
    Shell(tmp_path)  # links recipes and docs
    monkeypatch.chdir(tmp_path)
    commands = [item for item in quoted(PAGES[0]) if verb_of(item.command) == "queue-simulate"]
    assert len(commands) >= 6
    for item in commands:
        _, _, told = call(item.command.split()[1:])
        assert item.output is not None and re.fullmatch(as_pattern(item.output), told), told


def table(page) -> list[list[str]]:
    lines = page.read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| \d+ \| 0\.", line)]


def test_the_table_of_loads():
    rows = table(PAGES[0])
    assert len(rows) == 8 and rows == table(PAGES[1])
    for row in rows:
        jobs = synthetic_trace(int(row[0]), CLUSTER, load=float(row[1]), standby_load=float(row[2]))
        alone = measure(replay([job for job in jobs if job.kind == "training"], CLUSTER, POLICIES["fifo"]))
        fifo, standby = (measure(replay(jobs, CLUSTER, POLICIES[name])) for name in ("fifo", "standby"))

        def wait(found: Measures, kind: str = "training") -> str:
            return span(found.waits[kind].mean_s)

        assert row[3:] == [f"{alone.utilisation:.1%}", f"{standby.utilisation:.1%}", wait(standby), wait(fifo),
                           wait(standby, "inference"), f"{standby.evictions:,}"]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_column_and_every_policy_is_told(page):
    text = page.read_text(encoding="utf-8")
    for word in (*COLUMNS, *POLICIES):
        assert f"`{word}`" in text, word
