"""Prefix cache by block hash: a full block is known by a hash of itself and of all before it.

A block is registered when it is allocated for scheduled tokens, and stays visible after its last reference is
gone until the free queue hands it out again (lazy eviction). Blocks of equal content coexist: a look-up
gives the one that was registered first and is still there. The chain hash has 63 bits; among ten million
blocks two different prefixes meet with probability below 6e-6.

Under an eviction policy (`ranked`) visible blocks without references leave in its order; see ranked.py.

What must always hold: a block has a content exactly while it is in the map or behind the one that is.

source: vLLM v1's block pool and KV cache manager.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.jit import entry, inline, jit, struct
from ..kernels.prefetch import AHEAD, prefetch
from ..memory.pool import (
    NO_BLOCK,
    TWIN_AFTER,
    TWIN_BEFORE,
    TWIN_LAST,
    list_unlink,
)
from .chain_hash import chain, root_hash
from .changes import IS_STORED, note_change, note_contents
from .eviction.policies import LRU, POLICIES, Policy
from .keys import fill_keys
from .leaf_heap import EvictionOrder, make_order
from .node import NODE_COLUMNS
from .ranked import FORGOTTEN, RANK_FUNCTION, TAKEN, WITHDRAWN, rank_pointer

_LOOKAHEAD = 64

NO_WATCH = 0
"""No content is 0."""

EMPTY, GONE = 0, 1  # entries of the table; a real one has a tag of at least 1 above bit 32


@struct
class HashMap:
    """table: (tag << 32 | first block of that content), EMPTY or GONE; a power of two. used: not EMPTY.

    An entry whose block has another content by now is stale. It counts as used, and goes with the next sweep: a block
    that is evicted touches no line of the table.

    watch, watch_seen: a content that somebody waits for, and whether it was registered since.
    distinct: contents in the map. registered: registrations so far. log: evicted block ids in order.
    ranked, order, rank: whether an eviction policy orders the free blocks, and the verb that tells it what happens.
    """

    table: "i8[::1]"
    used: "i8"
    distinct: "i8"
    registered: "i8"
    watch: "i8"
    watch_seen: "b1"
    log: "i8[::1]"
    log_size: "i8"
    ranked: "b1"
    order: "EvictionOrder"
    rank: "RANK_FUNCTION"


def make_map(
    num_blocks: int,
    log_capacity: int = 0,
    eviction: str | Policy = "lru",
    block_ns: Any = (),
    seed: int = 0,
    tells: bool = False,
) -> HashMap:
    """An empty map. eviction: lru is the free queue as it is. block_ns, seed, tells: see leaf_heap.make_order."""
    size = 1 << (4 * max(num_blocks, 4)).bit_length()
    policy = POLICIES[eviction] if isinstance(eviction, str) else eviction
    ranked = policy.code != LRU
    nodes = np.zeros((num_blocks + 1 if ranked else 1, NODE_COLUMNS), np.int64)
    order = make_order(nodes, num_blocks, policy, block_ns, seed, tells=tells)
    log = np.zeros(log_capacity, np.int64)
    return HashMap(np.zeros(size, np.int64), 0, 0, 0, NO_WATCH, False, log, 0, ranked, order, rank_pointer(ranked))


@inline
def note(hashes, pool, event, row, start, stop, priority):
    """Tell an eviction policy, where there is one, what happens to blocks; see ranked.rank."""
    if hashes.ranked:
        rank = hashes.rank
        rank(hashes.order, pool, event, row, start, stop, priority)


@inline
def _tag(content):
    return ((content >> 32) & 0x7FFFFFFF) | 1


@inline
def find_entry(table, contents, content):
    """Place of the entry of a content, or of the EMPTY place that ends its probe."""
    mask = table.size - 1
    tag = _tag(content)
    at = tag & mask
    while True:
        entry_ = table[at]
        if entry_ == EMPTY or (entry_ >> 32 == tag and contents[entry_ & 0xFFFFFFFF] == content):
            return at
        at = (at + 1) & mask


@jit
def is_known(hashes, pool, content):
    """Whether a block of that content is visible."""
    return hashes.table[find_entry(hashes.table, pool.content, content)] != EMPTY


@inline
def _place(table, tag, block):
    """Where the entry of a first block is; no block is read."""
    mask = table.size - 1
    at = tag & mask
    want = (tag << 32) | block
    while table[at] != want:
        at = (at + 1) & mask
    return at


@inline
def erase(table, content, block):
    """Remove the entry of a first block. Returns 1 if its place is EMPTY again, 0 if it stays GONE."""
    at = _place(table, _tag(content), block)
    ends_here = table[(at + 1) & (table.size - 1)] == EMPTY  # no probe goes on behind it
    table[at] = EMPTY if ends_here else GONE
    return np.int64(ends_here)


@inline
def register(table, contents, block, content):
    """Make a block visible.

    returns  (the first block of that content if there is one, else NO_BLOCK: it is this one,
              1 if an EMPTY entry was used)
    """
    mask = table.size - 1
    tag = _tag(content)
    at = tag & mask
    gone = np.int64(-1)
    own = (tag << 32) | block
    while True:
        entry_ = table[at]
        if entry_ == EMPTY:
            used = np.int64(gone < 0)
            if gone >= 0:
                at = gone
            table[at] = own
            contents[block] = content
            return NO_BLOCK, used
        if entry_ == own:  # stale: it must not answer before whoever was registered first
            table[at] = entry_ = np.int64(GONE)
        if entry_ == GONE:
            if gone < 0:
                gone = at
        elif entry_ >> 32 == tag and contents[entry_ & 0xFFFFFFFF] == content:
            contents[block] = content
            return entry_ & 0xFFFFFFFF, np.int64(0)
        at = (at + 1) & mask


@jit
def _add_twin(pool, first, block):
    """Blocks of equal content wait behind the first, in order of registration."""
    twins, has_twins = pool.twins, pool.has_twins
    if has_twins[first] == 0:
        has_twins[first] = 1
        twins[first, TWIN_BEFORE] = NO_BLOCK
        twins[first, TWIN_LAST] = first
    last = np.int64(twins[first, TWIN_LAST])
    has_twins[block] = 1
    twins[last, TWIN_AFTER] = block
    twins[block, TWIN_BEFORE] = last
    twins[block, TWIN_AFTER] = NO_BLOCK
    twins[first, TWIN_LAST] = block


@jit
def _drop_twin(pool, table, block):
    """Take a block out of the order of its content. True when another one answers for it."""
    twins = pool.twins
    pool.has_twins[block] = 0
    before, after = np.int64(twins[block, TWIN_BEFORE]), np.int64(twins[block, TWIN_AFTER])
    if before != NO_BLOCK:
        twins[before, TWIN_AFTER] = after
        if after != NO_BLOCK:
            twins[after, TWIN_BEFORE] = before
        else:
            first = before
            while twins[first, TWIN_BEFORE] != NO_BLOCK:
                first = np.int64(twins[first, TWIN_BEFORE])
            twins[first, TWIN_LAST] = before
        return True
    if after == NO_BLOCK:
        return False
    tag = _tag(pool.content[block])
    table[_place(table, tag, block)] = (tag << 32) | after
    twins[after, TWIN_BEFORE] = NO_BLOCK
    twins[after, TWIN_LAST] = twins[block, TWIN_LAST]
    return True


@jit
def rebuild(hashes, pool):
    """Sweep gone and stale entries: enter every first block of a content anew."""
    table, contents = hashes.table, pool.content
    mask = table.size - 1
    for i in range(table.size):
        table[i] = EMPTY
    for block in range(1, contents.size):
        if block + AHEAD < contents.size:
            prefetch(table, _tag(contents[block + AHEAD]) & mask)
        if contents[block] != 0 and not (pool.has_twins[block] and pool.twins[block, TWIN_BEFORE] != NO_BLOCK):
            tag = _tag(contents[block])
            at = tag & mask
            while table[at] != EMPTY:
                at = (at + 1) & mask
            table[at] = (tag << 32) | block
    hashes.used = hashes.distinct


# ---------------------------------------------------------------- verbs on tables


@entry
def take(hashes, pool, row, start, stop):
    """Pop stop - start blocks off the free queue into row[start:stop], one reference each.

    The caller has checked num_free. A block that was still cached is evicted by this.
    """
    after, further, contents, refs, log = pool.after, pool.further, pool.content, pool.refs, hashes.log
    if hashes.ranked:
        note(hashes, pool, TAKEN, row, start, stop, 0)
    else:
        block = np.int64(after[0])
        for i in range(start, stop):
            row[i] = block
            prefetch(contents, np.int64(further[block]))
            block = np.int64(after[block])
        after[0] = block
        pool.before[block] = 0
    if hashes.order.tells:
        note_contents(hashes.order, contents, row, start, stop, np.int64(IS_STORED))
    has_twins, evicted, gone, logged = pool.has_twins, 0, 0, hashes.log_size
    for i in range(start, stop):
        block = np.int64(row[i])
        refs[block] = 1
        if contents[block] == 0:
            continue
        evicted += 1
        if not (has_twins[block] and _drop_twin(pool, hashes.table, block)):
            gone += 1
        contents[block] = 0
        if logged < log.size:
            log[logged] = block
            logged += 1
    hashes.log_size = logged
    hashes.distinct -= gone
    pool.num_free -= stop - start
    pool.cached -= evicted
    pool.evicted += evicted


@entry
def withdraw(hashes, pool, row, start, stop):
    """Make row[start:stop], blocks that are in use, invisible again."""
    contents, table = pool.content, hashes.table
    note(hashes, pool, WITHDRAWN, row, start, stop, 0)
    if hashes.order.tells:
        note_contents(hashes.order, contents, row, start, stop, np.int64(0))
    for i in range(start, stop):
        block = np.int64(row[i])
        if not (pool.has_twins[block] and _drop_twin(pool, table, block)):
            hashes.used -= erase(table, contents[block], block)
            hashes.distinct -= 1
        contents[block] = 0


@jit
def forget(hashes, pool):
    """Make every block invisible; the free queue keeps its order. False, and nothing is changed, while one is in use.

    source   vLLM's reset of the prefix cache
    """
    if pool.num_free != pool.num_blocks:
        return False
    contents, has_twins, table = pool.content, pool.has_twins, hashes.table
    told = hashes.order.tells
    for block in range(contents.size):
        if told and contents[block] != 0:
            note_change(hashes.order, contents[block])
        contents[block] = 0
        has_twins[block] = 0
    for at in range(table.size):
        table[at] = EMPTY
    note(hashes, pool, FORGOTTEN, pool.after, 0, 0, 0)
    hashes.used = 0
    hashes.distinct = 0
    pool.cached = 0
    return True


@entry
def match(hashes, pool, keys, sequence, namespace, n, scratch, row):
    """Longest run of known blocks from the start of a sequence, at most n. Changes nothing.

    scratch  (>= n,) int64, overwritten. row: (>= n,) int32, the blocks found.
    returns  (blocks found, chain hash of the last one, how many of them have no reference now)
    """
    contents, refs, table = pool.content, pool.refs, hashes.table
    mask = table.size - 1
    content = root_hash(namespace)
    found = 0
    unreferenced = 0
    window = 1  # a prompt that nobody has asked before misses at once
    while found < n:
        stop = min(n, found + window)
        fill_keys(keys, sequence, found, stop, scratch)
        following = content
        for i in range(found, stop):  # three rounds, so that no block waits for memory by itself
            following = chain(following, scratch[i])
            scratch[i] = following
            prefetch(table, _tag(following) & mask)
        for i in range(found, stop):
            block = table[_tag(scratch[i]) & mask] & 0xFFFFFFFF
            prefetch(contents, block)
        while found < stop:
            block = table[find_entry(table, contents, scratch[found])] & 0xFFFFFFFF
            if block == NO_BLOCK:
                return found, content, unreferenced
            unreferenced += np.int64(refs[block] == 0)
            row[found] = block
            content = scratch[found]
            found += 1
        window = _LOOKAHEAD
    return found, content, unreferenced


@jit
def peek(hashes, pool, keys, sequence, namespace, n, scratch):
    """Blocks that `match` would find."""
    content = root_hash(namespace)
    found = 0
    while found < n:
        stop = min(n, found + _LOOKAHEAD)
        fill_keys(keys, sequence, found, stop, scratch)
        while found < stop:
            content = chain(content, scratch[found])
            if hashes.table[find_entry(hashes.table, pool.content, content)] & 0xFFFFFFFF == NO_BLOCK:
                return found
            found += 1
    return found


@entry
def share(pool, row, n):
    """Add a reference to row[0:n]; those without one leave the free queue."""
    after, before, refs = pool.after, pool.before, pool.refs
    taken = 0
    for i in range(n):
        if i + AHEAD < n:
            prefetch(refs, np.int64(row[i + AHEAD]))
        block = np.int64(row[i])
        if refs[block] == 0:
            list_unlink(after, before, block)
            taken += 1
        refs[block] += 1
    pool.num_free -= taken
    pool.cached -= taken


@jit
def register_all(hashes, pool, contents_of, row, start, stop):
    """Register row[start:stop] under the chain hashes contents_of[start:stop], in order."""
    if (hashes.used + stop - start) * 8 > hashes.table.size * 5:
        rebuild(hashes, pool)
    contents, table, watch = pool.content, hashes.table, hashes.watch
    mask = table.size - 1
    if hashes.order.tells:
        for i in range(start, stop):
            note_change(hashes.order, contents_of[i])
    new, used, again, seen = 0, 0, stop - start, hashes.watch_seen
    for i in range(start, stop):
        if i + AHEAD < stop:
            prefetch(table, _tag(contents_of[i + AHEAD]) & mask)
        block = np.int64(row[i])
        if contents[block] == contents_of[i]:
            continue  # a sequence that shares it has registered it
        seen = seen or contents_of[i] == watch
        first, entry_used = register(table, contents, block, contents_of[i])
        used += entry_used
        again -= 1
        if first == NO_BLOCK:
            new += 1
        else:
            _add_twin(pool, first, block)
    hashes.watch_seen = seen
    hashes.distinct += new
    hashes.used += used
    hashes.registered += stop - start - again


@entry
def publish(hashes, pool, keys, sequence, content, row, start, stop, scratch):
    """Register row[start:stop] as blocks start .. stop of a sequence. Returns the new end of its chain."""
    fill_keys(keys, sequence, start, stop, scratch)
    for i in range(start, stop):
        content = chain(content, scratch[i])
        scratch[i] = content
    register_all(hashes, pool, scratch, row, start, stop)
    return content
