"""Fills the tables of docs/15_measured*.md: what `plan-evaluate` finds in docs/measured_cases.csv today, and a picture.

Run `python docs/make_measured_table.py`; a second or two. With --fit the cross-check of tests/benchmarks/fit_speeds.py
is run and written too, a minute or two; it needs scipy. A test holds everything but the cross-check and the picture to
what the command finds (tests/test_docs_plan.py).
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from subprocess import run

from msparallel.cli.plan_evaluate_text import cells
from msparallel.planner.measured.cases import METRICS
from msparallel.planner.measured.evaluate import Evaluation, Row, evaluate, source_name
from msparallel.planner.measured.families import half_of
from msparallel.report.scatter import draw_scatter

DOCS = Path(__file__).parent
CASES = "docs/measured_cases.csv"
PICTURE = DOCS / "images" / "measured.png"
PAGES = ("15_measured.md", "15_measured.zh-CN.md")
APART = 0.05
"""Two publications of one run that differ by more are listed."""

WORDS = {
    "15_measured.md": {
        "model_state": "model state", "peak_memory": "peak memory", "step_time": "step time",
        "first": "first", "second": "second", "none": "not stated",
        "figures": ("metric", "rows", "median", "mean", "90 % within", "optimistic > 2 %"),
        "rows": "{estimated} of {rows} rows estimated, {skipped} skipped.",
        "near": "Model state within 3 %: {dense} dense rows, {plain} plain ones.",
        "band": "Peaks that the high end of the band covers: {band}. Runs that took place and are said to fit: {fit}.",
        "bounds": "Lower bounds: {n}; the estimate is more than 2 % below {below} of them.",
        "halves": "half", "hardware": "hardware", "sources": "source",
        "outliers": ("line", "model", "source", "metric", "measured", "estimate", "error"),
        "twice": ("lines", "model", "measured, s", "estimate, s"),
        "skips": ("rows", "reason"),
        "fit": "`python tests/benchmarks/fit_speeds.py docs/measured_cases.csv`, revision {revision}, {date}:",
    },
    "15_measured.zh-CN.md": {
        "model_state": "训练状态", "peak_memory": "峰值内存", "step_time": "步时间",
        "first": "第一半", "second": "第二半", "none": "未写明",
        "figures": ("指标", "行数", "中位数", "平均", "九成不超过", "乐观超过 2 %"),
        "rows": "{rows} 行里估算了 {estimated} 行，跳过 {skipped} 行。",
        "near": "训练状态误差在 3 % 之内的：稠密模型 {dense}，其中不带特殊选项的 {plain}。",
        "band": "区间上端盖得住的峰值：{band}。确实跑过、也判断为放得下的：{fit}。",
        "bounds": "下界：{n} 行；估算比其中 {below} 行低 2 % 以上。",
        "halves": "一半", "hardware": "硬件", "sources": "来源",
        "outliers": ("行号", "模型", "来源", "指标", "实测", "估算", "误差"),
        "twice": ("行号", "模型", "实测，秒", "估算，秒"),
        "skips": ("行数", "原因"),
        "fit": "`python tests/benchmarks/fit_speeds.py docs/measured_cases.csv`，版本 {revision}，{date}：",
    },
}  # fmt: skip


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def figures(found: Evaluation, words: dict) -> str:
    near, band, ran, bounds = found.state_near, found.peaks_in_band, found.runs_that_fit, found.lower_bounds
    total = len(found.rows) + len(found.skipped)

    def of(name: str) -> str:
        return f"{near[name]['within_3pct']} / {near[name]['n']}"

    return "\n\n".join([
        words["rows"].format(rows=total, estimated=len(found.rows), skipped=len(found.skipped)),
        table(words["figures"], ([words[metric], *cells(found.figures(metric))] for metric in METRICS)),
        words["near"].format(dense=of("dense"), plain=of("plain")),
        words["band"].format(band=f"{band['not_above_high']} / {band['n']}", fit=f"{ran['said_to_fit']} / {ran['n']}"),
        words["bounds"].format(n=bounds["n"], below=bounds["below_beyond_2pct"]),
    ])  # fmt: skip


def grouped(found: Evaluation, words: dict, title: str) -> str:
    name = {
        "halves": lambda case: half_of(case.family),
        "hardware": lambda case: case.hardware or "none",
        "sources": source_name,
    }[title]
    rows = [
        [words.get(group, group), words[metric], *cells(figure)]
        for group, by_metric in found.groups(name).items()
        for metric, figure in by_metric.items()
    ]
    return table([words[title], *words["figures"]], rows)


def outliers(found: Evaluation, words: dict) -> str:
    def order(row: Row) -> tuple[int, float]:
        return METRICS.index(row.case.metric), -abs(row.error)

    rows = [
        [str(row.case.row), row.case.model, source_name(row.case), words[row.case.metric], f"{row.measured:.3f}",
         f"{row.estimate:.3f}", f"{100 * row.error:+.1f} %"]
        for row in sorted(found.outliers, key=order)
    ]  # fmt: skip
    return table(words["outliers"], rows)


def twice(found: Evaluation, words: dict) -> str:
    """Rows of time between which the planner sees no difference, published with different seconds."""
    same: dict[object, list[Row]] = defaultdict(list)
    for row in found.rows:
        if row.case.metric == "step_time":
            same[row.case.work.shape, row.case.work.mesh, row.case.hardware, row.estimate].append(row)
    rows = []
    for alike in same.values():
        seconds = [row.measured for row in alike]
        if max(seconds) > (1 + APART) * min(seconds):
            rows.append([
                ", ".join(str(row.case.row) for row in alike),
                ", ".join(dict.fromkeys(row.case.model for row in alike)),
                ", ".join(f"{value:.3f}" for value in seconds),
                f"{alike[0].estimate:.3f}",
            ])  # fmt: skip
    return table(words["twice"], rows)


def skips(found: Evaluation, words: dict) -> str:
    count: dict[str, int] = defaultdict(int)
    for row in found.skipped:
        count[row.reason] += 1
    return table(words["skips"], ([str(n), reason] for reason, n in sorted(count.items(), key=lambda item: -item[1])))


def put(text: str, mark: str, body: str) -> str:
    """A page with what stands between the two marks of a name replaced."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    assert text.count(begin) == text.count(end) == 1, mark
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{body}\n{end}{rest.partition(end)[2]}"


def written(page: str, found: Evaluation) -> str:
    """A page with today's tables."""
    text, words = (DOCS / page).read_text(encoding="utf-8"), WORDS[page]
    text = put(text, "figures", figures(found, words))
    for title in ("halves", "hardware", "sources"):
        text = put(text, title, grouped(found, words, title))
    return put(put(put(text, "outliers", outliers(found, words)), "twice", twice(found, words)),
               "skips", skips(found, words))  # fmt: skip


def cross_check() -> str:
    """What the fitting script prints, as it is."""
    command = [sys.executable, "tests/benchmarks/fit_speeds.py", CASES]
    return run(command, cwd=DOCS.parent, capture_output=True, text=True, check=True).stdout.strip()


def main(fits: bool) -> None:
    found = evaluate(DOCS.parent / CASES)
    seen = cross_check() if fits else None
    revision = run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=DOCS).stdout.strip()
    for page in PAGES:
        text = written(page, found)
        if seen is not None:
            told = WORDS[page]["fit"].format(revision=revision, date=date.today().isoformat())
            text = put(text, "cross-check", f"{told}\n\n```\n{seen}\n```")
        (DOCS / page).write_text(text, encoding="utf-8")
    draw_scatter(PICTURE, found)


if __name__ == "__main__":
    main("--fit" in sys.argv[1:])
