"""Time stamps of log lines as seconds, to be compared with each other.

In: bytes of log text. Out: seconds since 1970 as the writing machine's clock shows them, with no regard to time zones.
The forms: `2025-03-10-09:40:12.444.000` (MindSpore, CANN), `2025-03-10 09:40:12,444` (Python's logging, ISO; Go's
has slashes), `[Sun Mar 30 08:24:00 2025]` (dmesg -T), `Aug  1 08:38:31` (syslog; it has no year, so it is compared
only within its own kind).

>>> stamps(b"[ERROR] ME(1:2,MainProcess):2025-03-10-09:40:12.444.000 [a.py:1] x")
[(28, 1741599612.444)]
"""

from __future__ import annotations

import re
import time
from calendar import timegm

_FULL = re.compile(rb"(20\d\d)[-/](\d\d)[-/](\d\d)[-T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{3})(?:\.?(\d{3}))?)?")
_SYSLOG = re.compile(rb"^(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d) ", re.M)
_DMESG_T = re.compile(rb"^\[\w{3} (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(\d{1,2}) (\d\d):(\d\d):(\d\d) "
                      rb"(20\d\d)\]", re.M)  # fmt: skip
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")


def stamps(text: bytes, year: int | None = None) -> list[tuple[int, float]]:
    """(place, seconds) of all stamps in `text`; syslog's only where `year` is given."""
    found = [(match.start(), _seconds(match)) for match in _FULL.finditer(text)]
    if not found and year is not None:
        found = [(match.start(), _syslog_seconds(match, int(match[6]))) for match in _DMESG_T.finditer(text)]
    if not found and year is not None:
        found = [(match.start(), _syslog_seconds(match, year)) for match in _SYSLOG.finditer(text)]
    return found


def last_stamp(text: bytes, year: int | None = None) -> float | None:
    """The last stamp in `text`."""
    found = stamps(text, year)
    return found[-1][1] if found else None


def _seconds(match: re.Match[bytes]) -> float:
    year, month, day, hour, minute, second = (int(match[index]) for index in range(1, 7))
    micro = int((match[7] or b"0").ljust(3, b"0") + (match[8] or b"000"))
    return _epoch(year, month, day, hour, minute, second) + micro / 1e6


def _syslog_seconds(match: re.Match[bytes], year: int) -> float:
    day, hour, minute, second = (int(match[index]) for index in range(2, 6))
    return _epoch(year, _MONTHS.index(match[1]) + 1, day, hour, minute, second)


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float:
    """Digits that are no date (month 99) still give a number: logs are not trusted, and order is all that is asked."""
    return float(timegm((year, min(max(month, 1), 12), min(max(day, 1), 28), 0, 0, 0)) + max(0, day - 28) * 86400
                 + hour * 3600 + minute * 60 + second)  # fmt: skip


def as_year(moment_s: float, year: int) -> float:
    """The same day and time in another year."""
    told = time.gmtime(moment_s)
    return _epoch(year, told.tm_mon, told.tm_mday, told.tm_hour, told.tm_min, told.tm_sec)
