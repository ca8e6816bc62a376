"""Misses on one small trace of blocks, as many as another simulator counts on it: exactly, policy by policy.

The counts are those of libCacheSim 0.3.5 (LRU, FIFO, LFU, Sieve, LRUK, GDSF; objects of size 1). Its GDSF may drop the
very object that came: a block that is wanted cannot go, so there the plain algorithm stands between, which does both.
Of slru and s3fifo there are several algorithms.
"""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.jit import entry
from kvbench.memory.pool import list_give, make_pool
from kvbench.prefix import block_hash, ranked
from kvbench.prefix.block_hash import make_map
from kvbench.prefix.keys import block_keys

from ..engine.workloads import request_table
from ..reference.engine import Ask

CAPACITIES = (10, 25, 60)
MISSES = {
    "lru": (457, 357, 231),
    "fifo": (463, 373, 267),
    "lfu": (381, 273, 210),
    "sieve": (393, 274, 210),
    "lru-k": (400, 273, 210),
}
GDSF_OF_PEER = (426, 318, 219)


def blocks() -> list[int]:
    """600 accesses to 187 blocks: often the same few, and every hundred a scan of twenty that never come again."""
    x, scanned, trace = 12345, 1000, []

    def draw(n: int) -> int:
        nonlocal x
        x = (1103515245 * x + 12345) % (1 << 31)
        return (x >> 8) % n

    for i in range(600):
        if i % 100 >= 80:
            scanned += 1
            trace.append(scanned)
        else:
            trace.append(draw(1 + draw(1 + draw(120))))
    return trace


@entry
def access(hashes, pool, keys, sequence, row, scratch):
    """One block is wanted, and let go again. Returns 1 if it was not there."""
    found, content, _ = block_hash.match(hashes, pool, keys, sequence, np.int64(0), np.int64(1), scratch, row)
    if found == 1:
        block_hash.share(pool, row, np.int64(1))
        block_hash.note(hashes, pool, ranked.SHARED_AGAIN, row, np.int64(0), np.int64(1), np.int64(0))
    else:
        block_hash.take(hashes, pool, row, np.int64(0), np.int64(1))
        block_hash.publish(hashes, pool, keys, sequence, content, row, np.int64(0), np.int64(1), scratch)
        block_hash.note(hashes, pool, ranked.REGISTERED, row, np.int64(0), np.int64(1), np.int64(0))
    list_give(pool, row, np.int64(1))
    block_hash.note(hashes, pool, ranked.RELEASED, row, np.int64(0), np.int64(1), np.int64(0))
    return 1 - found


def misses(policy: str, capacity: int) -> int:
    trace = blocks()
    number = {block: i for i, block in enumerate(dict.fromkeys(trace))}
    asks = [Ask([(1 + block, 0, 4)], [(5000, 0, 1)]) for block in number]
    hashes, pool = make_map(capacity, 0, policy), make_pool(capacity, "unhashed-first")
    keys = block_keys(request_table(asks), 4)
    row, scratch = np.zeros(1, np.int32), np.zeros(1, np.int64)
    return sum(int(access(hashes, pool, keys, np.int64(number[block]), row, scratch)) for block in trace)


@pytest.mark.parametrize("policy", MISSES)
def test_misses_are_those_of_another_simulator(policy):
    assert tuple(misses(policy, capacity) for capacity in CAPACITIES) == MISSES[policy]


def plain_gdsf(capacity: int, may_drop_newcomer: bool) -> int:
    worth: dict[int, tuple[int, int]] = {}  # (age + uses, last use)
    uses: dict[int, int] = {}
    age = missed = 0
    for now, block in enumerate(blocks()):
        uses[block] = uses[block] + 1 if block in worth else 1
        is_full = block not in worth and len(worth) == capacity
        missed += block not in worth
        if not is_full or may_drop_newcomer:
            worth[block] = (age + uses[block], now)
        if is_full:
            victim = min(worth, key=lambda b: worth[b])
            age = worth.pop(victim)[0]
            if not may_drop_newcomer:
                worth[block] = (age + uses[block], now)
    return missed


def test_gdsf_is_the_peers_but_for_the_newcomer():
    assert tuple(plain_gdsf(capacity, True) for capacity in CAPACITIES) == GDSF_OF_PEER
    assert [misses("gdsf", c) for c in CAPACITIES] == [plain_gdsf(c, False) for c in CAPACITIES]
