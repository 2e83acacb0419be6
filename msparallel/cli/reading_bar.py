"""A bar on stderr while files are read; it appears after two seconds.

In: nothing. Out: a function that is told how many bytes more were read.

>>> with reading_bar() as read:
...     read(4096)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def reading_bar() -> Iterator[Callable[[int], object]]:
    """The bar, as long as the block runs."""
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no thread beside the processes that read
    with tqdm(unit="B", unit_scale=True, unit_divisor=1024, delay=2, leave=False, desc="reading", disable=None) as bar:
        yield bar.update
