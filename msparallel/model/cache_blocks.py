"""Where tokens stand in a cache of blocks, as Ascend's attention over pages reads it.

In: how many requests have room at once, tokens of each, tokens of a block. Out: the blocks of a slot, the number of
every token's row. A cache of a layer is [blocks, block_size, key heads, head width].

>>> blocks = Blocks(slots=2, length=40, block_size=16)
>>> blocks.of_a_slot, blocks.count, blocks.table(1)
(3, 7, (3, 4, 5))
>>> blocks.row(slot=1, position=17), blocks.spare_row
(65, 96)

A slot is a fixed run of blocks, because a request's room is kept for all of its tokens whichever blocks it is in:
`serve.max_length` is what the memory is planned for. The block table then only says where the run begins.

One more block, the last, is spare. What only fills a batch up reads and writes there, and nobody else looks.
MindFormers gives such tokens the row -1, which Ascend's ReshapeAndCache leaves out by its kernel's convention; its
definition in MindSpore says nothing of negative rows, and NumPy would take the last. A row that exists needs no
convention, and a filler of a decoding step needs a block to read anyway.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_SIZE = 128
"""Tokens of a block. Ascend's kernel takes multiples of `LEAST_BLOCK_SIZE`; large blocks are read in long stretches."""
LEAST_BLOCK_SIZE = 16
SERVED_DTYPE = "bfloat16"
"""Of a served model on Ascend: weights, cache and products."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """Attributes:
    slots: requests that have room at once.
    length: tokens of each.
    """

    slots: int
    length: int
    block_size: int = BLOCK_SIZE

    @property
    def of_a_slot(self) -> int:
        return -(-self.length // self.block_size)

    @property
    def window(self) -> int:
        """Tokens that the blocks of a slot have room for."""
        return self.of_a_slot * self.block_size

    @property
    def count(self) -> int:
        """Of all blocks, the spare one among them."""
        return self.slots * self.of_a_slot + 1

    @property
    def tokens(self) -> int:
        """That the cache has room for."""
        return self.count * self.block_size

    def table(self, slot: int) -> tuple[int, ...]:
        """Blocks of a slot, in the order of positions."""
        first = slot * self.of_a_slot
        return tuple(range(first, first + self.of_a_slot))

    @property
    def spare_table(self) -> tuple[int, ...]:
        """What stands in the table of a row that only fills a batch up."""
        return (self.count - 1,) * self.of_a_slot

    def row(self, slot: int, position: int) -> int:
        """Number of a token's row among all rows of all blocks."""
        assert 0 <= slot < self.slots and 0 <= position < self.window, f"slot {slot}, position {position}"
        return slot * self.window + position

    @property
    def spare_row(self) -> int:
        return (self.count - 1) * self.block_size
