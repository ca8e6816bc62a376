"""T-LRU: first the ends of conversations that a next turn can compute again within its time budget, then by lru.

A conversation of `history` blocks, whose next prompt adds an estimate of new ones, holds its TTFT as long as all but
`tail` of the history are cached: tail = (threshold - estimate) in whole blocks. A leaf is safe to drop if what lies
before it still covers that. The history is the deepest that the conversation has been (WORD_A); dropping its end does
not shrink it, so no more than the tail goes before all others. A split gives both parts the history of the whole.

source: Zhang et al., arXiv:2510.15152, as in SGLang 0.5.23. Under block hash nothing is known of what follows a
block, and it is lru.
"""

from __future__ import annotations

from ..node import DEPTH, LENGTH, PARENT, SHARED, TAIL, WORD_A

HISTORY = WORD_A


def key(nodes, node, now):
    return -1 if nodes[node, DEPTH] + nodes[SHARED, TAIL] >= nodes[node, HISTORY] else 0


def on_insert(nodes, node, now):
    deepest = nodes[node, DEPTH] + nodes[node, LENGTH]
    while node > 0 and nodes[node, HISTORY] < deepest:
        nodes[node, HISTORY] = deepest
        node = nodes[node, PARENT]
