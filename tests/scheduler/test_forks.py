"""Forks, writes and releases in any order: the product's tables against a pool in plain Python with real contents."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvbench.engine.build import build_engine, share
from kvbench.engine.integrity import check_integrity
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler import forks, kv
from kvbench.scheduler.beams import parent_of
from kvbench.scheduler.queues import close_slot, open_slot, run_append, run_remove
from kvbench.scheduler.rules import CacheRules, SchedulerRules
from kvbench.scheduler.state_columns import BLOCKS, COMPUTED

from ..engine.compare import small_tables
from ..engine.workloads import request_table
from ..reference.copy_on_write import ForkingPool
from ..reference.engine import Ask

NUM = 7

pytestmark = pytest.mark.skipif(os.environ.get("KVBENCH_TEST_JIT") == "1", reason="inner functions are called")


def engine(num_blocks: int, block_tokens: int, free_order: str):
    asks = [Ask([(10 + i, 0, 90)], [(500 + i, 0, 9)], 0, 9, 9) for i in range(NUM)]
    cache = CacheRules("none", num_blocks, free_order=free_order, copy_on_write=True)
    settings = EngineSettings(SchedulerRules(max_num_seqs=NUM), cache, block_tokens, 400)
    return build_engine(share(request_table(asks), settings), settings, small_tables())


class Forking(RuleBasedStateMachine):
    """Sequences open, fork at any token, append, and go: finished or preempted."""

    @initialize(
        blocks=st.integers(1, 14), block_tokens=st.integers(1, 5), order=st.sampled_from(["unhashed-first", "tail"])
    )
    def start(self, blocks, block_tokens, order):
        self.e = engine(blocks, block_tokens, order)
        self.plain = ForkingPool(blocks, block_tokens, order == "unhashed-first")
        self.slots: dict[int, int] = {}
        self.texts: dict[int, list[int]] = {}
        self.next_token = 0

    def pick(self, number):
        return sorted(self.slots)[number % len(self.slots)]

    def place(self):
        return min(set(range(NUM)) - set(self.slots))

    def enter(self, seq):
        self.slots[seq] = open_slot(self.e, seq)
        run_append(self.e.slots, self.slots[seq])

    @precondition(lambda self: len(self.slots) < NUM)
    @rule()
    def open(self):
        seq = self.place()
        self.enter(seq)
        self.plain.open(seq)
        self.texts[seq] = []

    @precondition(lambda self: 0 < len(self.slots) < NUM)
    @rule(number=st.integers(0, 99), part=st.floats(0, 1))
    def fork(self, number, part):
        donor, seq = self.pick(number), self.place()
        tokens = round(part * len(self.texts[donor]))
        self.enter(seq)
        forks.fork(self.e, self.slots[donor], self.slots[seq], tokens)
        self.plain.fork(donor, seq, tokens)
        self.texts[seq] = self.texts[donor][:tokens]

    @precondition(lambda self: self.slots)
    @rule(number=st.integers(0, 99), count=st.integers(1, 9))
    def append(self, number, count):
        seq = self.pick(number)
        slot, tokens = self.slots[seq], list(range(self.next_token, self.next_token + count))
        self.next_token += count
        self.e.num_copies = self.e.num_copies % NUM  # a step's list; the reference keeps all
        first = self.e.num_copies
        copies = len(self.plain.copies)
        fits = forks.make_writable(self.e, slot, len(self.texts[seq]) + count)
        assert fits == self.plain.append(seq, tokens)
        assert self.e.copies[first : self.e.num_copies].tolist() == [list(c) for c in self.plain.copies[copies:]]
        if fits:
            self.e.slots.rec[slot, COMPUTED] += count
            self.e.context += count
            self.texts[seq] += tokens

    @precondition(lambda self: self.slots)
    @rule(number=st.integers(0, 99), forgets=st.booleans())
    def leave(self, number, forgets):
        seq = self.pick(number)
        slot = self.slots.pop(seq)
        if forgets:
            forks.forget_copy(self.e, slot)
        run_remove(self.e.slots, slot)
        kv.release(self.e, slot)
        self.e.seqs.slot[seq] = -1
        close_slot(self.e, slot)
        self.plain.free(seq)
        del self.texts[seq]

    @invariant()
    def all_agree(self):
        if not hasattr(self, "e"):
            return
        check_integrity(self.e)
        for seq, slot in self.slots.items():
            table = self.e.slots.table[slot, : self.e.slots.rec[slot, BLOCKS]].tolist()
            assert table == self.plain.tables[seq]
            assert self.plain.text(seq) == self.texts[seq]
        assert self.e.pool.num_free == len(self.plain.queue)
        entries, saved = self.plain.saved()
        assert self.e.table_blocks == entries
        assert self.e.table_blocks - (self.e.pool.num_blocks - self.e.pool.num_free) == saved

    def teardown(self):
        if hasattr(self, "e"):
            while self.slots:
                self.leave(0, False)
            assert self.e.pool.num_free == self.e.pool.num_blocks
            assert self.e.table_blocks == self.e.context == 0


TestForking = Forking.TestCase


def test_a_copy_of_a_victim_is_forgotten_and_no_other():
    e = engine(9, 4, "tail")
    slots = [open_slot(e, seq) for seq in range(3)]
    assert forks.make_writable(e, slots[0], 6)
    e.slots.rec[slots[0], COMPUTED] = 6
    for slot in slots[1:]:
        forks.fork(e, slots[0], slot, 6)
        assert forks.make_writable(e, slot, 7)
    assert e.copies[: e.num_copies].tolist() == [[2, 3], [2, 4]]
    forks.forget_copy(e, slots[1])
    assert e.copies[: e.num_copies].tolist() == [[2, 4]]
    forks.forget_copy(e, slots[0])  # it planned none
    assert e.num_copies == 1


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(1, 12))
def test_parents_are_beams_and_depend_on_nothing_else(seed, request, beams):
    drawn = [parent_of(seed, request, 3, place, beams, 0.5) for place in range(beams)]
    assert all(0 <= parent < beams for parent in drawn)
    assert drawn == [parent_of(seed, request, 3, place, beams, 0.5) for place in range(beams)]


def test_parents_are_drawn_by_weight():
    """8 : 4 : 2 : 1 at a skew of a half; the best alone at 0; evenly at 1."""
    for skew, expected in ((0.5, [8 / 15, 4 / 15, 2 / 15, 1 / 15]), (0.0, [1, 0, 0, 0]), (1.0, [0.25] * 4)):
        drawn = [parent_of(7, request, token, 1, 4, skew) for request in range(40) for token in range(100)]
        for parent in range(4):
            assert abs(drawn.count(parent) / len(drawn) - expected[parent]) < 0.03
