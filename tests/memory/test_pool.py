"""The free queue of blocks: both rings and the list keep the order of plain Python, whatever is taken and given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.memory import pool as product
from kvbench.prefix import block_hash

from ..reference.block_hash import BlockPool
from ..reference.sglang_memory import PagedAllocator, TokenAllocator

RINGS = {"append": TokenAllocator, "sorted-front": PagedAllocator}


@entry
def take(pool, row, start, stop):
    product.ring_take(pool, row, start, stop)


@entry
def give(pool, row, start, stop):
    product.ring_give(pool, row, start, stop)


@entry
def list_give(pool, row, n):
    product.list_give(pool, row, n)


def ring_order(pool: product.BlockPool) -> list[int]:
    """Free blocks, the next to be taken first."""
    return [int(pool.ring[(pool.ring_head + i) % pool.ring.size]) for i in range(pool.num_free)]


def list_order(pool: product.BlockPool) -> list[int]:
    """Free blocks, the next to be taken first; the links backwards say the same."""
    after, before = pool.after, pool.before
    order, block = [], int(after[0])
    while block:
        order.append(block)
        block = int(after[block])
    backwards, block = [], int(before[0])
    while block:
        backwards.append(block)
        block = int(before[block])
    assert backwards[::-1] == order
    return order


def row_of(blocks: list[int], offset: int = 0) -> np.ndarray:
    return np.array([0] * offset + blocks, np.int32)


@pytest.mark.parametrize("order", RINGS)
@given(data=st.data(), num_blocks=st.integers(1, 33))
def test_ring(order, data, num_blocks):
    pool, plain = product.make_pool(num_blocks, order), RINGS[order](num_blocks)
    held: list[int] = []
    for _ in range(data.draw(st.integers(1, 25))):
        if held and data.draw(st.booleans()):
            group = data.draw(st.lists(st.sampled_from(held), unique=True, max_size=len(held)))
            give(pool, row_of(group, offset=2), 2, 2 + len(group))
            plain.free(group)
            held = [block for block in held if block not in group]
        else:
            n = data.draw(st.integers(0, pool.num_free))
            row = np.zeros(n + 3, np.int32)
            take(pool, row, 3, n + 3)
            held += plain.take(n)
            assert row[3:].tolist() == held[len(held) - n :]
        assert ring_order(pool) == list(plain._free)
        assert pool.num_free == plain.num_free


def test_sorted_front_sorts_any_group():
    """A table of one sequence is a few ascending runs; a group may be anything."""
    for group in ([5, 4, 3, 2, 1], [1, 3, 5, 2, 4], [2, 1, 4, 3], [7], [6, 7, 1, 2, 4, 5, 3]):
        pool = product.make_pool(9, "sorted-front")
        take(pool, np.zeros(9, np.int32), 0, 9)
        give(pool, row_of(group), 0, len(group))
        assert ring_order(pool) == sorted(group)


@given(blocks=st.lists(st.integers(1, 5000), unique=True, min_size=1, max_size=40), start=st.integers(0, 5000))
def test_sorted_front_sorts_neighbours_and_blocks_that_lie_far_apart(blocks, start):
    """Few far blocks are merged, many near ones are sorted by their bits; the group may lie over the ring's end."""
    pool = product.make_pool(5000, "sorted-front")
    take(pool, np.zeros(5000, np.int32), 0, 5000)
    pool.ring_head = start
    give(pool, row_of(blocks, offset=3), 3, 3 + len(blocks))
    assert ring_order(pool) == sorted(blocks)


@pytest.mark.parametrize("order", ["tail", "unhashed-first"])
@given(data=st.data(), num_blocks=st.integers(1, 20))
def test_list(order, data, num_blocks):
    """Tables are taken, shared and given back; some blocks have a content, which decides where they go."""
    pool, hashes = product.make_pool(num_blocks, order), block_hash.make_map(num_blocks)
    plain = BlockPool(num_blocks + 1, frees_unhashed_to_front=order == "unhashed-first")
    tables: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["take", "share", "give"]))
        if action == "take":
            n = data.draw(st.integers(0, pool.num_free))
            row = np.zeros(n, np.int32)
            block_hash.take(hashes, pool, row, 0, n)
            tables.append(plain.take(n))
            assert row.tolist() == tables[-1]
        elif tables and action == "share":
            table = data.draw(st.sampled_from(tables))
            block_hash.share(pool, row_of(table), len(table))
            plain.share(table)
            tables.append(list(table))
        elif tables:
            table = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
            list_give(pool, row_of(table), len(table))
            plain.give_back(table)
        plain.check_integrity(tables)
        assert list_order(pool) == list(plain.free_queue)
        assert pool.num_free == plain.num_free
        assert pool.refs[1:].tolist() == plain.num_refs[1:]
