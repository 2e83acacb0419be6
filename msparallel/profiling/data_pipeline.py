"""Queues of MindSpore's dataset pipeline: minddata_pipeline_summary_*.csv or .json, minddata_pipeline_raw_*.csv.

In: a file. Out: a `DataPipeline`. Keys and thresholds are those of MindSpore's MinddataProfilingAnalyzer
(`mindspore/profiler/parser/minddata_analyzer.py`): the device waits where the queue below DeviceQueue is empty more
than 60 % of the time. The CSV has a key in the first cell of each line and a value for each operator behind it.
"""

from __future__ import annotations

import csv
import json
import math
from typing import Any

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.measured import DataPipeline
from msparallel.profiling.rank_names import RankNames
from msparallel.profiling.table import BadCell, Refused, Table, number

LARGEST_BYTES = 4 << 20
"""A summary has a few lines."""


def pipeline_summary(file: ProfileFile, names: RankNames) -> list[DataPipeline]:
    """Of a rank. Raises Refused where it is not of this form."""
    if file.bytes > LARGEST_BYTES:
        raise Refused(f"is larger than {LARGEST_BYTES >> 20} MiB; such a summary has a few lines")
    try:
        text = file.path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from None
    values, lines = _json(text) if text.lstrip().startswith("{") else _csv(text)
    operators = [str(one)[:100] for one in values.get("pipeline_ops", [])]
    if not operators:
        raise Refused("names no operator (pipeline_ops)")
    empty = _numbers(values.get("queue_empty_freq_pct", []))
    batch = next((value for value in _numbers(values.get("per_batch_time", [])) if value is not None), None)
    bottleneck = next((str(one)[:100] for one in values.get("bottleneck_warning", []) if str(one).strip()), "")
    line = lines.get("queue_empty_freq_pct", 1)
    shown = f"queue_empty_freq_pct {values.get('queue_empty_freq_pct')}"[:300]
    return [DataPipeline(rank=names.rank(file, None), empty_pct=_feeding(operators, empty), bottleneck=bottleneck,
                         batch_ms=batch if batch is None or batch >= 0 else None,
                         place=Evidence(file.name, line, shown))]  # fmt: skip


def _feeding(operators: list[str], empty: list[float | None]) -> float | None:
    """How often the last queue before the device is empty, in percent; operators stand in order from the device."""
    for place, value in enumerate(empty[: len(operators)]):
        if value is not None and value >= 0 and not operators[place].startswith("DeviceQueue"):
            return min(value, 100.0)
    return None


def _json(text: str) -> tuple[dict[str, list[Any]], dict[str, int]]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"is no JSON: {str(error)[:100]}") from None
    if not isinstance(read, dict):
        raise Refused("is no JSON object")
    values = {key: value if isinstance(value, list) else [value] for key, value in read.items()}
    return values, {key: text.count("\n", 0, text.find(f'"{key}"')) + 1 for key in values}


def _csv(text: str) -> tuple[dict[str, list[Any]], dict[str, int]]:
    values: dict[str, list[Any]] = {}
    lines: dict[str, int] = {}
    reader = csv.reader(text.splitlines())
    try:
        for row in reader:
            if row:
                values.setdefault(row[0].strip(), list(row[1:]))
                lines.setdefault(row[0].strip(), reader.line_num)
    except csv.Error as error:
        raise Refused(f"line {reader.line_num}: {error}") from None
    return values, lines


def _numbers(values: list[Any]) -> list[float | None]:
    found: list[float | None] = []
    for value in values:
        try:
            one = number(str(value))
        except BadCell:
            one = None
        found.append(one if one is not None and math.isfinite(one) else None)
    return found


def pipeline_raw(table: Table, file: ProfileFile, names: RankNames) -> list[DataPipeline]:
    """The same from minddata_pipeline_raw: how full the queue before the device is. Raises Refused as above."""
    type_at, used_at = table.need("op_type"), table.need("output_queue_usage_rate")
    first: tuple[float, int, str] | None = None
    for line, row in table.rows():
        try:
            used = number(row[used_at].strip().rstrip("%"))
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        if used is not None and first is None and not row[type_at].strip().startswith("DeviceQueue"):
            first = used, line, ",".join(row)[:300]
    if first is None:
        return []
    share = first[0] / 100 if first[0] > 1 else first[0]
    return [DataPipeline(rank=names.rank(file, None), empty_pct=None, bottleneck="", batch_ms=None,
                         place=Evidence(file.name, first[1], f"queue used {share:.0%}: {first[2]}"))]  # fmt: skip
