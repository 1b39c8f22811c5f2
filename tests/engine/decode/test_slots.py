"""Laws of the slot ledger."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from engine.decode.slots import Slot, SlotPool


class SlotLedger(RuleBasedStateMachine):
    """Any order of acquire and release, against a plain set of what is lent out."""

    lent = Bundle("lent")
    returned = Bundle("returned")

    @initialize(n_slots=st.integers(1, 5))
    def start(self, n_slots: int) -> None:
        self.pool = SlotPool(n_slots)
        self.used: set[Slot] = set()
        self.generations: dict[int, int] = {}
        self.free = list(range(n_slots))  # in the order in which they will be lent

    @precondition(lambda self: self.pool.n_free)
    @rule(target=lent)
    def acquire(self) -> Slot:
        slot = self.pool.acquire()
        assert slot.index == self.free.pop(0), "the row that has been free longest is lent first"
        return self.enter(slot)

    @precondition(lambda self: self.pool.n_free)
    @rule(target=lent, data=st.data())
    def acquire_by_index(self, data: st.DataObject) -> Slot:
        wanted = data.draw(st.sampled_from([i for i in range(self.pool.n_slots) if self.pool.is_free(i)]))
        slot = self.pool.acquire(wanted)
        assert slot.index == wanted
        self.free.remove(wanted)
        return self.enter(slot)

    @rule(target=returned, slot=consumes(lent))
    def release(self, slot: Slot) -> Slot:
        self.pool.release(slot)
        self.used.remove(slot)
        self.free.append(slot.index)
        return slot

    @rule(data=st.data())
    def offer_first(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, self.pool.n_slots - 1))
        self.pool.offer_first(index)
        if index in self.free:
            self.free.remove(index)
            self.free.insert(0, index)

    @rule(slot=returned)
    def a_returned_slot_is_held_by_nobody(self, slot: Slot) -> None:
        assert not self.pool.holds(slot)
        with pytest.raises(AssertionError, match="not lent out"):
            self.pool.release(slot)

    def enter(self, slot: Slot) -> Slot:
        assert slot.generation == self.generations.get(slot.index, 0) + 1
        self.generations[slot.index] = slot.generation
        self.used.add(slot)
        return slot

    @invariant()
    def free_and_used_are_disjoint_and_together_all(self) -> None:
        free = {i for i in range(self.pool.n_slots) if self.pool.is_free(i)}
        used = {slot.index for slot in self.used}
        assert free | used == set(range(self.pool.n_slots)) and not free & used
        assert (self.pool.n_free, self.pool.n_used) == (len(free), len(used))
        assert all(self.pool.holds(slot) for slot in self.used)


TestSlotLedger = SlotLedger.TestCase


def test_a_late_result_can_be_told_after_its_row_was_lent_again() -> None:
    pool = SlotPool(1)
    first = pool.acquire()
    pool.release(first)
    second = pool.acquire()
    assert second.index == first.index
    assert pool.holds(second) and not pool.holds(first)


def test_a_full_pool_lends_nothing() -> None:
    pool = SlotPool(1)
    pool.acquire()
    with pytest.raises(AssertionError, match="no free slot"):
        pool.acquire()
