"""The report page in a browser: the grid, slices under the pointer, sorting, no error and no request."""

from __future__ import annotations

import pytest
from report.browser import Browser, missing
from report.searched_job import searched_job
from report.small_job import small_job
from report.test_page import HOSTILE

from msparallel.hardware import load_hardware
from msparallel.report.dryrun_data import dryrun_data
from msparallel.report.page import DRY_RUN, write_page

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

UP = "model.layers.0-1.up_proj.weight"
CELLS = """return [...document.querySelectorAll(".device")].map((cell) => ({
    rank: cell.dataset.rank, node: cell.closest(".node").dataset.node, at: cell.querySelector(".at").textContent,
    held: cell.querySelector(".held").textContent, color: cell.style.getPropertyValue("--c"),
    compiled: cell.classList.contains("compiled")}))"""
COLUMN = """const heads = [...document.querySelectorAll("#collectives th")].map((head) => head.textContent);
    return [...document.querySelectorAll("#collectives tbody tr")].map((row) =>
        row.children[heads.indexOf(arguments[0])].textContent)"""
ESCAPE, TAB = "\ue00c", "\ue004"


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "report.html"
    write_page(str(path), DRY_RUN, dryrun_data(small_job(), load_hardware("atlas_800t_a2"), "2.9.0"))
    return path.as_uri()


def name(text: str) -> str:
    return f"//button[@class='parameter'][normalize-space(.)='{text}']"


def test_the_grid_shows_every_rank_on_its_node(browser, page):
    browser.open(page)
    cells = browser.run(CELLS)
    assert [(cell["rank"], cell["node"]) for cell in cells] == [(str(rank), str(rank // 4)) for rank in range(8)]
    assert [cell["at"] for cell in cells][5:7] == ["pp1 dp0 tp1", "pp1 dp1 tp0"]
    assert [cell["rank"] for cell in cells if cell["compiled"]] == ["0", "4"]
    assert [cell["color"] for cell in cells] == ["var(--c0)"] * 4 + ["var(--c1)"] * 4, "by stage"
    browser.click(browser.find("//div[@id='axis-choice']/button[@data-value='tp']"))
    assert [cell["color"] for cell in browser.run(CELLS)] == ["var(--c0)", "var(--c1)"] * 4
    assert browser.run("return document.querySelectorAll('#memory-bars .track .limit').length") == 2


def test_pointing_at_a_parameter_shows_its_slices(browser, page):
    browser.open(page)
    browser.point(browser.find(name(UP)))
    cells = browser.run(CELLS)
    assert [cell["held"] for cell in cells] == ["0:4", "8:12", "4:8", "12:16"] * 2
    assert len({cell["color"] for cell in cells}) == 4 and cells[1]["color"] == cells[5]["color"]
    assert "4 different slices, each on one rank of a stage" in browser.run("return shown.textContent")
    browser.point(browser.find(name("model.embed_tokens.weight")))
    assert [cell["held"] for cell in browser.run(CELLS)] == ["0:8", "8:16", "16:24", "24:32"] + ["not here"] * 4
    browser.point(browser.find("//h1"))
    assert {cell["held"] for cell in browser.run(CELLS)} == {""}


def test_a_click_keeps_a_parameter_and_its_address_opens_it_again(browser, page):
    browser.open(page)
    browser.click(browser.find(name(UP)))
    browser.point(browser.find("//h1"))
    browser.run("document.activeElement.blur()")
    assert browser.run(CELLS)[1]["held"] == "8:12"
    address = browser.run("return location.href")
    browser.open("about:blank")
    browser.open(address)
    assert browser.run(CELLS)[1]["held"] == "8:12"
    browser.press(ESCAPE)
    assert browser.run(CELLS)[1]["held"] == ""


def test_the_keyboard_reaches_slices(browser, page):
    browser.open(page)
    for _ in range(200):
        browser.press(TAB)
        if browser.run("return document.activeElement.textContent.trim()") == UP:
            break
    assert browser.run(CELLS)[3]["held"] == "12:16"


def test_the_collective_table_sorts(browser, page):
    browser.open(page)
    assert browser.run(COLUMN, "total") == ["8 MiB", "3 MiB", "2 MiB"]
    head = browser.find("//div[@id='collectives']//th/button[.='a message']")
    browser.click(head)
    assert browser.run(COLUMN, "a message")[0] == "3 MiB"
    browser.click(head)
    assert browser.run(COLUMN, "a message")[-1] == "3 MiB"
    assert browser.run("return arguments[0].parentElement.getAttribute('aria-sort')", head) == "ascending"
    assert "between servers" in browser.run(COLUMN, "links")


def test_operators_that_are_whole_appear_on_demand(browser, page):
    browser.open(page)
    rows = "return document.querySelectorAll('#strategies tbody tr').length"
    assert browser.run(rows) == 2
    browser.click(browser.find("//input[@id='show-whole']"))
    assert browser.run(rows) == 3


def test_hostile_names_are_text(browser, tmp_path):
    path = tmp_path / "hostile.html"
    job = small_job(source=HOSTILE, scope=HOSTILE, notes=(HOSTILE,))
    write_page(str(path), DRY_RUN, dryrun_data(job))
    browser.open(path.as_uri())
    assert browser.run("return document.querySelectorAll('img, body > script').length") == 2, "its data and its script"
    assert HOSTILE.partition(" \u2028")[0] in browser.run("return document.querySelector('h1').textContent")


def test_a_request_and_an_error_would_be_seen(tmp_path):
    """What the other tests find absent is found where it is there."""
    path = tmp_path / "loads.html"
    path.write_text("<img src='http://127.0.0.1:9/x.png'><script>undefined.x</script>", encoding="utf-8")
    with Browser(tmp_path) as running:
        running.open(path.as_uri())
        assert "http://127.0.0.1:9/x.png" in running.requests()
        assert any("TypeError" in line for line in running.console())


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_narrow_and_wide_light_and_dark(tmp_path, page, width, dark):
    with Browser(tmp_path, dark=dark) as browser:
        browser.size(width, 1000)
        browser.open(f"{page}#{UP}")
        assert browser.run("return document.documentElement.scrollWidth") <= width
        red, green, blue = browser.run(
            "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        )
        assert (max(red, green, blue) < 64) == dark
        clipped = browser.run(
            "return [...document.querySelectorAll('.device')].filter((cell) => cell.scrollWidth > cell.clientWidth)"
            ".map((cell) => cell.textContent)"
        )
        assert clipped == []
        picture = tmp_path / "page.png"
        browser.screenshot(picture)
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
        assert browser.console() == []


def test_a_search_beside_the_strategies_by_hand(browser, tmp_path, page):
    rows = "return [...document.querySelectorAll('#searched tbody tr')].map((row) => row.children[1].textContent)"
    shown = "return getComputedStyle(document.getElementById('search')).display !== 'none'"
    browser.open(page)
    assert not browser.run(shown)
    path = tmp_path / "searched.html"
    write_page(str(path), DRY_RUN, dryrun_data(searched_job(), load_hardware("atlas_800t_a2"), "2.9.0"))
    browser.open(path.as_uri())
    assert browser.run(shown)
    assert browser.run(rows) == ["up_proj, gate_proj", "head"]
    browser.click(browser.find("//input[@id='show-same']"))
    assert browser.run(rows) == ["up_proj, gate_proj", "the layer", "head"]
    assert "every device has the whole weight" in browser.run("return document.getElementById('searched').textContent")
