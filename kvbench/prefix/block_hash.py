"""Prefix cache by block hash: a full block is known by a hash of itself and of all before it.

A block is registered when it is allocated for scheduled tokens, and stays visible after its last reference is
gone until the free queue hands it out again (lazy eviction). Blocks of equal content coexist: a look-up
gives the one that was registered first and is still there. The chain hash is 64 bits; among ten million
blocks two different prefixes meet with probability below 3e-6.

What must always hold: HASH of a block is set exactly while the block is in the map.

source: vLLM v1's block pool and KV cache manager.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..kernels.prefetch import AHEAD, prefetch
from ..memory.pool import (
    DUP_NEXT,
    DUP_PREV,
    DUP_TAIL,
    HASH,
    NEXT,
    NO_BLOCK,
    PREV,
    REFS,
    list_unlink,
)
from .keys import fill_keys

_LOOKAHEAD = 64


@struct
class HashMap:
    """table: (tag << 32 | first block of that content), 0 = empty, a power of two.

    distinct: contents in the map. registered: registrations so far. log: evicted block ids in order.
    """

    table: "i8[::1]"
    distinct: "i8"
    registered: "i8"
    log: "i8[::1]"
    log_size: "i8"


def make_map(num_blocks: int, log_capacity: int = 0) -> HashMap:
    size = 1 << (2 * max(num_blocks, 4)).bit_length()
    return HashMap(np.zeros(size, np.int64), 0, 0, np.zeros(log_capacity, np.int64), 0)


@inline
def chain(parent, key):
    """Hash of a block from its predecessor's hash and its own key; never 0."""
    # Overflow of int64 is undefined in compiled code; mix in uint64 only.
    x = (np.uint64(parent) ^ np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xA0761D6478BD642F)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(29)
    return np.int64(x | np.uint64(1))


@inline
def root_hash(namespace):
    return chain(np.int64(0x5851F42D4C957F2D), namespace + 1)


@inline
def _tag(content):
    return (content >> 32) & 0x7FFFFFFF


@jit
def _find(table, blocks, content):
    """Place of the entry of a content, or of the empty place where it would go."""
    mask = table.size - 1
    tag = _tag(content)
    at = tag & mask
    while True:
        entry_ = table[at]
        if entry_ == 0 or (entry_ >> 32 == tag and blocks[entry_ & 0xFFFFFFFF, HASH] == content):
            return at
        at = (at + 1) & mask


@inline
def register(table, blocks, block, content):
    """Make a block visible; behind blocks of equal content it waits its turn. Returns contents that are new."""
    at = _find(table, blocks, content)
    first = table[at] & 0xFFFFFFFF
    blocks[block, HASH] = content
    blocks[block, DUP_NEXT] = NO_BLOCK
    if first == NO_BLOCK:
        table[at] = (_tag(content) << 32) | block
        blocks[block, DUP_PREV] = NO_BLOCK
        blocks[block, DUP_TAIL] = block
        return 1
    last = blocks[first, DUP_TAIL]
    blocks[last, DUP_NEXT] = block
    blocks[block, DUP_PREV] = last
    blocks[first, DUP_TAIL] = block
    return 0


@inline
def unregister(table, blocks, block):
    """Take a block out of the map; the next of equal content, if any, answers. Returns contents that are gone."""
    content = blocks[block, HASH]
    before, after = blocks[block, DUP_PREV], blocks[block, DUP_NEXT]
    blocks[block, HASH] = 0
    if before != NO_BLOCK:
        blocks[before, DUP_NEXT] = after
        if after != NO_BLOCK:
            blocks[after, DUP_PREV] = before
        else:
            first = table[_find(table, blocks, content)] & 0xFFFFFFFF
            blocks[first, DUP_TAIL] = before
        return 0
    at = _place(table, _tag(content), block)
    if after != NO_BLOCK:
        table[at] = (_tag(content) << 32) | after
        blocks[after, DUP_PREV] = NO_BLOCK
        blocks[after, DUP_TAIL] = blocks[block, DUP_TAIL]
        return 0
    _remove(table, at)
    return 1


@inline
def _place(table, tag, block):
    """Where the entry of a first block is; no block record is read."""
    mask = table.size - 1
    at = tag & mask
    want = (tag << 32) | block
    while table[at] != want:
        at = (at + 1) & mask
    return at


@inline
def _remove(table, at):
    """Delete with backward shift: no tombstones, so probes stay short for ever."""
    mask = table.size - 1
    look = at
    while True:
        look = (look + 1) & mask
        entry_ = table[look]
        if entry_ == 0:
            break
        home = (entry_ >> 32) & mask
        if ((look - home) & mask) >= ((look - at) & mask):
            table[at] = entry_
            at = look
    table[at] = 0


# ---------------------------------------------------------------- verbs on tables


@entry
def take(hashes, pool, row, start, stop):
    """Pop stop - start blocks off the free queue into row[start:stop], one reference each.

    The caller has checked num_free. A block that was still cached is evicted by this.
    """
    blocks, table, log = pool.blocks, hashes.table, hashes.log
    mask = table.size - 1
    block = blocks[0, NEXT]
    for i in range(start, stop):
        row[i] = block
        block = blocks[block, NEXT]
    evicted, gone, logged = 0, 0, hashes.log_size
    for i in range(start, stop):
        if i + AHEAD < stop:  # neighbours in the queue are neighbours in memory, their hashes are not
            prefetch(table, _tag(blocks[row[i + AHEAD], HASH]) & mask)
        taken = np.int64(row[i])
        if blocks[taken, HASH] != 0:
            gone += unregister(table, blocks, taken)
            evicted += 1
            if logged < log.size:
                log[logged] = taken
                logged += 1
        blocks[taken, REFS] = 1
    blocks[0, NEXT] = block
    blocks[block, PREV] = 0
    hashes.log_size = logged
    hashes.distinct -= gone
    pool.num_free -= stop - start
    pool.cached -= evicted
    pool.evicted += evicted


@entry
def match(hashes, pool, keys, sequence, namespace, n, scratch, row):
    """Longest run of known blocks from the start of a sequence, at most n. Changes nothing.

    scratch  (>= n,) int64, overwritten. row: (>= n,) int32, the blocks found.
    returns  (blocks found, chain hash of the last one, how many of them have no reference now)
    """
    blocks, table = pool.blocks, hashes.table
    content = root_hash(namespace)
    found = 0
    unreferenced = 0
    while found < n:
        stop = min(n, found + _LOOKAHEAD)
        fill_keys(keys, sequence, found, stop, scratch)
        while found < stop:
            following = chain(content, scratch[found])
            block = table[_find(table, blocks, following)] & 0xFFFFFFFF
            if block == NO_BLOCK:
                return found, content, unreferenced
            unreferenced += np.int64(blocks[block, REFS] == 0)
            row[found] = block
            content = following
            found += 1
    return found, content, unreferenced


@entry
def share(pool, row, n):
    """Add a reference to row[0:n]; those without one leave the free queue."""
    blocks = pool.blocks
    taken = 0
    for i in range(n):
        block = row[i]
        if blocks[block, REFS] == 0:
            list_unlink(blocks, block)
            taken += 1
        blocks[block, REFS] += 1
    pool.num_free -= taken
    pool.cached -= taken


@entry
def publish(hashes, pool, keys, sequence, content, row, start, stop, scratch):
    """Register row[start:stop] as blocks start .. stop of a sequence. Returns the new end of its chain."""
    blocks, table = pool.blocks, hashes.table
    mask = table.size - 1
    fill_keys(keys, sequence, start, stop, scratch)
    for i in range(start, stop):
        content = chain(content, scratch[i])
        scratch[i] = content
        prefetch(table, _tag(content) & mask)
    new = 0
    for i in range(start, stop):
        new += register(table, blocks, np.int64(row[i]), scratch[i])
    hashes.distinct += new
    hashes.registered += stop - start
    return content
