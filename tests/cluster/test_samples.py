"""Real rank tables and hccn files: parsed, or refused with a reason. A clone has none of them: skipped then."""

from __future__ import annotations

import pytest

from msparallel.cluster.check_table import check
from msparallel.cluster.hosts import read_hccn
from msparallel.cluster.read_table import read_rank_table
from msparallel.errors import RecipeError

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def samples(shared):
    folder = shared / "data" / "samples"
    if not folder.is_dir():
        pytest.skip(f"no samples at {folder}")
    return folder


def test_good_tables_are_read_and_every_rule_holds(samples):
    refused = {}
    for path in sorted((samples / "rank_table").glob("*.json")):
        try:
            found = check(read_rank_table(path))
        except RecipeError as error:
            refused[path.name] = error.problems[0]
            continue
        assert found.problems == (), path.name
        assert {item.rule for item in found.advice} <= {"form_is_current"}, path.name
    assert {problem.rule for problem in refused.values()} <= {"other_format"}
    assert all("ClusterD" in problem.message or "vLLM" in problem.message for problem in refused.values())


def test_bad_tables_are_all_caught(samples):
    files = sorted((samples / "rank_table" / "bad").glob("*.json"))
    assert files
    for path in files:
        try:
            problems = check(read_rank_table(path)).problems
        except RecipeError as error:
            problems = tuple(error.problems)
        assert problems and all(problem.line is not None for problem in problems), path.name


def test_hccn_files(samples):
    assert read_hccn(samples / "hccn" / "hccn.conf").devices == list(range(8))
    assert read_hccn(samples / "hccn" / "hccn_ipv6.conf").ipv6 == {0: "2001:db8::101"}
    with pytest.raises(RecipeError, match="Put a line before it: device 0"):
        read_hccn(samples / "hccn" / "ip_g.txt")
    with pytest.raises(RecipeError, match="No address of a network card"):
        read_hccn(samples / "hccn" / "ip_g_empty.txt")
