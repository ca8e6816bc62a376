"""S3-FIFO: a small queue filters out what is used once, a main queue keeps the rest, a ghost queue remembers.

    small   a tenth of the blocks; who has been used twice since it came moves to main, who has not leaves and is
            remembered by name
    main    who was used since goes to its end again, with one use less
    ghost   names of what left small, as many blocks as main has; who comes back while it is remembered enters main

The small queue gives up somebody when it has its tenth or more, else the main one; when all of one are held, the
other. Sizes are in blocks. Held nodes and such with children keep their place in line. The parts of a split node
stay in its queue, at its place.

source: Yang, Zhang, Qiu, Yue, Vigfusson, SOSP'23. Exact where every node is a candidate.
"""

from __future__ import annotations

from ...core.jit import jit
from ..node import CAPACITY, LENGTH, SHARED, WORD_A, WORD_B

SMALL_SHARE, GHOST_SHARE = 10, 9
"""Small is 1 / 10 of the blocks, the ghost queue remembers 9 / 10 of them."""

MOST_USES = 3
_SMALL = -(1 << 62)
"""Places in the small queue are negative; those of main count up from 1."""

SMALL_BLOCKS, LAST_PLACE = WORD_A, WORD_B  # of the shared record


@jit
def small_goes(nodes):
    """True when the small queue has to give up somebody."""
    return nodes[SHARED, SMALL_BLOCKS] * SMALL_SHARE >= nodes[SHARED, CAPACITY]


@jit
def leave(nodes, node):
    """A node is gone without having been evicted, or is about to leave its queue."""
    if nodes[node, WORD_A] < 0:
        nodes[SHARED, SMALL_BLOCKS] -= nodes[node, LENGTH]


@jit
def _next_place(nodes):
    nodes[SHARED, LAST_PLACE] += 1
    return nodes[SHARED, LAST_PLACE]


def key(nodes, node, now):
    return nodes[node, WORD_A]


def on_insert(nodes, node, now):
    """WORD_A says on entry whether the ghost queue remembered the node."""
    place = _next_place(nodes)
    if nodes[node, WORD_A] == 0:
        place += _SMALL
        nodes[SHARED, SMALL_BLOCKS] += nodes[node, LENGTH]
    nodes[node, WORD_A] = place
    nodes[node, WORD_B] = 0


def on_hit(nodes, node, now):
    nodes[node, WORD_B] = min(nodes[node, WORD_B] + 1, MOST_USES)


def on_evict(nodes, node, now):
    uses = nodes[node, WORD_B]
    if nodes[node, WORD_A] < 0:
        leave(nodes, node)
        if uses < 2:
            return True
    else:
        if uses == 0:
            return True
        nodes[node, WORD_B] = uses - 1
    nodes[node, WORD_A] = _next_place(nodes)
    return False
