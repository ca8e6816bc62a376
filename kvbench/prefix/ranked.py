"""Block hash under an eviction policy: a block without references leaves in the policy's order, not the queue's.

A record is a block; it is a candidate while it is visible and nobody holds it. The free queue stays what it is, with
blocks that are not visible in front (they are taken first, nothing is lost with them), so that what is behind them is
in order of release and only the order in which it is taken changes.

One verb with a number for what happened: it is a function pointer of the hash map, and a run without a policy
compiles none of this. Every stamp is a tick of its own, so no two candidates tie.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from ..core.jit import PLAIN, inline, jit
from ..memory.pool import BlockPool, list_unlink
from .eviction import s3fifo
from .eviction.ghosts import forget_all, recall, remember
from .eviction.policies import OWN, compiled
from .leaf_heap import EvictionOrder, offer, pop_many
from .node import ACCESS, COST, CREATED, DEPTH, HITS, KEY, LENGTH, LOCK, PRIORITY, WORD_A, WORD_B
from .own_policy import pop_own, recompute_ns

TAKEN, SHARED_AGAIN, REGISTERED, WITHDRAWN, RELEASED, FORGOTTEN = range(6)

RANK_FUNCTION: Any = (
    None
    if PLAIN
    else types.FunctionType(
        types.void(EvictionOrder.numba_type, BlockPool.numba_type, types.int64, types.int32[::1], *(types.int64,) * 3)
    )
)


def rank(order, pool, event, row, start, stop, priority):
    """Something happened to the blocks row[start:stop] of a sequence.

    TAKEN         about to be: they are chosen, written to row and leave the free queue
    SHARED_AGAIN  hit by a request that was admitted
    REGISTERED    as blocks start .. stop of their prompt, at `priority`: greater stays longer
    WITHDRAWN     no longer visible
    RELEASED      one reference less, tail first; those without any become candidates
    FORGOTTEN     every block; row is not read
    """
    if event == TAKEN:
        _take(order, pool, row, start, stop)
    elif event == SHARED_AGAIN:
        _share(order, row, start, stop)
    elif event == REGISTERED:
        _register(order, pool, row, start, stop, priority)
    elif event == WITHDRAWN:
        _withdraw(order, row, start, stop)
    elif event == RELEASED:
        _release(order, pool, row, stop)
    else:
        _forget(order)


def unranked(order, pool, event, row, start, stop, priority):
    pass


@cache
def rank_pointer(is_ranked: bool) -> Any:
    return compiled(rank if is_ranked else unranked, RANK_FUNCTION)


@jit
def _take(order, pool, row, start, stop):
    nodes, after, before, content = order.nodes, pool.after, pool.before, pool.content
    visible = start
    block = np.int64(after[0])
    while visible < stop and content[block] == 0:  # those that are not visible stand in front
        row[visible] = block
        block = np.int64(after[block])
        visible += 1
    if order.policy != OWN:
        pop_many(order.heap, nodes, row, visible, stop)
    else:
        _pop_by_verdict(order, content, row, visible, stop)
    for i in range(start, stop):
        block = np.int64(row[i])
        nodes[block, LOCK] = 1
        list_unlink(after, before, block)


@inline
def _pop_by_verdict(order, content, row, start, stop):
    nodes = order.nodes
    for i in range(start, stop):
        block = pop_own(order, order.clock)
        row[i] = block
        nodes[block, LENGTH] = 0  # at once, as in pop_many
        if order.two_queues and nodes[block, KEY] < 0:
            remember(order.ghosts, content[block], np.int64(1))


@jit
def _share(order, row, start, stop):
    nodes, on_hit = order.nodes, order.on_hit
    for i in range(start, stop):
        block = np.int64(row[i])
        order.clock += 1
        nodes[block, LOCK] = 1
        nodes[block, ACCESS] = order.clock
        nodes[block, HITS] += 1
        on_hit(nodes, block, order.clock)


@jit
def _register(order, pool, row, start, stop, priority):
    nodes, on_insert = order.nodes, order.on_insert
    for i in range(start, stop):
        block = np.int64(row[i])
        order.clock += 1
        nodes[block, LENGTH] = nodes[block, HITS] = 1
        nodes[block, ACCESS] = nodes[block, CREATED] = order.clock
        nodes[block, PRIORITY] = priority
        nodes[block, DEPTH] = i
        nodes[block, COST] = recompute_ns(order.cost_sum, i, i + 1)
        nodes[block, WORD_A] = nodes[block, WORD_B] = 0
        if order.two_queues:
            nodes[block, WORD_A] = np.int64(recall(order.ghosts, pool.content[block]))
        on_insert(nodes, block, order.clock)


@jit
def _withdraw(order, row, start, stop):
    nodes = order.nodes
    for i in range(start, stop):
        if order.two_queues:
            s3fifo.leave(nodes, np.int64(row[i]))
        nodes[row[i], LENGTH] = 0


@jit
def _release(order, pool, row, n):
    nodes, refs = order.nodes, pool.refs
    for i in range(n - 1, -1, -1):
        block = np.int64(row[i])
        if refs[block] == 0:
            nodes[block, LOCK] = 0
            if nodes[block, LENGTH] > 0:
                order.clock += 1
                nodes[block, ACCESS] = order.clock
                offer(order, block, order.clock)


@jit
def _forget(order):
    nodes = order.nodes
    for block in range(1, nodes.shape[0]):
        if nodes[block, LENGTH] > 0 and order.two_queues:
            s3fifo.leave(nodes, block)
        nodes[block, LENGTH] = 0
    order.heap.size = order.small.size = 0
    forget_all(order.ghosts)
