"""Which request has which slot, and what a slot still remembers of the one before.

In: prompts as token ids. Out: a free slot for each, and how many of the prompt's first tokens it holds already: a slot
keeps its keys and values until another request takes it, so that a conversation's next turn, or another question
behind the same instructions, reads only what is new.

>>> slots = Slots(2)
>>> slots.take([1, 2, 3])
(0, 0)
>>> slots.free(0, [1, 2, 3, 9]); slots.take([1, 2, 3, 4])
(0, 3)
"""

from __future__ import annotations

from collections.abc import Sequence


class Slots:
    """Attributes:
    count: of all slots.
    """

    def __init__(self, count: int):
        self.count = count
        self._held: dict[int, list[int]] = {slot: [] for slot in range(count)}
        """Free slot -> tokens whose keys and values it holds; the one that was freed longest ago first."""

    @property
    def free_count(self) -> int:
        return len(self._held)

    def take(self, prompt: Sequence[int]) -> tuple[int, int]:
        """A slot, and how many tokens of the prompt need not be read: never all, since the last one's logits are
        wanted. Of slots that hold equally much, the one that was freed longest ago is overwritten.

        Raises LookupError where none is free.
        """
        if not self._held:
            raise LookupError("no slot is free")
        common = {slot: _common(held, prompt) for slot, held in self._held.items()}
        slot = max(common, key=lambda one: common[one])
        del self._held[slot]
        return slot, min(common[slot], len(prompt) - 1)

    def free(self, slot: int, holds: Sequence[int]) -> None:
        """`holds` are the tokens whose keys and values stand in the slot, from its first position on."""
        assert slot not in self._held, f"slot {slot} is free already"
        self._held[slot] = list(holds)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))
