"""Who goes next: a heap of candidates in the order that a policy's keys give, with lazy deletion.

A candidate is a node without children that nobody holds. The smallest key goes first, ties by last access. Entries
are never removed from the middle: one that no longer describes its node (touched, locked, gone, or no leaf any
more) is dropped when it surfaces. A candidate always has one entry that describes it: ACCESS and KEY of its record.

The policies that are a stamp are dispatched here; the others are function pointers (see eviction/policies.py, and
own_policy.py for what else they need).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import inline, jit, struct
from .eviction import s3fifo
from .eviction.ghosts import Ghosts, make_ghosts
from .eviction.policies import (
    EVENT_FUNCTION,
    FIFO,
    FILO,
    KEY_FUNCTION,
    LFU,
    LRU,
    MRU,
    OWN,
    PRIORITY_ORDER,
    SLRU_PROTECTED_HITS,
    VERDICT_FUNCTION,
    Policy,
)
from .node import (
    ACCESS,
    CAPACITY,
    CHILDREN,
    CREATED,
    HITS,
    KEY,
    LENGTH,
    LOCK,
    NO_NODE,
    PRIORITY,
    SEED,
    SHARED,
    TAIL,
)

__all__ = ["EVENT_FUNCTION", "KEY_FUNCTION", "VERDICT_FUNCTION", "EvictionOrder", "make_order"]


@struct
class Heap:
    """Entries (key, tie, node), four children to a parent; `size` of them."""

    key: "i8[::1]"
    tie: "i8[::1]"
    node: "i4[::1]"
    size: "i8"


@struct
class EvictionOrder:
    """nodes       the records, shared with whoever owns the cache
    heap, small    candidates; small: those of negative keys under a policy of two queues
    clock          ticks of block hash; a tree has its own
    cost_sum       (blocks + 1,) ns to compute the first i blocks of a prompt; (1,) where no policy asks
    names          (nodes,) chain hash of the prefix that ends with a node; (1,) where nobody wants to know
    tells          somebody wants to know what blocks there are; changes, num_changes: what is told, see changes.py
    key, on_*      the policy's functions (OWN)
    """

    nodes: "i8[:,::1]"
    policy: "i8"
    two_queues: "b1"
    heap: "Heap"
    small: "Heap"
    clock: "i8"
    cost_sum: "i8[::1]"
    names: "i8[::1]"
    tells: "b1"
    changes: "i8[::1]"
    num_changes: "i8"
    ghosts: "Ghosts"
    key: "KEY_FUNCTION"
    on_insert: "EVENT_FUNCTION"
    on_hit: "EVENT_FUNCTION"
    on_evict: "VERDICT_FUNCTION"


def make_order(
    nodes: Any,
    capacity: int,
    policy: Policy,
    block_ns: Any = (),
    seed: int = 0,
    tail: int = 0,
    tells: bool = False,
) -> EvictionOrder:
    """An order of nothing yet over the records `nodes`.

    capacity   blocks of the cache. block_ns: (blocks,) int64 time to compute a block again, by its depth
    tail       blocks at the end of a conversation that tlru may drop first
    tells      somebody wants to know what blocks there are
    raises     UsageError: the policy weighs recompute time and there is none
    """
    if policy.costs and len(block_ns) == 0:
        raise UsageError("cache.eviction weighs recompute time, and there are no step times to take it from")
    sums = np.concatenate(([0], np.cumsum(np.asarray(block_ns, np.int64)))) if policy.costs else np.zeros(1)
    nodes[SHARED, CAPACITY], nodes[SHARED, SEED], nodes[SHARED, TAIL] = capacity, seed, tail
    room = 2 * nodes.shape[0] + 60
    return EvictionOrder(
        nodes,
        policy.code,
        policy.two_queues,
        _make_heap(room),
        _make_heap(room if policy.two_queues else 1),
        0,
        sums.astype(np.int64),
        np.zeros(nodes.shape[0] if policy.two_queues or tells else 1, np.int64),
        tells,
        np.zeros(64 if tells else 1, np.int64),
        0,
        make_ghosts(capacity * s3fifo.GHOST_SHARE // s3fifo.SMALL_SHARE if policy.two_queues else 0),
        *policy.pointers(),
    )


def _make_heap(room: int) -> Heap:
    return Heap(np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int32), 0)


@inline
def policy_key(order, nodes, node, now):
    policy = order.policy
    if policy == LRU:
        return nodes[node, ACCESS]
    if policy == LFU:
        return nodes[node, HITS]
    if policy == FIFO:
        return nodes[node, CREATED]
    if policy == MRU:
        return -nodes[node, ACCESS]
    if policy == FILO:
        return -nodes[node, CREATED]
    if policy == PRIORITY_ORDER:
        return nodes[node, PRIORITY]
    if policy == OWN:
        key = order.key
        return key(nodes, node, now)
    return np.int64(nodes[node, HITS] >= SLRU_PROTECTED_HITS)


@inline
def is_candidate(nodes, node):
    """A leaf that nobody holds."""
    return nodes[node, LENGTH] > 0 and nodes[node, LOCK] == 0 and nodes[node, CHILDREN] == 0


# ---------------------------------------------------------------- candidates


@jit
def offer(order, node, now):
    """Enter a candidate with its present key; called when it becomes one and when it is used while it is one."""
    nodes = order.nodes
    key = policy_key(order, nodes, node, now)
    nodes[node, KEY] = key
    heap = order.heap
    is_small = order.two_queues and key < 0
    if is_small:
        heap = order.small
    if heap.size == heap.node.size:
        rebuild(heap, nodes, order.two_queues, is_small)
    _push(heap, key, nodes[node, ACCESS], node)


@jit
def pop_one(heap, nodes):
    """The first candidate of a heap, or NO_NODE. What a policy that is more than a stamp does with it: own_policy."""
    return _pop(heap, heap.key, heap.tie, heap.node, nodes)


@jit
def pop_many(heap, nodes, row, start, stop):
    """The first candidates of a heap, which has enough of them, to row[start:stop]; they are in use no more."""
    keys, ties, ids = heap.key, heap.tie, heap.node  # by name: in the loop each read would count references
    for i in range(start, stop):
        node = _pop(heap, keys, ties, ids, nodes)
        nodes[node, LENGTH] = 0  # at once: a heap that was built anew may hold it twice
        row[i] = node


@inline
def _pop(heap, keys, ties, ids, nodes):
    found = np.int64(NO_NODE)
    while found == NO_NODE and heap.size > 0:
        key, tie, node = keys[0], ties[0], np.int64(ids[0])
        _drop_top(heap, keys, ties, ids)
        if is_candidate(nodes, node) and tie == nodes[node, ACCESS] and key == nodes[node, KEY]:
            found = node
    return found


@inline
def rebuild(heap, nodes, two_queues, is_small):
    """Start over from the candidates; amortised by a capacity of twice the nodes."""
    heap.size = 0
    for node in range(1, nodes.shape[0]):
        if is_candidate(nodes, node) and (not two_queues or (nodes[node, KEY] < 0) == is_small):
            _push(heap, nodes[node, KEY], nodes[node, ACCESS], node)


@jit
def _push(heap, key, tie, node):
    keys, ties, ids = heap.key, heap.tie, heap.node
    i = heap.size
    heap.size = i + 1
    while i > 0:
        p = (i - 1) >> 2
        if keys[p] < key or (keys[p] == key and ties[p] <= tie):
            break
        keys[i], ties[i], ids[i] = keys[p], ties[p], ids[p]
        i = p
    keys[i], ties[i], ids[i] = key, tie, node


@inline
def _drop_top(heap, keys, ties, ids):
    n = heap.size - 1
    heap.size = n
    if n == 0:
        return
    key, tie, node = keys[n], ties[n], ids[n]
    i = 0
    while True:
        child = 4 * i + 1
        if child >= n:
            break
        least = child
        for c in range(child + 1, min(child + 4, n)):
            if keys[c] < keys[least] or (keys[c] == keys[least] and ties[c] < ties[least]):
                least = c
        if keys[least] > key or (keys[least] == key and ties[least] >= tie):
            break
        keys[i], ties[i], ids[i] = keys[least], ties[least], ids[least]
        i = least
    keys[i], ties[i], ids[i] = key, tie, node
