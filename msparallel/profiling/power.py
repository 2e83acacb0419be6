"""The clock of a device over time: samples of npu-smi as a CSV `time,dev_id,power,freq,temp`.

In: an open table. Out: a `Power` for each device. A clock that falls while the device is busy is throttled, by
temperature or by a limit of power; while it idles a low clock means nothing. Busy is told by power: above the middle
between the least and the most that was seen.
"""

from __future__ import annotations

from msparallel.finding import Evidence
from msparallel.profiling.files import ProfileFile
from msparallel.profiling.measured import Power
from msparallel.profiling.table import BadCell, Refused, Table, number, positive, whole

LOW = 0.95
"""Of the highest clock: below it a sample counts as throttled."""
MOST_SAMPLES = 2_000_000


def power_samples(table: Table, file: ProfileFile) -> list[Power]:
    """Of all devices in a table. Raises Refused where a column is missing."""
    device_at, power_at, clock_at = table.need("dev_id"), table.need("power"), table.need("freq")
    heat_at = table.find("temp", "temperature")
    samples: dict[int, list[tuple[float, float, float | None, int]]] = {}
    count = 0
    for line, row in table.rows():
        try:
            device, watt, clock = whole(row[device_at]) or 0, positive(row[power_at]), positive(row[clock_at])
            heat = number(row[heat_at]) if heat_at is not None else None
        except BadCell as bad:
            table.spoil(line, str(bad))
            continue
        if clock > 0:
            samples.setdefault(device, []).append((watt, clock, heat, line))
            count += 1
            if count > MOST_SAMPLES:
                raise Refused(f"has more than {MOST_SAMPLES:,} samples")
    return [_power(device, rows, file.name) for device, rows in sorted(samples.items())]


def _power(device: int, rows: list[tuple[float, float, float | None, int]], file: str) -> Power:
    least, most = min(row[0] for row in rows), max(row[0] for row in rows)
    high = max(row[1] for row in rows)
    busy = [row for row in rows if row[0] >= (least + most) / 2]
    low = [row for row in busy if row[1] < LOW * high]
    heats = [row[2] for row in low if row[2] is not None]
    worst = max(low or busy, key=lambda row: (row[2] or 0.0, -row[1]))
    text = f"{worst[0]:g} W, {worst[1]:g} MHz" + (f", {worst[2]:g} C" if worst[2] is not None else "")
    return Power(device=device, samples=len(rows), busy=len(busy), low=len(low), high_mhz=high,
                 low_mhz=sum(row[1] for row in low) / len(low) if low else high,
                 hottest_c=max(heats) if heats else None, place=Evidence(file, worst[3], text))  # fmt: skip
