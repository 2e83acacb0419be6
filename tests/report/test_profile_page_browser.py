"""The page of a profile in a browser: what is drawn, that orders and wires change, that nothing is asked for."""

from __future__ import annotations

import pytest
from profiling.made_cluster import EXAMPLE, Cluster
from report.browser import missing

from msparallel.profiling.profile import profile
from msparallel.profiling.recipe_changes import Recipes
from msparallel.report.page import PROFILE, write_page
from msparallel.report.profile_data import profile_data

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]
TEXT = "return document.getElementById(arguments[0]).textContent"
COUNT = "return document.querySelectorAll(arguments[0]).length"
RANKS = "return [...document.querySelectorAll('.rank-row')].map((row) => Number(row.dataset.rank))"


def opened(browser, tmp_path, found) -> dict:
    path = tmp_path / "profile.html"
    document = profile_data(found, folder="made")
    write_page(str(path), PROFILE, document)
    browser.open(path.as_uri())
    return document


def test_the_example(browser, tmp_path):
    found = profile(EXAMPLE.write(tmp_path / "made"), recipes=Recipes("llama2_7b_dp2_tp2_pp2", ()))
    document = opened(browser, tmp_path, found)
    assert browser.run(COUNT, "#findings > li") == len(document["findings"])
    assert browser.run(COUNT, "#operator-table tbody tr") == 5
    assert browser.run(COUNT, "#compared-table tbody tr") == 5
    assert browser.run(RANKS) == list(range(8))
    browser.click(browser.find("//div[@id='order-choice']/button[.='computes']"))
    assert browser.run(RANKS)[0] == 5
    browser.click(browser.find("//div[@id='wire-choice']/button[.='RDMA']"))
    assert browser.run(COUNT, "#heat rect.cell") == 8
    fills = browser.run("return [...document.querySelectorAll('#heat rect.cell')].map((c) => [c.dataset.link, "
                        "c.getAttribute('fill')])")  # fmt: skip
    assert [link for link, fill in fills if fill.startswith("hsl(0 ")] == ["1-3"]
    browser.point(browser.find("//*[@data-link='1-3']"))
    assert browser.run(TEXT, "heat-detail").startswith("rank 1 to rank 3: 5.98 GB/s")


def test_64_ranks_and_none(browser, tmp_path):
    opened(browser, tmp_path, profile(Cluster().write(tmp_path / "made")))
    assert browser.run(COUNT, ".rank-row") == 64 and browser.run(TEXT, "verdict-text") == "Nothing stands out"
    widths = browser.run("return [...document.querySelectorAll('.rank-row .stack')].map((s) => "
                         "[...s.children].reduce((sum, part) => sum + parseFloat(part.style.width), 0))")  # fmt: skip
    assert all(90 < width <= 100.01 for width in widths)
    browser.size(420, 900)
    assert browser.run("return document.documentElement.scrollWidth") <= 420


def test_a_folder_with_a_test_alone(browser, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "all_reduce_test_8p.txt").write_text(
        "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n8192 | 7 | 1 | failed\n")
    opened(browser, tmp_path, profile(tmp_path / "t"))
    assert browser.run(TEXT, "verdict-text") == "A device computes something wrong"
    hidden = browser.run("return [...document.querySelectorAll('section')].filter((s) => !s.hidden).map((s) => s.id)")
    assert hidden == ["verdict", "tests"]
