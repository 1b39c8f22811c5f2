"""Who holds which row of the KV cache.

A ledger of integers; the tensors are in compute/cache.py. Owned by the scheduler.

Law: free and used rows are disjoint and together all rows; the generation of a row grows each time it is handed out, so
a result that was computed for an earlier holder can be told from the present one's.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of the KV cache, lent out for the `generation`-th time."""

    index: int
    generation: int


class SlotPool:
    """Hands out rows, the one that has been free longest first, so that a returned row keeps its content a while."""

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._free = OrderedDict.fromkeys(range(n_slots))  # in the order of release
        self._generations = [0] * n_slots
        self._used: dict[int, int] = {}  # index -> generation

    @property
    def n_free(self) -> int:
        """Rows that can be acquired."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        """Rows lent out."""
        return len(self._used)

    def acquire(self, index: int | None = None) -> Slot:
        """Lend the row that has been free longest, or the one named, which must be free; there must be one."""
        assert self._free, "no free slot: admission must look at n_free"
        if index is None:
            index, _ = self._free.popitem(last=False)
        else:
            del self._free[index]
        self._generations[index] += 1
        self._used[index] = self._generations[index]
        return Slot(index, self._generations[index])

    def release(self, slot: Slot) -> None:
        """Take the row back; it must be held by exactly this generation."""
        assert self.holds(slot), f"{slot} is not lent out"
        del self._used[slot.index]
        self._free[slot.index] = None

    def offer_first(self, index: int) -> None:
        """The content of this row is worth nothing any more: lend it before others, if it is free."""
        if index in self._free:
            self._free.move_to_end(index, last=False)

    def is_free(self, index: int) -> bool:
        """Whether the row can be acquired by its index."""
        return index not in self._used

    def holds(self, slot: Slot) -> bool:
        """Whether the row is still lent out to this holder."""
        return self._used.get(slot.index) == slot.generation
