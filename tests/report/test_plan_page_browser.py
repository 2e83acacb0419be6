"""The page of a plan in a browser: what is drawn, and that a click shows another strategy."""

from __future__ import annotations

import pytest
from report.browser import missing
from report.test_plan_page import planned

from msparallel.report.page import PLAN, write_page
from msparallel.report.plan_data import plan_data

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

CLICK = "document.querySelector(`circle[data-plan='${arguments[0]}']`).dispatchEvent(new MouseEvent('click'))"
TEXT = "return document.getElementById(arguments[0]).textContent"
COUNT = "return document.querySelectorAll(arguments[0]).length"


def test_a_point_shows_its_strategy(browser, tmp_path):
    plan, as_it_is, found = planned()
    path = tmp_path / "plan.html"
    write_page(str(path), PLAN, plan_data(plan, as_it_is, found))
    browser.open(path.as_uri())
    assert browser.run(COUNT, "circle.point") == 4
    assert browser.run(COUNT, ".memory-row") == found.candidates[0].work.mesh.pp
    for at, one in enumerate((as_it_is, *found.candidates)):
        browser.run(CLICK, at)
        assert str(one.work.mesh) in browser.run(TEXT, "verdict-detail")
        assert browser.run(COUNT, ".memory-row") == one.work.mesh.pp
        assert browser.run(COUNT, "#grid .device") == one.work.mesh.size
        told = browser.run("return data.plans[arguments[0]]", at)
        assert browser.run(COUNT, "#time-table tbody tr") == len(told["time"])
        assert browser.run(COUNT, "circle.point.shown") == 1
        assert browser.run(COUNT, "#pipeline rect.task") == len(told["pipeline"]["tasks"])


def test_where_nothing_fits_the_recipe_is_shown(browser, tmp_path):
    plan, as_it_is, found = planned(devices=8)
    path = tmp_path / "plan.html"
    write_page(str(path), PLAN, plan_data(plan, as_it_is, found))
    browser.open(path.as_uri())
    assert browser.run(TEXT, "search-head") == "Nothing that the rules allow fits"
    assert browser.run(COUNT, "circle.point") == 0
    assert browser.run(COUNT, "#rejected-table tbody tr") > 0
    assert browser.run(TEXT, "verdict-text").startswith("Fits")
