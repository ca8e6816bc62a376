"""Block life: who holds a block, and in which order free blocks are handed out.

Two orders exist because the engines differ:

- a *list* (vLLM): doubly linked through the block records, because a cached block that is hit leaves the
  free queue from its middle. A free block may still be cached; it loses its hash only when it is reused.
- a *ring* (SGLang): a queue of block ids that is only used at its ends. A cached block is not free: the
  radix tree owns it until it evicts it.

Block ids are 1..num_blocks; record 0 is the head of the list and nobody's block.

What must always hold: num_free is the length of the queue; a block on the queue has no references; the
meaning of a block as a prefix (its hash) is set and cleared by `prefix`, never here.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct

# Columns of a block record: 64 bytes, one cache line.
REFS, PREV, NEXT, HASH, DUP_PREV, DUP_NEXT, DUP_TAIL, LIFE = range(8)
# HASH      content hash while the block is visible as a prefix, else 0
# DUP_*     blocks that hold the same content, in order of registration; DUP_TAIL is kept by the first
# LIFE      operations in flight on queues other than compute (low 32 bits), tier (high bits); 0 = device, quiet

NO_BLOCK = 0

# Orders in which released blocks join the queue.
TAIL, UNHASHED_FIRST, APPEND, SORTED_FRONT = range(4)
FREE_ORDERS = {"tail": TAIL, "unhashed-first": UNHASHED_FIRST, "append": APPEND, "sorted-front": SORTED_FRONT}


@struct
class BlockPool:
    """blocks: (num_blocks + 1, 8) records. ring: (capacity,) block ids, capacity a power of two (list: 1).

    cached: free blocks that are still visible as a prefix (list). evicted: of these, reused so far.
    """

    blocks: "i8[:,::1]"
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
    blocks = np.zeros((num_blocks + 1, 8), np.int64)
    ring = np.zeros(1, np.int32)
    if order in (TAIL, UNHASHED_FIRST):
        blocks[:, PREV] = np.arange(-1, num_blocks)
        blocks[:, NEXT] = np.arange(1, num_blocks + 2)
        blocks[0, PREV] = num_blocks
        blocks[num_blocks, NEXT] = 0
    else:
        ring = np.zeros(_power_of_two(num_blocks), np.int32)
        ring[:num_blocks] = np.arange(1, num_blocks + 1)
    return BlockPool(blocks, ring, 0, num_blocks, num_blocks, order, 0, 0)


def _power_of_two(n: int) -> int:
    return 1 << max(n - 1, 1).bit_length()


# ---------------------------------------------------------------- ring


@jit
def ring_take(pool, row, start, stop):
    """Take stop - start blocks from the head into row[start:stop]; the caller has checked num_free."""
    ring = pool.ring
    mask = ring.size - 1
    head = pool.ring_head
    for i in range(start, stop):
        row[i] = ring[head & mask]
        head += 1
    pool.ring_head = head & mask
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
        tail = pool.ring_head + pool.num_free
        for i in range(n):
            ring[(tail + i) & mask] = row[start + i]
    else:
        head = (pool.ring_head - n) & mask
        pool.ring_head = head
        ascending = True
        for i in range(n):
            ring[(head + i) & mask] = row[start + i]
            ascending = ascending and (i == 0 or row[start + i] > row[start + i - 1])
        if not ascending:
            _sort_front(ring, head, n)
    pool.num_free += n


@jit
def _sort_front(ring, head, n):
    """Sort ring[head : head + n]: merge its ascending runs, of which a table has few."""
    mask = ring.size - 1
    source, target = np.empty(n, np.int32), np.empty(n, np.int32)
    for i in range(n):
        source[i] = ring[(head + i) & mask]
    runs = 2
    while runs > 1:
        runs, out = 0, 0
        while out < n:
            middle = _run_end(source, out, n)
            stop = _run_end(source, middle, n)
            left, right = out, middle
            while out < stop:
                if right == stop or (left < middle and source[left] < source[right]):
                    target[out] = source[left]
                    left += 1
                else:
                    target[out] = source[right]
                    right += 1
                out += 1
            runs += 1
        source, target = target, source
    for i in range(n):
        ring[(head + i) & mask] = source[i]


@jit
def _run_end(values, start, n):
    """End of the ascending run that begins at start; n when there is nothing left."""
    end = min(start + 1, n)
    while end < n and values[end] > values[end - 1]:
        end += 1
    return end


# ---------------------------------------------------------------- list


@inline
def list_unlink(blocks, block):
    """Take one block out of the middle of the free queue (it was hit)."""
    before = blocks[block, PREV]
    after = blocks[block, NEXT]
    blocks[before, NEXT] = after
    blocks[after, PREV] = before


@jit
def list_give(pool, row, n):
    """Drop one reference of row[0:n], last block first; blocks without references join the free queue.

    source   vLLM frees a table in reverse, so that tails are reused before heads. 0.19 appends all; 0.33
             puts blocks without a hash in front of the queue, the last block of the table foremost.
    """
    blocks = pool.blocks
    unhashed_first = pool.free_order == UNHASHED_FIRST
    head, tail = blocks[0, NEXT], blocks[0, PREV]
    front_head, front_tail = np.int64(NO_BLOCK), np.int64(NO_BLOCK)
    for i in range(n - 1, -1, -1):
        block = np.int64(row[i])
        refs = blocks[block, REFS] - 1
        blocks[block, REFS] = refs
        if refs > 0:
            continue
        pool.num_free += 1
        hashed = blocks[block, HASH] != 0
        pool.cached += np.int64(hashed)
        if unhashed_first and not hashed:
            front_head, front_tail = _join(blocks, front_head, front_tail, block)
        else:
            head, tail = _join(blocks, head, tail, block)
    if front_head != NO_BLOCK:
        if head == NO_BLOCK:
            tail = front_tail
        else:
            blocks[front_tail, NEXT] = head
            blocks[head, PREV] = front_tail
        head = front_head
    blocks[0, NEXT], blocks[0, PREV] = head, tail
    if head != NO_BLOCK:
        blocks[head, PREV] = 0
        blocks[tail, NEXT] = 0


@inline
def _join(blocks, head, tail, block):
    """Append to a chain given by its ends; returns the new ends."""
    if head == NO_BLOCK:
        return block, block
    blocks[tail, NEXT] = block
    blocks[block, PREV] = tail
    return head, block
