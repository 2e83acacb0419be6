"""The fault handbook is what the rules say, and every finding leads into it."""

import importlib.util
import re

import pytest

from msparallel.diagnose.rule import rules

pytestmark = pytest.mark.pure


@pytest.fixture(scope="module")
def make_faults(repo):
    spec = importlib.util.spec_from_file_location("make_faults", repo / "docs" / "make_faults.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_is_up_to_date(make_faults, language):
    file = make_faults.PAGES[language]
    assert file.read_text(encoding="utf-8") == make_faults.page(language), "run: python docs/make_faults.py"


def test_every_rule_has_its_heading(repo, make_faults):
    for file in make_faults.PAGES.values():
        titles = set(re.findall(r"^### (\w+)$", file.read_text(encoding="utf-8"), re.M))
        assert titles == {rule.id for rule in rules()}
    for rule in rules():
        page, _, anchor = rule.doc.partition("#")
        assert (repo / page).exists() and anchor == rule.id
