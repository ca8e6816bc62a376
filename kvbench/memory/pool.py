"""Block life: who holds a block, and in which order free blocks are handed out.

Two orders exist because the engines differ:

- a *list* (vLLM): doubly linked, because a cached block that is hit leaves the
  free queue from its middle. A free block may still be cached; it loses its hash only when it is reused.
- a *ring* (SGLang): a queue of block ids that is only used at its ends. A cached block is not free: the
  radix tree owns it until it evicts it.

Block ids are 1..num_blocks; 0 is the head of the list and nobody's block.

What must always hold: num_free is the length of the queue; a block on the queue has no references; the
meaning of a block as a prefix (its hash) is set and cleared by `prefix`, never here.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..kernels.ordering import sort_by_key
from ..kernels.prefetch import prefetch

NO_BLOCK = 0

# Columns of BlockPool.twins: blocks of equal content in order of registration.
TWIN_BEFORE, TWIN_AFTER, TWIN_LAST = range(3)

# Orders in which released blocks join the queue.
TAIL, UNHASHED_FIRST, APPEND, SORTED_FRONT = range(4)
FREE_ORDERS = {"tail": TAIL, "unhashed-first": UNHASHED_FIRST, "append": APPEND, "sorted-front": SORTED_FRONT}


RECORD = np.dtype(
    [("content", "i8"), ("refs", "i8"), ("after", "i4"), ("before", "i4"), ("further", "i4"), ("has_twins", "i4")]
)
_CACHE_LINE = 64

_WORDS_A_BLOCK = 24
"""So many words of 64 blocks may be looked through for each block of a group that is sorted."""
_MODULUS = np.uint64(67)
"""No two powers of two below 2^64 leave the same rest."""
_BIT = np.array([next((b for b in range(64) if (1 << b) % 67 == rest), 0) for rest in range(67)])

FURTHER = 12
"""How many places of the list ahead a record is asked for; see kernels.prefetch."""


@struct
class BlockPool:
    """One entry per block in each array, entry 0 for the head of the list. The strided ones are columns of one record a
    block (RECORD), half a cache line: after some generations the order of the free list is as good as random.

    after, before   (num_blocks + 1,) the free list; 0 at its ends
    further         a block that stood FURTHER places behind it in the list when both joined; a hint, 0 = none
    refs            block tables (and forks) that hold the block; not used under a ring, where a block has one owner
    content         its hash while it is visible as a prefix, else 0
    has_twins       1 while other blocks of the same content are, or were, registered beside it
    twins           (num_blocks + 1, 3) neighbours in their order of registration; TWIN_LAST is kept by the first
    in_flight       operations on queues other than compute that may touch it
    ring            (capacity,) block ids, capacity a power of two (list: 1)
    num_free        length of the free queue
    cached          free blocks that are still visible as a prefix (list)
    evicted         of these, reused so far (list); blocks evicted from the tree (ring)
    """

    after: "i4[:]"
    before: "i4[:]"
    further: "i4[:]"
    refs: "i8[:]"
    content: "i8[:]"
    has_twins: "i4[:]"
    twins: "i4[:,::1]"
    in_flight: "i4[::1]"
    ring: "i4[::1]"
    ring_head: "i8"
    num_blocks: "i8"
    num_free: "i8"
    free_order: "i8"
    cached: "i8"
    evicted: "i8"


def make_pool(num_blocks: int, free_order: str) -> BlockPool:
    """A pool of usable blocks, all free, in order 1, 2, 3, ..."""
    order = FREE_ORDERS[free_order]
    is_list = order in (TAIL, UNHASHED_FIRST)
    listed = num_blocks + 1 if is_list else 1
    record = _records(listed)
    record["after"][:-1] = np.arange(1, listed)
    record["before"] = np.arange(-1, listed - 1)
    record["before"][0] = listed - 1
    ring = np.zeros(1 if is_list else _power_of_two(num_blocks), np.int32)
    if not is_list:
        ring[:num_blocks] = np.arange(1, num_blocks + 1)
    return BlockPool(
        *(record[name] for name in ("after", "before", "further", "refs", "content", "has_twins")),
        np.zeros((listed, 3), np.int32),
        np.zeros(num_blocks + 1, np.int32),
        ring,
        0,
        num_blocks,
        num_blocks,
        order,
        0,
        0,
    )


def _records(num: int) -> np.ndarray:
    """All zero, each within one cache line."""
    memory = np.zeros((num + 2) * RECORD.itemsize, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + num * RECORD.itemsize].view(RECORD)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 1).bit_length()


# ---------------------------------------------------------------- ring


@jit
def ring_take(pool, row, start, stop):
    """Take stop - start blocks from the head into row[start:stop]; the caller has checked num_free."""
    ring, head = pool.ring, pool.ring_head
    wrap = min(stop, start + ring.size - head)
    for i in range(start, wrap):
        row[i] = ring[head + i - start]
    for i in range(wrap, stop):
        row[i] = ring[i - wrap]
    pool.ring_head = (head + stop - start) & (ring.size - 1)
    pool.num_free -= stop - start


@jit
def ring_give(pool, row, start, stop):
    """Return row[start:stop], one call = one group.

    source   SGLang's token allocator appends; its paged allocator puts the sorted group in front.
    """
    n = stop - start
    if n <= 0:
        return
    ring = pool.ring
    mask = ring.size - 1
    if pool.free_order == APPEND:
        at = (pool.ring_head + pool.num_free) & mask
    else:
        at = (pool.ring_head - n) & mask
        pool.ring_head = at
    ascending = True
    for i in range(start + 1, stop):
        ascending &= row[i] > row[i - 1]
    for i in range(n):  # a recording gives more to a pool of nobody's than its ring holds
        ring[(at + i) & mask] = row[start + i]
    if pool.free_order == SORTED_FRONT and not ascending:
        _sort_front(ring, at, n)
    pool.num_free += n


@jit
def _sort_front(ring, head, n):
    """Sort ring[head : head + n], blocks of which no two are the same."""
    mask = ring.size - 1
    lowest = highest = np.int64(ring[head])
    for i in range(1, n):
        block = np.int64(ring[(head + i) & mask])
        lowest, highest = min(lowest, block), max(highest, block)
    first, last = lowest >> 6, highest >> 6
    if last - first < _WORDS_A_BLOCK * n:
        _sort_by_bits(ring, head, n, first, last)
        return
    block, along = np.empty(n, np.int64), np.empty(n, np.int64)
    for i in range(n):
        block[i] = ring[(head + i) & mask]
    sort_by_key(block, along, n)
    for i in range(n):
        ring[(head + i) & mask] = block[i]


@inline
def _sort_by_bits(ring, head, n, first, last):
    """A bit for each block, in words of 64 of them, then all bits in order: no comparison, so none is mispredicted."""
    mask = ring.size - 1
    words = np.zeros(last - first + 1, np.uint64)
    one = np.uint64(1)
    for i in range(n):
        block = np.int64(ring[(head + i) & mask])
        words[(block >> 6) - first] |= one << np.uint64(block & 63)
    for w in range(words.size):
        word, base = words[w], (first + w) << 6
        while word != 0:
            rest = word & (word - one)
            ring[head & mask] = base + _BIT[np.int64((word ^ rest) % _MODULUS)]
            head += 1
            word = rest


# ---------------------------------------------------------------- list


@inline
def list_unlink(after, before, block):
    """Take one block out of the middle of the free queue (it was hit)."""
    after[before[block]] = after[block]
    before[after[block]] = before[block]


@jit
def list_to_front(pool, block):
    """Move a free block to the front of the free queue."""
    after, before = pool.after, pool.before
    list_unlink(after, before, block)
    head = np.int64(after[0])
    after[block] = head
    before[head] = block
    after[0] = block
    before[block] = 0


@jit
def list_give(pool, row, n):
    """Drop one reference of row[0:n], last block first; blocks without references join the free queue.

    source   vLLM frees a table in reverse, so that tails are reused before heads. 0.19 appends all; 0.33
             puts blocks without a hash in front of the queue, the last block of the table foremost.
    """
    after, before, refs, content, further = pool.after, pool.before, pool.refs, pool.content, pool.further
    unhashed_first = pool.free_order == UNHASHED_FIRST
    tail = np.int64(before[0])  # 0, the head itself, when the queue is empty
    front, last = np.int64(NO_BLOCK), np.int64(NO_BLOCK)  # ends of what goes in front
    freed, cached = 0, 0
    for i in range(n - 1, -1, -1):
        block = np.int64(row[i])
        following = np.int64(NO_BLOCK)
        if i >= FURTHER:
            following = np.int64(row[i - FURTHER])
            prefetch(content, following)
        refs[block] -= 1
        if refs[block] > 0:
            continue
        further[block] = following
        freed += 1
        if content[block] != 0:
            cached += 1
        elif unhashed_first:
            if front == NO_BLOCK:
                front = block
            else:
                after[last] = block
                before[block] = last
            last = block
            continue
        after[tail] = block
        before[block] = tail
        tail = block
    after[tail] = 0
    before[0] = tail
    if front != NO_BLOCK:
        head = after[0]
        after[last] = head
        before[head] = last  # in an empty queue the head is 0, and last its new tail
        after[0] = front
        before[front] = 0
    pool.num_free += freed
    pool.cached += cached
