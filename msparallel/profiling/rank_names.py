"""Whose numbers a table's rows are, where no folder or file name says it.

In: a ProfileFile and the `Device_id` of a row. Out: a rank. A folder that names its rank is believed; otherwise the
device is the rank, as on a single node, and two folders that claim the same one are not mixed.
"""

from __future__ import annotations

from msparallel.profiling.files import ProfileFile
from msparallel.profiling.table import Refused

MOST_RANK = 999_999


class RankNames:
    """Remembers which folder spoke for which rank."""

    def __init__(self) -> None:
        self._claimed: dict[int, str] = {}
        self.guessed: set[int] = set()

    def rank(self, file: ProfileFile, device: int | None) -> int:
        """The rank of a row.

        Raises:
            Refused: where another folder without a rank already spoke for it.
        """
        if file.rank is not None:
            return file.rank
        rank = device if device is not None else 0
        if rank > MOST_RANK:
            raise Refused(f"Device_id {rank} is no device")
        claimed = self._claimed.setdefault(rank, file.place)
        if claimed != file.place:
            raise Refused(f"its rank is not told, and {claimed!r} has rank {rank} already; put the files of each rank "
                          "into a folder rank_N")  # fmt: skip
        self.guessed.add(rank)
        return rank
