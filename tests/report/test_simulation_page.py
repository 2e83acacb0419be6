"""The page of a simulation without a browser: its document, how spans become few, where it may be written."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report.small_job import small_job
from report.small_step import (
    crowded_timed,
    hanging_simulation,
    small_simulation,
    small_timed,
    wrong_simulation,
)
from report.test_page import HOSTILE, Page

from msparallel.cli.main import main
from msparallel.cli.timeline_text import timeline_lines
from msparallel.errors import UserError
from msparallel.mesh import Mesh
from msparallel.report.dryrun_data import dryrun_data
from msparallel.report.page import DRY_RUN, SIMULATION, check_target, page_html, write_page
from msparallel.report.simulation_data import simulation_data, timed_data
from msparallel.report.step import micro_of, pass_of, shown_ranks
from msparallel.report.thinned import COARSEST_PART, drawn_memory, drawn_spans, highest, unit_s
from msparallel.simulate.timed import Timed
from msparallel.simulate.timeline import Timeline
from msparallel.simulate.walk import Span

pytestmark = pytest.mark.pure


def operator(path: str, micro: int | None = None, **more) -> Span:
    settled = dict(rank=0, stream="compute", start_s=0.0, end_s=1.0, op="MatMul", bytes=0, ranks=(), axes=(), run=0)
    return Span(**settled | {"path": path, "micro": micro, "index": 0} | more)


# What is told


def test_the_document_of_what_was_executed():
    document = simulation_data(small_simulation(), mindspore="2.9.0")
    facts = {fact["label"]: fact["value"] for fact in document["facts"]}
    assert facts["mesh"] == "pp2 x dp2 x tp2" and facts["devices"] == "8 on 1 node x 8"
    assert facts["hardware"] == "atlas_800t_a2 (Ascend 910B)" and facts["engine"] == "MindSpore 2.9.0"
    assert facts["model"] == "4 layers (2 + 2), hidden 4096, 32 heads"
    assert facts["batch"] == "16 x 4096 tokens a step, 8 micro-batches"
    assert document["overrides"] == "train.seed=7", "what was typed, not what was changed"
    assert document["changes"] == ["model.attention=plain", "model.num_layers=4"]
    assert document["verdict"]["kind"] == "same" and "1e-05" in document["verdict"]["detail"]
    assert [(row["single"], row["cluster"], row["over"]) for row in document["losses"]] == [
        ("5.545177", "5.545177", False), ("5.501234", "5.501235", False),
    ]  # fmt: skip
    worst = document["gradients"]["rows"]
    assert [row["name"] for row in worst] == ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    assert document["zero"] == ["model.k_proj.bias"] and document["copies"] == "equal, bit by bit"


def test_what_is_not_the_same_is_marked():
    document = simulation_data(wrong_simulation())
    assert document["verdict"]["text"] == "The strategy does NOT compute the same as one device."
    assert [row["over"] for row in document["losses"]] == [False, True]
    assert [(row["name"], row["over"]) for row in document["gradients"]["rows"]] == [
        ("model.norm.weight", True), ("model.embed.weight", False),
    ]  # fmt: skip
    assert document["copies"] == "up to 1.0e-03 apart"


def test_a_job_that_hangs_says_who_waits_where_for_whom():
    document = simulation_data(hanging_simulation())
    assert document["verdict"]["kind"] == "hangs" and document["step"] is None and document["losses"] == []
    assert [list(wait.values()) for wait in document["verdict"]["waits"]] == [
        [0, "pp0 dp0 tp0", "Send", "layers.0.mlp", "0 -> 4", "4"],
        [4, "pp1 dp0 tp0", "AllReduce", "layers.0.mlp", "4-7", "5-7"],
    ]


def test_a_timeline_alone_has_no_verdict_and_names_the_ranks_that_were_compiled():
    timed = small_timed()
    some = tuple(times for times in timed.timeline.ranks if times.rank in (0, 4))
    document = timed_data(replace(timed, timeline=replace(timed.timeline, ranks=some)))
    assert document["verdict"] is None and document["losses"] == [] and document["gradients"] is None
    facts = {fact["label"]: fact["value"] for fact in document["facts"]}
    assert facts["compiled ranks"] == "0, 4; the others of a stage are taken to be alike"
    assert document["overrides"] == "train.seed=7 model.num_layers=4 model.attention=plain"


def test_shares_of_a_rank_are_its_step():
    timed = small_timed()
    shares = timed_data(timed)["step"]["shares"]
    assert shares["columns"] == ["computes", "waits for tp", "waits for pp", "waits for dp", "bubble"]
    for row, times in zip(shares["rows"], timed.timeline.ranks, strict=True):
        assert sum(part["share"] for part in row["parts"]) == pytest.approx(1)
        assert row["parts"][0]["share"] == pytest.approx(times.busy_s / timed.timeline.step_time_s)
        assert row["peak"] == timed.memory[row["rank"]].peak_bytes


def test_links_and_step():
    timed = small_timed()
    step = timed_data(timed)["step"]
    (link,) = step["links"]
    assert (link["name"], link["bytes"], link["who"]) == ("wire", timed.timeline.links[0].bytes, "all")
    tiles = {tile["label"]: tile["value"] for tile in step["tiles"]}
    assert tiles["busiest link"] == "wire" and tiles["step"] == f"{timed.timeline.step_time_s * 1e3:.3g} ms"
    assert tiles["bubble"] == f"{max(times.bubble for times in timed.timeline.ranks):.1%}"


def test_one_rank_of_each_stage_where_there_are_many():
    line = small_timed().timeline
    assert shown_ranks(line, most=8) == list(range(8)) and shown_ranks(line, most=7) == [0, 4]


# Passes and micro-batches


@pytest.mark.parametrize(
    ("path", "micro", "op", "expected"),
    [
        ("network.layers.0.mlp", 3, "MatMul", "forward"),
        ("gradient of network.layers.0.mlp", 3, "MatMul", "backward"),
        ("gradient of Grad_Mirror", None, "AllReduce", "backward"),
        ("recomputed network.layers.0.mlp", 3, "MatMul", "recompute"),
        ("update.optimizer", None, "AdamWeightDecay", "update"),
        ("optimizer", None, "AdamWeightDecay", "update"),
        ("", None, "Assign", "update"),
        ("", 3, "AssignAdd", "backward"),
        ("", 3, "TensorMove", "forward"),
        ("", 3, "Send", "forward"),
    ],
)
def test_the_pass_of_an_operator(path, micro, op, expected):
    assert pass_of(operator(path, micro, op=op)) == expected


def test_the_only_micro_batch_of_a_step_is_the_first():
    assert micro_of(operator("network.mlp"), 1) == 0 and micro_of(operator("update.clip"), 1) is None
    assert micro_of(operator("network.mlp"), 4) is None and micro_of(operator("network.mlp", 2), 4) == 2


def test_the_terminal_shows_the_passes_of_a_step_without_numbers():
    timed = small_timed(count=1)
    spans = tuple(span._replace(micro=None) for span in timed.timeline.spans)
    timed = replace(timed, timeline=replace(timed.timeline, spans=spans))
    picture = next(line for line in timeline_lines(timed, 100) if line.startswith("  rank 0"))
    signs = picture.split(maxsplit=2)[2]
    assert set(signs) <= set("0A=~.") and {"0", "A", "="} <= set(signs)


# Spans


def spans_of(drawn: dict, unit: float) -> list[dict]:
    """What the page makes of rows."""
    found = []
    for row in drawn["rows"]:
        now = 0
        for gap, length, kind, micro in zip(row["gap"], row["length"], row["kind"], row["micro"], strict=True):
            op, cell, pass_, message, bytes_, count = drawn["kinds"][kind]
            axes, ranks = drawn["messages"][message] if message >= 0 else ("", [])
            start, now = now + gap, now + gap + length
            found.append(
                {
                    "rank": row["rank"], "stream": row["stream"], "start": start * unit, "end": now * unit,
                    "op": drawn["ops"][op], "cell": drawn["cells"][cell], "pass": drawn["passes"][pass_],
                    "micro": None if micro < 0 else micro, "axes": axes, "ranks": ranks, "bytes": bytes_,
                    "count": count,
                }
            )  # fmt: skip
    return found


def in_order(timeline: Timeline) -> list[Span]:
    streams = ["compute", "collective", "pipeline"]
    return sorted(timeline.spans, key=lambda span: (span.rank, streams.index(span.stream), span.start_s))


def test_few_spans_are_all_there():
    line = small_timed().timeline
    drawn = drawn_spans(line)
    assert drawn["part"] == 0 and drawn["drawn"] == drawn["operators"] == len(line.spans)
    for told, span in zip(spans_of(drawn, unit_s(line)), in_order(line), strict=True):
        assert (told["rank"], told["stream"], told["op"]) == (span.rank, span.stream, span.op)
        assert told["start"] == pytest.approx(span.start_s, abs=1e-8 * line.step_time_s)
        assert told["end"] == pytest.approx(span.end_s, abs=1e-8 * line.step_time_s)
        assert told["pass"] == pass_of(span) and told["micro"] == span.micro and told["bytes"] == span.bytes
        assert (told["axes"], told["ranks"]) == (" x ".join(span.axes), list(span.ranks))
        assert told["cell"] in span.path and not told["cell"].startswith(("gradient", "recomputed", "network."))


@pytest.mark.parametrize("most", [3000, 4500, 6000])
def test_many_spans_are_drawn_as_fewer_and_nothing_is_lost(most):
    line = crowded_timed(8000).timeline
    drawn = drawn_spans(line, most)
    least = line.step_time_s / drawn["part"]
    assert drawn["operators"] == 8000 and drawn["drawn"] <= most and drawn["part"] >= COARSEST_PART
    assert drawn_spans(line, drawn["drawn"])["part"] == drawn["part"], "the finest that fits"
    spans = iter(in_order(line))
    for told in spans_of(drawn, unit_s(line)):
        group = [next(spans) for _ in range(told["count"])]
        assert {(span.rank, span.stream, span.axes, span.micro, pass_of(span)) for span in group} == {
            (told["rank"], told["stream"], group[0].axes, told["micro"], told["pass"])
        }
        assert told["start"] == pytest.approx(group[0].start_s, abs=1e-8 * line.step_time_s)
        assert told["end"] == pytest.approx(group[-1].end_s, abs=1e-8 * line.step_time_s)
        assert len(group) == 1 or told["end"] - told["start"] < least * (1 + 1e-6)
        assert told["bytes"] == sum(span.bytes for span in group)
    assert next(spans, None) is None


def test_what_is_drawn_as_one_is_named_by_what_it_has_most_of():
    ops = ["MatMul"] * 5 + ["Cast"] * 3 + ["Mul", "Add"]
    spans = [
        operator(f"network.layers.7.mlp.part{at % 2}", 0, op=op, start_s=at * 1e-6, end_s=(at + 1) * 1e-6)
        for at, op in enumerate(ops)
    ]
    line = Timeline(
        mesh=Mesh(), spans=(*spans, operator("network", 1, start_s=1.0, end_s=2.0)), step_time_s=2.0, ranks=(), links=()
    )
    first, second = spans_of(drawn_spans(line, most=2), unit_s(line))
    assert first["op"] == "5 MatMul, 3 Cast, Mul and others" and first["cell"] == "layers.7.mlp"
    assert (second["op"], second["count"]) == ("MatMul", 1)


def test_messages_over_different_axes_stay_apart():
    spans = [
        operator("network", 0, stream="collective", op="AllReduce", bytes=4, axes=(axis,), ranks=(0, at + 1),
                 start_s=at * 1e-6, end_s=(at + 1) * 1e-6)
        for at, axis in enumerate(["tp", "tp", "dp"])
    ]  # fmt: skip
    line = Timeline(mesh=Mesh(), spans=tuple(spans), step_time_s=1.0, ranks=(), links=())
    first, second = spans_of(drawn_spans(line, most=2), unit_s(line))
    assert (first["axes"], first["ranks"], first["bytes"], first["count"]) == ("tp", [], 8, 2), "of two groups"
    assert (second["axes"], second["ranks"]) == ("dp", [0, 3])


def test_a_page_of_very_many_operators_stays_small():
    timed = crowded_timed(300_000)
    document = timed_data(timed)
    text = page_html(SIMULATION, document)
    assert document["step"]["spans"]["operators"] == 300_000 and len(text.encode()) < 3_000_000


# Memory


def test_a_short_curve_is_as_it_is():
    timed = small_timed()
    drawn, unit = drawn_memory([timed.memory[0]], timed.timeline), unit_s(timed.timeline)
    (curve,) = drawn["ranks"]
    times = [sum(curve["after"][: at + 1]) * unit for at in range(len(curve["after"]))]
    assert drawn["part"] == 0
    assert times == pytest.approx([time_s for time_s, _ in timed.memory[0].points], abs=1e-7)
    assert curve["kib"] == [round(bytes_ / 1024) for _, bytes_ in timed.memory[0].points]
    assert curve["peak_kib"] == max(curve["kib"]) and curve["peak_at"] * unit == pytest.approx(timed.memory[0].peak_s)


def test_a_long_curve_keeps_its_peak():
    timed = crowded_timed(800)
    drawn = drawn_memory(list(timed.memory.values()), timed.timeline)
    assert drawn["part"] == 4000 and all(len(curve["kib"]) <= 4001 for curve in drawn["ranks"])
    assert {max(curve["kib"]) for curve in drawn["ranks"]} == {999 * 1024}


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 100)), min_size=1, max_size=40), st.floats(0.01, 5))
def test_the_highest_numbers_of_parts_are_never_below_the_curve(points, part_s):
    points = sorted(points, key=lambda point: point[0])
    found = highest(points, part_s)
    starts = [start for start, _ in found]
    assert starts == sorted(set(starts))
    assert max(number for _, number in found) == max(number for _, number in points)
    for place, (time_s, number) in enumerate(points):
        part = int(time_s / part_s)
        told = [value for start, value in found if round(start / part_s) <= part][-1]
        before = points[place - 1][1] if place and int(points[place - 1][0] / part_s) < part else number
        assert told >= max(number, before), "what a part begins with counts, too"


# The page


def test_hostile_names_are_inert():
    executed = small_simulation(small_timed(cell=HOSTILE.replace("/", "|")), name=HOSTILE)
    for found in (executed, hanging_simulation(HOSTILE)):
        text = page_html(SIMULATION, simulation_data(found))
        tags = Counter(tag for tag, _ in Page(text).tags)
        assert tags["script"] == 2 and "img" not in tags
        assert "\x1b" not in text and "<!--" not in text and "alert(1)</script>" not in text
    document = Page(page_html(SIMULATION, simulation_data(executed))).document
    assert document["gradients"]["rows"][0]["name"] == HOSTILE.replace("\x1b", "\\x1b")


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded():
    text = page_html(SIMULATION, simulation_data(small_simulation()))
    found = Page(text)
    policy = next(attrs["content"] for tag, attrs in found.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(found.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not [attrs for _, attrs in found.tags if "src" in attrs or "href" in attrs]
    assert not [word for word in ("innerHTML", "outerHTML", "insertAdjacent", "url(") if word in text]


def test_a_page_of_another_kind_is_not_written_over(tmp_path):
    kinds = {DRY_RUN: dryrun_data(small_job()), SIMULATION: simulation_data(small_simulation())}
    for kind, document in kinds.items():
        target = tmp_path / f"{kind.verb}.html"
        write_page(str(target), kind, document)
        check_target(str(target), kind)
        (other,) = set(kinds) - {kind}
        with pytest.raises(UserError, match=f"not a report of `msparallel {other.verb}`; it was left as it is"):
            write_page(str(target), other, kinds[other])
        assert target.read_text(encoding="utf-8").startswith(kind.mark)


# The command


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words])
    return ended.value.code


@pytest.fixture
def timed(monkeypatch) -> Timed:
    """What the command finds instead of compiling."""
    found = small_timed()
    monkeypatch.setattr("msparallel.simulate.timed.time_recipe", lambda plan: found)
    return found


def test_the_command_writes_the_page_and_says_so(tmp_path, timed, capsys):
    target = tmp_path / "step.html"
    assert run("llama2_7b_dp2_tp2_pp2", "--timeline", "--report", str(target)) == 0
    assert capsys.readouterr().out.endswith(f"\nReport: {target}\n")
    spans = Page(target.read_text(encoding="utf-8")).document["step"]["spans"]
    assert spans["operators"] == len(timed.timeline.spans)


def test_json_stays_alone_on_stdout(tmp_path, timed, capsys):
    target = tmp_path / "step.html"
    assert run("llama2_7b_dp2_tp2_pp2", "--timeline", "--json", "--report", str(target)) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["step_time_s"] == timed.timeline.step_time_s
    assert told.err == f"\nReport: {target}\n"


def test_a_simulation_that_hangs_has_a_page_and_exit_code_1(tmp_path, monkeypatch):
    monkeypatch.setattr("msparallel.simulate.simulate.simulate", lambda plan, **_: hanging_simulation())
    target = tmp_path / "hang.html"
    assert run("llama2_7b_dp2_tp2_pp2", "--report", str(target)) == 1
    assert "This job would hang" in target.read_text(encoding="utf-8")


def test_a_target_that_cannot_be_written_is_told_before_the_work(tmp_path, monkeypatch, capsys):
    def never(*_, **__):
        raise AssertionError("the work began")

    monkeypatch.setattr("msparallel.simulate.simulate.simulate", never)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("model: {}\n", encoding="utf-8")
    for target, why in ((str(recipe), "not a report of `msparallel simulate`"), ("/no/r.html", "no folder /no")):
        assert run("quickstart", "--report", target) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.startswith(f"--report {target}: cannot be written: ") and why in told.err
    assert recipe.read_text(encoding="utf-8") == "model: {}\n"
