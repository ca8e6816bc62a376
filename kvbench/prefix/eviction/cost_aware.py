"""Cost-aware: what is cheap to compute again and little used goes first, and the cache ages.

    key = age + uses x cost / size

uses is 1 and the hits of admitted requests; cost the ns to compute the node again on top of its prefix; size its
blocks. Deep blocks attend to more and cost more. The age is the key of whoever left last, so that a node that is
not used any more is overtaken by newer ones. A key is set when a node comes and when it is hit.

source: GreedyDual-Size-Frequency (Cherkasova, 1998) with recompute time as cost.
"""

from __future__ import annotations

from ..node import COST, KEY, LENGTH, SHARED, WORD_A, WORD_B

WORTH, USES = WORD_A, WORD_B
AGE = WORD_A  # of the shared record


def key(nodes, node, now):
    return nodes[node, WORTH]


def on_insert(nodes, node, now):
    nodes[node, USES] = 1
    nodes[node, WORTH] = nodes[SHARED, AGE] + nodes[node, COST] // nodes[node, LENGTH]


def on_hit(nodes, node, now):
    nodes[node, USES] += 1
    nodes[node, WORTH] = nodes[SHARED, AGE] + nodes[node, USES] * nodes[node, COST] // nodes[node, LENGTH]


def on_evict(nodes, node, now):
    nodes[SHARED, AGE] = nodes[node, KEY]
    return True
