"""What npu-smi tells beside its table: `npu-smi info -t TYPE -i ID`, `npu-smi info -m`.

In: the text. Out: Details (usages, common, health, board, ecc, memory, temp, power, spod-info ... all have lines
`name : value`), MapEntry; DeviceUnavailable where npu-smi says that it cannot answer, UserError with file and line for
anything else.

`Chip ID` stands above the values of a chip (common) or below them (ecc, usages, temp, power): a block ends at an empty
line, or where one of its names comes again. A block named `mcu` is the board's controller, not a chip.
Sources: the driver's npu_info_print.c and npu_chip_info.c, outputs in tests of Ascend/mind-cluster and gpustack.

>>> details = parse_details("NPU ID : 3\\nChip Count : 1\\n\\nHBM Capacity(MB) : 65536\\nChip ID : 0\\n", "usages.txt")
>>> details.npu_id, details.chips[0].chip_id, details.count("HBM Capacity(MB)")
(3, 0, 65536)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from msparallel.devices.tool_text import (
    NOT_TOLD,
    Place,
    identifier,
    number,
    numbered,
    refusal,
    whole,
    wrong,
)
from msparallel.errors import UserError, short

_MOST_VALUES = 10_000
_PAIR = re.compile(r"(?P<name>[A-Za-z0-9][^:|]{0,79}?)\s*:\s?(?P<value>.{0,400}?)\s*")
_TRAILING = re.compile(r"\s{2,}")


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Values of one chip, or of the board's controller (name `mcu`, id None)."""

    chip_id: int | None
    name: str | None
    values: dict[str, str]
    lines: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Details:
    """One output of `npu-smi info -t`.

    Attributes:
        npu_id: None where the output names none (health of one chip).
        board: values of the card as a whole, name -> text; `lines`: where they stand.
        chips: its chips, in the output's order; values without any id are a chip with id None.
    """

    file: str
    npu_id: int | None
    board: dict[str, str]
    lines: dict[str, int]
    chips: tuple[Chip, ...]

    def find(self, name: str, chip_id: int | None = None) -> tuple[str, Place] | None:
        """The value of a name and its place: of a chip, or the first one; None where there is none."""
        for chip in self.chips:
            if name in chip.values and (chip_id is None or chip.chip_id == chip_id):
                return chip.values[name], Place(self.file, chip.lines[name])
        if chip_id is None and name in self.board:
            return self.board[name], Place(self.file, self.lines[name])
        return None

    def text(self, name: str, chip_id: int | None = None) -> str | None:
        """The value as it is written; None where it is missing or NA."""
        found = self.find(name, chip_id)
        return None if found is None or found[0] in NOT_TOLD else found[0]

    def number(self, name: str, chip_id: int | None = None) -> float | None:
        """The value as a number; None where it is missing or NA. Raises UserError for a text."""
        found = self.find(name, chip_id)
        return None if found is None else number(found[0], name, found[1])

    def count(self, name: str, chip_id: int | None = None) -> int | None:
        """The same for a whole number."""
        found = self.find(name, chip_id)
        return None if found is None else whole(found[0], name, found[1])


def parse_details(text: str, name: str) -> Details:
    """One output of `npu-smi info -t TYPE`.

    Raises:
        DeviceUnavailable: npu-smi says that it cannot answer.
        UserError: no `name : value` in it, or lines of another form.
    """
    blocks: list[dict[str, tuple[str, int]]] = [{}]
    other: tuple[Place, str] | None = None
    for place, line in numbered(text, name):
        if not line or set(line) <= set("+-= "):
            if blocks[-1]:
                blocks.append({})
            continue
        for part in (p.strip() for p in line.strip("|").split("|")):
            pair = _PAIR.fullmatch(part)
            if pair is None:
                other = other or (place, part)
                continue
            if pair["name"] in blocks[-1]:
                blocks.append({})
            blocks[-1][pair["name"]] = pair["value"], place.line
    told = [block for block in blocks if block]
    if said := refusal(text, name):
        raise said
    if not told:
        raise UserError(f"{name}\n  Nothing in it has the form 'name : value', as the output of `npu-smi info -t TYPE "
                        "-i ID` has.")  # fmt: skip
    if other is not None and not other[1].startswith(("npu-smi ", "[")):
        raise wrong(other[0], other[1], "Lines here are 'name : value', for example 'Temperature(C) : 45'.")
    if sum(map(len, told)) > _MOST_VALUES:
        raise UserError(f"{name}\n  More than {_MOST_VALUES:,} values.")
    return _details(told, name)


def _details(blocks: list[dict[str, tuple[str, int]]], name: str) -> Details:
    npu_id: int | None = None
    board: dict[str, tuple[str, int]] = {}
    chips: list[Chip] = []
    for block in blocks:
        if "NPU ID" in block:
            value, line = block["NPU ID"]
            found = identifier(value, "NPU ID", Place(name, line))
            if npu_id not in (None, found):
                raise wrong(Place(name, line), value, f"This output is of NPU {npu_id}: one card in one file.")
            npu_id = found
        if "Chip ID" in block or "NPU ID" not in block:
            chips.append(_chip(block, name))
        else:
            board.update(block)
    return Details(file=name, npu_id=npu_id, board={key: value for key, (value, _) in board.items()},
                   lines={key: line for key, (_, line) in board.items()}, chips=tuple(chips))  # fmt: skip


def _chip(block: dict[str, tuple[str, int]], name: str) -> Chip:
    chip_id = None
    if "Chip ID" in block:
        value, line = block["Chip ID"]
        chip_id = identifier(value, "Chip ID", Place(name, line))
    values = {key: pair for key, pair in block.items() if key not in ("Chip ID", "NPU ID", "Chip Name")}
    return Chip(chip_id=chip_id, name=block["Chip Name"][0] if "Chip Name" in block else None,
                values={key: value for key, (value, _) in values.items()},
                lines={key: line for key, (_, line) in values.items()})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MapEntry:
    """A line of `npu-smi info -m`. `logic_id` is what MindSpore counts; None for the board's controller (Mcu)."""

    npu_id: int
    chip_id: int
    logic_id: int | None
    phy_id: int | None
    name: str


def parse_map(text: str, name: str) -> tuple[MapEntry, ...]:
    """`npu-smi info -m`: which id is which.

    Raises:
        DeviceUnavailable, UserError: as `parse_info`.
    """
    header: list[str] | None = None
    entries = []
    for place, line in numbered(text, name):
        if line.startswith("NPU ID") and {"NPU ID", "Chip ID"} <= set(words := _TRAILING.split(line)):
            header = words
        elif header and line:
            words = line.split(None, len(header) - 1)
            if len(words) != len(header):
                raise wrong(place, line, f"Expected here are {len(header)} values: {', '.join(header)}.")
            row = dict(zip(header, words, strict=True))
            entries.append(MapEntry(
                npu_id=identifier(row["NPU ID"], "NPU ID", place),
                chip_id=identifier(row.get("Chip ID", ""), "Chip ID", place),
                logic_id=whole(row.get("Chip Logic ID", ""), "Chip Logic ID", place),
                phy_id=whole(row.get("Chip Phy-ID", ""), "Chip Phy-ID", place),
                name=short(row.get("Chip Name", ""), 60),
            ))  # fmt: skip
    if not entries:
        raise refusal(text, name) or UserError(
            f"{name}\n  There is no map in it: a header 'NPU ID  Chip ID  Chip Logic ID  Chip Name' and a line a "
            "chip, as `npu-smi info -m` prints."
        )
    return tuple(entries)
