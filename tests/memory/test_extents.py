"""Stretches of blocks: the allocators that read the references against allocators that keep lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.memory import pool as product
from kvbench.memory.extents import buddy_fit, first_fit, take_stretch
from kvbench.memory.pool import NO_BLOCK, list_give

from ..reference.extents import Buddy, FirstFit


def check(allocator, fit, num_blocks, ops):
    """Take and give at random: the same places, no overlap, and everything in one piece at the end."""
    pool = product.make_pool(num_blocks, "unhashed-first")
    at_first = allocator.lists() if isinstance(allocator, Buddy) else list(allocator.holes)
    held: list[tuple[int, np.ndarray]] = []
    for number, size in ops:
        if size == 0 and held:
            start, row = held.pop(number % len(held))
            list_give(pool, row, row.size)
            allocator.give(start, row.size)
        elif size > 0:
            expected, block = allocator.take(size), fit(pool.refs, size)
            assert block == (NO_BLOCK if expected is None else expected + 1)
            if block != NO_BLOCK:
                row = np.zeros(size, np.int32)
                take_stretch(pool, row, block, size)
                held.append((block - 1, row))
        taken = [b for _, row in held for b in row.tolist()]
        assert len(set(taken)) == len(taken)
        assert np.flatnonzero(pool.refs).tolist() == sorted(taken)
        assert pool.num_free == num_blocks - len(taken)
    for start, row in held:
        list_give(pool, row, row.size)
        allocator.give(start, row.size)
    assert pool.num_free == num_blocks
    assert not pool.refs.any()
    assert at_first == (allocator.lists() if isinstance(allocator, Buddy) else allocator.holes)


numbers = st.integers(0, 99)


@given(st.integers(1, 40), st.lists(st.tuples(numbers, st.sampled_from([0, 0, 1, 2, 3, 5, 7, 11]))))
def test_first_fit(num_blocks, ops):
    check(FirstFit(num_blocks), first_fit, num_blocks, ops)


@given(st.integers(1, 70), st.lists(st.tuples(numbers, st.sampled_from([0, 0, 1, 2, 4, 8, 16]))))
def test_buddy(num_blocks, ops):
    check(Buddy(num_blocks), buddy_fit, num_blocks, ops)


def test_external_fragmentation_is_real():
    """Half of the memory is free, and no stretch of a quarter is."""
    pool = product.make_pool(16, "unhashed-first")
    rows = [np.zeros(2, np.int32) for _ in range(8)]
    for row in rows:
        take_stretch(pool, row, first_fit(pool.refs, 2), 2)
    for row in rows[::2]:
        list_give(pool, row, 2)
    assert pool.num_free == 8
    assert first_fit(pool.refs, 3) == buddy_fit(pool.refs, 4) == NO_BLOCK
    assert first_fit(pool.refs, 2) == buddy_fit(pool.refs, 2) == 1
