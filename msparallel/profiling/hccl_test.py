"""Output of hccl_test: a collective at growing sizes.

In: a text. Out: `HcclTest`s. Bandwidth is recomputed from bytes and time: the printed column divides by 2**30 in some
versions and by 1e9 in others. The binary spells its header `aveg_time`, the manual `avg_time`. A result is `success`,
`failed`, or `NULL` where nothing was compared (-c 0, or a sum beyond the type's range). (CANN, HCCL performance test.)

>>> (test,) = read_hccl_test("data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\\n"
...                          "67108864 | 2630.20 | 23.76245 | success\\n", "all_reduce_test_8p.txt")
>>> test.operation, test.ranks, round(test.rows[0].gb_s, 2)
('all_reduce', 8, 25.51)
"""

from __future__ import annotations

import re

from msparallel.profiling.measured import HcclTest, SizeRow
from msparallel.profiling.table import Refused

LARGEST_BYTES = 4 << 20
MOST_ROWS = 10_000
_HEADER = re.compile(r"^\s*data_size\(Bytes\):\s*\|\s*ave?g_time\(us\):\s*\|\s*alg_bandwidth\(GB/s\):", re.M)
_ROW = re.compile(r"^\s*(\d{1,15})\s*\|\s*(\d{1,15}(?:\.\d{1,9})?)\s*\|\s*([\d.eE+-]{1,30}|nan|inf|NULL)\s*"
                  r"\|\s*(\w{1,20})\s*$")  # fmt: skip
_OPERATION = re.compile(r"(all_reduce|all_gather|reduce_scatter|alltoallvc?|alltoall|broadcast|reduce|scatter|gather)"
                        r"_test")  # fmt: skip
_RANKS = (re.compile(r"(?:^|[_-])(\d{1,5})p(?:[_.-]|$)"), re.compile(r"mpirun\b[^\n]*?\s-np?\s+(\d{1,5})\b"))
RESULTS = ("success", "failed", "NULL")


def read_hccl_test(text: str, name: str) -> list[HcclTest]:
    """All runs in one output, a header each; operation and ranks from the lines before a header, or the file's name.

    Raises:
        Refused: where there is no row, or one that is not of this form.
    """
    if _HEADER.search(text) is None:
        raise Refused("has no header data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:")
    runs: list[tuple[list[str], list[SizeRow]]] = []
    before: list[str] = []
    count = 0
    for place, line in enumerate(text.splitlines(), 1):
        if _HEADER.match(line):
            runs.append((before, []))
            before = []
        elif runs and "|" in line:
            runs[-1][1].append(_row(line, place))
            count += 1
            if count > MOST_ROWS:
                raise Refused(f"has more than {MOST_ROWS:,} rows")
        else:
            before.append(line)
    if not count:
        raise Refused("has a header and no row: the test ended before its first size")
    file = name.rpartition("/")[2]
    return [_test("\n".join(told), file, name, rows) for told, rows in runs if rows]


def _test(told: str, file: str, name: str, rows: list[SizeRow]) -> HcclTest:
    operation = _OPERATION.search(told) or _OPERATION.search(file)
    ranks = _RANKS[1].search(told) or _RANKS[0].search(file)
    return HcclTest(file=name, operation=operation[1] if operation else None,
                    ranks=int(ranks[1]) if ranks and int(ranks[1]) > 1 else None, rows=tuple(rows))  # fmt: skip


def _row(line: str, place: int) -> SizeRow:
    found = _ROW.match(line)
    if found is None:
        raise Refused(f"line {place}: {line.strip()[:60]!r} is no row: bytes | microseconds | GB/s | result")
    size, time_us = int(found[1]), float(found[2])
    if time_us <= 0:
        raise Refused(f"line {place}: a time of {found[2]} us; nothing takes no time")
    if found[4] not in RESULTS:
        raise Refused(f"line {place}: the result {found[4]!r} is none of {', '.join(RESULTS)}")
    try:
        printed = float(found[3])
    except ValueError:
        printed = 0.0
    return SizeRow(bytes=size, time_us=time_us, printed_gb_s=printed if 0 < printed < 1e9 else None, result=found[4],
                   line=place)  # fmt: skip


def bus_factor(operation: str | None, ranks: int | None) -> float | None:
    """Bytes that each rank's wires carry for each byte of the message, as NCCL's tests count it (nccl-tests,
    PERFORMANCE.md); None where operation or ranks are not known.

    >>> bus_factor("all_reduce", 8), bus_factor("broadcast", 8)
    (1.75, 1.0)
    """
    if operation is None or ranks is None:
        return None
    if operation == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if operation in ("broadcast", "reduce"):
        return 1.0
    return (ranks - 1) / ranks
