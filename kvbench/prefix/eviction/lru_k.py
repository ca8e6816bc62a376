"""LRU-K with K = 2: whoever's last use but one is longest ago goes first; used once only goes before, by lru.

Uses are the node's coming and the hits of admitted requests; no two are taken for one however close they lie.

source: O'Neil, O'Neil, Weikum, SIGMOD'93; nothing is retained of what has left.
"""

from __future__ import annotations

from ..node import WORD_A, WORD_B

LAST, LAST_BUT_ONE = WORD_A, WORD_B


def key(nodes, node, now):
    return nodes[node, LAST_BUT_ONE]


def on_insert(nodes, node, now):
    nodes[node, LAST] = now
    nodes[node, LAST_BUT_ONE] = 0


def on_hit(nodes, node, now):
    nodes[node, LAST_BUT_ONE] = nodes[node, LAST]
    nodes[node, LAST] = now
