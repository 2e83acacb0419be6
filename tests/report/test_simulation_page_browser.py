"""The page of a simulation in a browser: what is drawn, what is said of what the mouse is at, zoom, memory, tables."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.browser import Browser, missing
from report.small_step import (
    crowded_timed,
    hanging_simulation,
    small_simulation,
    small_timed,
    wrong_simulation,
)
from report.test_page import HOSTILE

from msparallel.report.page import SIMULATION, write_page
from msparallel.report.simulation_data import simulation_data, timed_data

pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(missing()), reason=missing())]

CANVAS = "//canvas[@id='{}']"
DRAWN = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))"
SPAN = """const row = rows.find((row) => row.rank === arguments[0] && row.stream === arguments[1]);
    const at = [...row.kind.keys()].filter((at) => step.spans.ops[step.spans.kinds[row.kind[at]][0]] === arguments[2])[arguments[3]];
    const lane = charts[0].lanes.find((lane) => lane.row === row), box = byId("timeline").getBoundingClientRect();
    return {right: Math.round(charts[0].x((row.starts[at] + row.ends[at]) / 2) - box.width / 2),
        down: Math.round(lane.y + lane.height / 2 - box.height / 2), begins: row.starts[at] * step.unit_s, at: at}"""  # noqa: E501
PIXELS = """const canvas = byId("timeline"), scale = canvas.width / charts[0].width;
    const brush = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", {willReadFrequently: true});
    brush.drawImage(canvas, 0, 0);
    const lane = charts[0].lanes.find((lane) => lane.rank === arguments[0] && lane.row.stream === arguments[1]);
    const from = charts[0].x(arguments[2] / step.unit_s), to = charts[0].x(arguments[3] / step.unit_s);
    const found = brush.getImageData((from + 1) * scale, lane.y * scale, (to - from - 2) * scale, lane.height * scale);
    const colors = {};
    for (let at = 0; at < found.data.length; at += 4) {
        const color = [...found.data.slice(at, at + 3)].join(" ");
        colors[color] = (colors[color] || 0) + 1;
    }
    return colors"""
WORDS = "return byId('details').textContent"
COLORS = ("59 125 196", "217 128 50", "47 156 130")
"""--c0, --c1 and --c2 of the light page."""


def open_page(browser, tmp_path, document) -> None:
    path = tmp_path / "report.html"
    write_page(str(path), SIMULATION, document)
    browser.open(path.as_uri())
    browser.run(DRAWN)


@pytest.fixture
def opened(browser, tmp_path):
    open_page(browser, tmp_path, simulation_data(small_simulation(), "2.9.0"))
    return browser


def canvas(browser, name: str = "timeline"):
    return browser.find(CANVAS.format(name))


def point(browser, rank: int, stream: str, op: str, number: int = 0) -> dict:
    place = browser.run(SPAN, rank, stream, op, number)
    browser.point(canvas(browser), place["right"], place["down"])
    browser.run(DRAWN)
    return place


def column(browser, table: str, head: str) -> list[str]:
    script = """const heads = [...document.querySelectorAll(`#${arguments[0]} th`)].map((head) => head.textContent);
        return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].map((row) =>
            row.children[heads.indexOf(arguments[1])].textContent)"""
    return browser.run(script, table, head)


def rows_shown(browser) -> list[list]:
    return browser.run("return charts[0].lanes.map((lane) => [lane.rank, lane.row.stream])")


def test_the_head_says_what_was_executed_and_how_it_ended(opened):
    assert opened.run("return document.title") == "Simulation: recipes/llama2_7b_dp2_tp2_pp2.yaml"
    assert opened.run("return byId('verdict-text').textContent") == "The strategy computes the same as one device."
    changes = "return [...byId('change-list').children].map((change) => change.textContent)"
    assert opened.run(changes) == ["model.attention=plain", "model.num_layers=4"]
    assert column(opened, "losses", "cluster") == ["5.545177", "5.501235"]
    assert column(opened, "gradients", "tensor") == ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    assert opened.run("return byId('zero').open") is False
    assert "model.k_proj.bias" in opened.run("return byId('zero').textContent")


def test_what_differs_is_said_in_words(browser, tmp_path):
    open_page(browser, tmp_path, simulation_data(wrong_simulation()))
    assert browser.run("return byId('verdict').className") == "differs"
    assert column(browser, "losses", "difference") == ["0.0e+00", "3.6e-02 too much"]
    assert column(browser, "gradients", "relative difference") == ["5.0e-01 too much", "1.0e-07"]


def test_a_job_that_hangs(browser, tmp_path):
    open_page(browser, tmp_path, simulation_data(hanging_simulation()))
    shown = "return [...document.querySelectorAll('main section')].filter((s) => s.offsetHeight).map((s) => s.id)"
    assert browser.run(shown) == ["verdict", "waits"]
    heads = ["rank", "waits in", "cell", "of group", "for rank"]
    assert list(zip(*[column(browser, "wait-table", head) for head in heads], strict=True)) == [
        ("0 pp0 dp0 tp0", "Send", "layers.0.mlp", "0 -> 4", "4"),
        ("4 pp1 dp0 tp0", "AllReduce", "layers.0.mlp", "4-7", "5-7"),
    ]


def test_every_rank_has_a_row_for_each_of_its_streams(opened):
    streams = ["compute", "collective", "pipeline"]
    assert rows_shown(opened) == [[rank, stream] for rank in range(8) for stream in streams]
    assert [lane for lane in opened.run("return charts[1].lanes.map((lane) => lane.rank)")] == list(range(8))


def test_bars_have_the_colour_of_their_micro_batch_and_the_marks_of_their_pass(opened):
    spans = [span for span in small_timed().timeline.spans if span.rank == 4 and span.stream == "compute"]
    for micro in range(3):
        own = [span for span in spans if span.micro == micro]
        forward = next(span for span in own if span.path.startswith("network"))
        backward = next(span for span in own if span.path.startswith("gradient"))
        recomputed = next(span for span in own if span.path.startswith("recomputed"))
        plain, *marked = [opened.run(PIXELS, 4, "compute", span.start_s, span.end_s)
                          for span in (forward, backward, recomputed)]  # fmt: skip
        assert max(plain, key=plain.get) == COLORS[micro]
        for colors in marked:
            assert COLORS[micro] in colors and colors[COLORS[micro]] < 0.9 * sum(colors.values()), "its marks"
        assert marked[0] != marked[1]
    idle = opened.run(PIXELS, 4, "compute", 0.0, spans[0].start_s)
    assert not set(COLORS) & set(idle)


def test_pointing_at_a_bar_tells_its_operator(opened):
    place = point(opened, 0, "compute", "MatMulGrad", 2)
    told = opened.run(WORDS)
    assert "MatMulGrad" in told and "layers.1.mlp" in told and "backward, micro-batch 1" in told
    assert f"begins{place['begins'] * 1e3:.4g} ms" in told and "takes7 ms" in told and "rank0 pp0 dp0 tp0" in told
    point(opened, 3, "collective", "AllReduce")
    told = opened.run(WORDS)
    assert "AllReduce" in told and "bytes8 MiB" in told and "overtp" in told and "ranks2-3" in told
    point(opened, 4, "pipeline", "Receive")
    told = opened.run(WORDS)
    assert "from, to0 → 4" in told and "overpp" in told


def test_the_other_ranks_of_a_message_are_framed_too(opened):
    frames = """const framed = [], stroke = CanvasRenderingContext2D.prototype.strokeRect;
        CanvasRenderingContext2D.prototype.strokeRect = function (x, y) { framed.push(Math.round(y)); };
        charts[0].draw();
        CanvasRenderingContext2D.prototype.strokeRect = stroke;
        return charts[0].lanes.filter((lane) => framed.includes(Math.round(lane.y + 0.5))).map((lane) => [lane.rank, lane.row.stream])"""  # noqa: E501
    point(opened, 5, "collective", "AllReduce")
    assert opened.run(frames) == [[4, "collective"], [5, "collective"]]
    point(opened, 0, "pipeline", "Send")
    assert opened.run(frames) == [[0, "pipeline"], [4, "pipeline"]]
    point(opened, 0, "compute", "MatMul")
    assert opened.run(frames) == [[0, "compute"]]


def seen(browser) -> tuple[float, float]:
    """Parts of the step between which the view is."""
    return tuple(browser.run("return [view.from / step.length, view.to / step.length]"))


def test_the_wheel_zooms_and_a_drag_moves(opened):
    assert seen(opened) == (0, 1)
    opened.scroll(canvas(opened), -600)
    begin, end = seen(opened)
    assert 0 < begin < end < 1 and end - begin == pytest.approx(2.718281828 ** (-600 * 0.0016), rel=1e-3)
    opened.drag(canvas(opened), 200)
    assert seen(opened)[0] < begin and seen(opened)[1] - seen(opened)[0] == pytest.approx(end - begin)
    opened.scroll(canvas(opened), 0, right=300)
    assert seen(opened)[0] > 0
    opened.click(opened.find("//button[@id='zoom-whole']"))
    assert seen(opened) == (0, 1)
    opened.drag(canvas(opened), -200)
    assert seen(opened) == (0, 1), "there is nothing beside the step"


def test_both_canvases_and_the_buttons_share_the_view(opened):
    opened.scroll(canvas(opened, "memory"), -300)
    first = seen(opened)
    assert first[1] - first[0] < 1
    opened.click(opened.find("//button[@id='zoom-in']"))
    second = seen(opened)
    opened.click(opened.find("//button[@id='zoom-out']"))
    assert second[1] - second[0] < first[1] - first[0] and seen(opened) == pytest.approx(first)


def test_at_the_whole_step_the_wheel_scrolls_the_page(opened):
    opened.run("arguments[0].scrollIntoView({block: 'center'})", canvas(opened))
    before = opened.run("return scrollY")
    opened.scroll(canvas(opened), 200)
    opened.run(DRAWN)
    assert seen(opened) == (0, 1) and opened.run("return scrollY") != before


def test_the_keyboard_zooms_moves_and_walks_over_operators(opened):
    opened.run("arguments[0].focus()", canvas(opened))
    for key, holds in [
        ("+", lambda begin, end: end - begin == pytest.approx(0.7)),
        ("\ue014", lambda begin, end: begin == pytest.approx(0.15 + 0.07)),
        ("\ue012", lambda begin, end: begin == pytest.approx(0.15)),
        ("-", lambda begin, end: (begin, end) == pytest.approx((0, 1))),
        ("+", lambda begin, end: end - begin < 1),
        ("0", lambda begin, end: (begin, end) == (0, 1)),
    ]:
        opened.press(key)
        assert holds(*seen(opened)), key
    opened.press("\ue015")
    assert "rank0" in opened.run(WORDS)
    opened.press("\ue015")
    assert "AllReduce" in opened.run(WORDS), "the next row"
    told = set()
    for _ in range(3):
        opened.press(".")
        told.add(opened.run(WORDS))
    assert len(told) == 3
    opened.press(",")
    assert opened.run(WORDS) in told
    opened.press("\ue00c")
    assert "Point at a bar" in opened.run(WORDS)


def test_what_is_chosen_with_the_keyboard_comes_into_sight(opened):
    opened.run("arguments[0].focus(); show(0, step.length / 50); chooseRow(1)", canvas(opened))
    for _ in range(12):
        opened.press(".")
    middle = "return (selected.row.starts[selected.at] + selected.row.ends[selected.at]) / 2 / step.length"
    begin, end = seen(opened)
    assert 0 < begin < opened.run(middle) < end


def test_memory_over_time(opened):
    timed = small_timed()
    curve = timed.memory[0]
    opened.point(canvas(opened, "memory"))
    assert "alive" in opened.run(WORDS) and "largest there" in opened.run(WORDS)
    box = opened.run("const box = byId('memory').getBoundingClientRect(); return [box.width, box.height]")
    lane = opened.run("return [charts[1].x(charts[1].lanes[0].curve.peak_at), charts[1].lanes[0].y + 30]")
    opened.point(canvas(opened, "memory"), round(lane[0] - box[0] / 2) + 2, round(lane[1] - box[1] / 2))
    told = opened.run(WORDS)
    assert told.startswith(f"{curve.peak_bytes // 2**20} MiB alive on rank 0") and "8 MiB MatMul" in told
    assert column(opened, "peak-tensors", "made by") == ["MatMul", "AllReduce", "Receive"]
    opened.click(opened.find("//div[@id='peak-choice']/button[@data-value='4']"))
    assert len(column(opened, "peak-tensors", "made by")) == 2


def test_shares_and_links(opened):
    assert column(opened, "share-table", "bubble")[0] == f"{small_timed().timeline.ranks[0].bubble:.1%}"
    widths = (
        "return [...document.querySelector('#share-table .stack').children].map((part) => parseFloat(part.style.width))"
    )
    assert sum(opened.run(widths)) == pytest.approx(100)
    assert column(opened, "link-table", "link") == ["wire"] and column(opened, "link-table", "on rank") == ["0"]


def test_ranks_can_be_chosen(opened, tmp_path):
    opened.click(opened.find("//div[@id='rank-choice']/button[@data-rank='3']"))
    assert 3 not in {rank for rank, _ in rows_shown(opened)} and len(rows_shown(opened)) == 21
    assert opened.run("return byId('rank-sets').offsetHeight") == 0, "all are shown from the start"
    document = simulation_data(small_simulation())
    for one in document["step"]["ranks"]:
        one["shown"] = one["rank"] in (0, 4)
    open_page(opened, tmp_path, document)
    assert {rank for rank, _ in rows_shown(opened)} == {0, 4}
    opened.click(opened.find("//div[@id='rank-sets']/button[.='all']"))
    assert {rank for rank, _ in rows_shown(opened)} == set(range(8))
    opened.click(opened.find("//div[@id='rank-sets']/button[.='one of each stage']"))
    assert {rank for rank, _ in rows_shown(opened)} == {0, 4}
    for rank in (0, 4):
        opened.click(opened.find(f"//div[@id='rank-choice']/button[@data-rank='{rank}']"))
    assert {rank for rank, _ in rows_shown(opened)} == {4}, "one stays"


def test_a_hundred_thousand_spans_are_drawn_by_pixels(browser, tmp_path):
    document = timed_data(crowded_timed(100_000))
    assert document["step"]["spans"]["drawn"] == 100_000
    open_page(browser, tmp_path, document)
    count = """let count = 0;
        const fill = CanvasRenderingContext2D.prototype.fillRect;
        CanvasRenderingContext2D.prototype.fillRect = function (...box) { count++; fill.apply(this, box); };
        charts[0].draw();
        CanvasRenderingContext2D.prototype.fillRect = fill;
        return count"""
    pixels = browser.run("return charts[0].width - charts[0].gutter")
    for part in (1, 0.2, 0.01):
        browser.run("show(step.length * 0.3, step.length * (0.3 + arguments[0]))", part)
        assert 8 < browser.run(count) < 8 * pixels * 3
    browser.run("showWhole()")
    assert "All 100,000 operators" in browser.run("return byId('rule').textContent")


def test_what_is_drawn_as_one_says_so(browser, tmp_path):
    document = timed_data(crowded_timed(120_000))
    open_page(browser, tmp_path, document)
    part = document["step"]["spans"]["part"]
    assert f"less than 1/{part:,} of the step" in browser.run("return byId('rule').textContent")
    at = "const at = rows[0].kind.findIndex((kind) => step.spans.kinds[kind][5] > 1); select(rows[0], at); return step.spans.kinds[rows[0].kind[at]][5]"  # noqa: E501
    count = browser.run(at)
    assert f"({count} operators)" in browser.run(WORDS)


def test_hostile_names_are_text(browser, tmp_path):
    found = small_simulation(small_timed(cell=HOSTILE.replace("/", "|").replace("-", "")), name=HOSTILE)
    open_page(browser, tmp_path, simulation_data(found))
    place = browser.run(SPAN, 0, "compute", "MatMul", 0)
    browser.point(canvas(browser), place["right"], place["down"])
    assert "<img src=x onerror=" in browser.run(WORDS)
    assert "<img" in column(browser, "gradients", "tensor")[0]
    assert browser.run("return document.querySelectorAll('img, body > script').length") == 2, "its data and its script"


def test_one_rank_of_a_step_without_messages(browser, tmp_path):
    timed = small_timed(count=1)
    line = timed.timeline
    spans = tuple(span for span in line.spans if span.rank == 0 and span.stream == "compute")
    alone = replace(timed, timeline=replace(line, spans=spans, ranks=line.ranks[:1], links=()))
    open_page(browser, tmp_path, timed_data(alone))
    assert rows_shown(browser) == [[0, "compute"]]
    assert browser.run("return byId('links').offsetHeight + byId('rank-choice').offsetHeight") == 0
    assert browser.run("return byId('verdict').offsetHeight + byId('proof').offsetHeight") == 0


@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_narrow_and_wide_light_and_dark(tmp_path, width, dark):
    with Browser(tmp_path, dark=dark) as browser:
        browser.size(width, 1000)
        open_page(browser, tmp_path, simulation_data(small_simulation(), "2.9.0"))
        assert browser.run("return document.documentElement.scrollWidth") <= width
        light = browser.run("return Math.max(...getComputedStyle(document.body).backgroundColor.match(/\\d+/g))")
        assert (light < 64) == dark
        assert browser.run("return byId('timeline').getBoundingClientRect().right") <= width
        browser.run("byId('step').scrollIntoView()")
        browser.run(DRAWN)
        picture = tmp_path / "page.png"
        browser.screenshot(picture)
        assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
        browser.size(800, 1000)
        browser.run(DRAWN)
        assert 700 < browser.run("return charts[0].width") < 800, "it follows the window"
        assert browser.console() == []
