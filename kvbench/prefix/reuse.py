"""When the blocks of a workload are used again: the offline view, without a cache.

    visits -> tree of whole prefixes -> reuses (begin, end, blocks)

A visit asks for the first blocks of a sequence and leaves its blocks behind. A block is a whole prefix (content and
all before it), so all blocks between two forks of the tree have the same visits: the tree has at most three nodes a
visit, and the millions of blocks below it are never looked at. It is built on runs of keys.

A *reuse* is a group of blocks that a visit looks up and that was left behind before: it can be a hit only if the
blocks stay in the cache from rank `begin`, when the last visit that had them ended, to rank `end`, the look-up. Of
several groups of one look-up the deeper one was left behind earlier: who holds a block used its parent too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ..core.jit import entry, jit
from ..core.requests import I64
from .keys import BlockKeys


@dataclass(frozen=True)
class Visits:
    """n visits in order of `start`; at one start those that look up fewer blocks come first.

    sequence    (n,) whose keys in BlockKeys
    namespace   (n,)
    looked_up   (n,) leading blocks that it asks for
    blocks      (n,) leading blocks that are there when it has ended, >= looked_up
    start, end  (n,) ranks >= 0 of the look-up and of the moment from which on nobody holds its blocks for it
    counted     (n,) 0 or 1: whether what it finds is counted
    """

    sequence: I64
    namespace: I64
    looked_up: I64
    blocks: I64
    start: I64
    end: I64
    counted: I64


@dataclass(frozen=True)
class Reuses:
    """m groups of blocks in order of `end`; of one look-up the deepest group first. Only of visits that are counted.

    begin, end, blocks   (m,) begin < end
    at_once              blocks looked up while another visit that has them is going on: they need not wait
    num_ranks            ranks are below it
    found                (visits,) blocks that each visit finds when nothing is ever evicted; 0 where it is not counted
    best                 capacity -> most hits, where that was asked for; see optimum.most_hits
    """

    begin: I64
    end: I64
    blocks: I64
    at_once: int
    num_ranks: int
    found: I64
    best: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def by_begin(self) -> tuple[I64, I64, I64]:
        """begin, end and blocks in order of begin."""
        order = np.argsort(self.begin, kind="stable")
        return self.begin[order], self.end[order], self.blocks[order]

    @property
    def total(self) -> int:
        """Blocks that are hits when nothing is ever evicted."""
        return int(self.blocks.sum()) + self.at_once


def find_reuses(keys: BlockKeys, visits: Visits) -> Reuses:
    """Every reuse of a workload. O(runs of keys + nodes on the paths of the visits)."""
    v = visits
    most = 3 * v.sequence.size + 1  # a visit makes a leaf and cuts a node at its end and where it stops looking
    parent = np.zeros(most, np.int64)
    start, stop = np.zeros(most, np.int64), np.zeros(most, np.int64)
    last = np.zeros(v.sequence.size, np.int64)
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        _grow(keys, v.sequence, v.namespace, v.looked_up, v.blocks, parent, start, stop, last)
    out = np.zeros((3, 0), np.int64)
    found = np.zeros(v.sequence.size, np.int64)
    count, _ = _collect(parent, start, stop, last, v.looked_up, v.start, v.end, v.counted, out, found)
    out = np.zeros((3, count), np.int64)
    _, at_once = _collect(parent, start, stop, last, v.looked_up, v.start, v.end, v.counted, out, found)
    num_ranks = int(v.end.max(initial=-1)) + 1
    return Reuses(out[0], out[1], out[2], int(at_once), num_ranks, found)


# ---------------------------------------------------------------- the tree


@entry
def _grow(keys, sequence, namespace, looked_up, blocks, parent, start, stop, last):
    """Enter every visit's path. Node i > 0 covers blocks start[i]:stop[i] of its prefix; roots are -1 - namespace.

    last     (visits,), written: the node that ends each path
    """
    most = parent.size
    owner = np.zeros(most, np.int64)  # a sequence that holds the node
    name = np.zeros(most, np.int64)  # key of its first block
    size = np.int64(4)
    while size < 2 * most:
        size *= 2
    table = np.zeros(size, np.int64)  # open addressing: node, 0 = empty
    count = np.int64(1)
    for i in range(sequence.size):
        seq, depth, node = sequence[i], np.int64(0), -1 - namespace[i]
        for part in range(2):
            goal = looked_up[i] if part == 0 else blocks[i]  # so that a node ends at both
            while depth < goal:
                key = _key(keys, seq, depth)
                at = _find(table, parent, name, node, key)
                child = table[at]
                if child == 0:
                    table[at] = child = count
                    count += 1
                    parent[child], start[child], stop[child] = node, depth, goal
                    owner[child], name[child] = seq, key
                else:
                    same = _common(keys, owner[child], seq, depth, min(stop[child], goal))
                    if same < stop[child]:  # a new upper part; the lower keeps its identity
                        upper, lower = count, child
                        count += 1
                        parent[upper], start[upper], stop[upper] = node, depth, same
                        owner[upper], name[upper] = seq, key
                        table[at] = child = upper
                        parent[lower], start[lower] = upper, same
                        name[lower] = _key(keys, owner[lower], same)
                        table[_find(table, parent, name, upper, name[lower])] = lower
                node, depth = child, stop[child]
        last[i] = node


@jit
def _find(table, parent, name, node, key):
    """Place of the child of a node that begins with a key, or the empty one where it belongs."""
    mask = table.size - 1
    x = (np.uint64(key) ^ (np.uint64(node) * np.uint64(0xA0761D6478BD642F))) * np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0x9E3779B97F4A7C15)
    at = np.int64(x >> np.uint64(20)) & mask
    while table[at] != 0 and (parent[table[at]] != node or name[table[at]] != key):
        at = (at + 1) & mask
    return at


@jit
def _run_at(keys, sequence, block):
    """The run that holds a block."""
    first = keys.first
    low, high = keys.offset[sequence], keys.offset[sequence + 1] - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if first[middle] <= block:
            low = middle
        else:
            high = middle - 1
    return low


@jit
def _key(keys, sequence, block):
    run = _run_at(keys, sequence, block)
    return keys.key[run] + block - keys.first[run]


@jit
def _common(keys, one, other, depth, limit):
    """Where the blocks of two sequences, equal up to `depth`, cease to be equal; at most `limit`. By runs."""
    first, key = keys.first, keys.key
    a, b = _run_at(keys, one, depth), _run_at(keys, other, depth)
    last_a, last_b = keys.offset[one + 1] - 1, keys.offset[other + 1] - 1
    while depth < limit:
        if key[a] - first[a] != key[b] - first[b]:
            return depth
        end_a = np.int64(first[a + 1]) if a < last_a else limit
        end_b = np.int64(first[b + 1]) if b < last_b else limit
        depth = min(end_a, end_b)
        if depth == end_a:
            a += 1
        if depth == end_b:
            b += 1
    return limit


# ---------------------------------------------------------------- the reuses


@entry
def _collect(parent, start, stop, last, looked_up, starts, ends, counted, out, found):
    """Write (begin, end, blocks) of every reuse to the columns of out, as many as it has, and found of every visit.

    returns  (number of reuses, blocks at once)
    """
    left = np.full(parent.size, -1, np.int64)  # rank at which the last visit with this node ended
    room = out.shape[1]
    count, at_once = np.int64(0), np.int64(0)
    for i in range(last.size):
        node, begin = last[i], np.int64(-1)
        found[i] = 0
        while node > 0:
            before = left[node]
            if before >= 0 and stop[node] <= looked_up[i] and counted[i]:
                blocks = stop[node] - start[node]
                found[i] += blocks
                if before >= starts[i]:
                    at_once += blocks
                else:
                    if before != begin:
                        begin = before
                        count += 1
                        if count <= room:
                            out[0, count - 1], out[1, count - 1] = begin, starts[i]
                    if count <= room:
                        out[2, count - 1] += blocks
            left[node] = max(before, ends[i])
            node = parent[node]
    return count, at_once
