"""SIEVE: a hand goes round from the oldest to the newest; who was used since it came by last is spared.

    key         lap of the hand, then age. Who has been passed waits for the next lap; who comes new stands at the
                end of this one. A move of the hand is a new key, so nodes need no list
    on_hit      the visited bit (WORD_A)

The hand starts over when nobody who was there when it moved last is left in front of it. Nodes that cannot go
(held, or with children) are passed over and keep their bit. A split makes the upper part new, as it does in fifo.

source: Zhang, Yang, Yue, Vigfusson, Rashmi, NSDI'24. Exact where every node is a candidate.
"""

from __future__ import annotations

from ..node import ACCESS, CREATED, KEY, SHARED, WORD_A, WORD_B

_LAP = 33
"""Bits of a tick: 8.6e9 of them, and a thousand million laps."""

HAND, LAP, MOVED = WORD_A, WORD_B, ACCESS  # of the shared record: age it stands at, its lap, tick of its last move


def key(nodes, node, now):
    passed = nodes[node, CREATED] <= nodes[SHARED, HAND]
    return ((nodes[SHARED, LAP] + passed) << _LAP) | nodes[node, CREATED]


def on_insert(nodes, node, now):
    nodes[node, WORD_A] = 0


def on_hit(nodes, node, now):
    nodes[node, WORD_A] = 1


def on_evict(nodes, node, now):
    lap = nodes[node, KEY] >> _LAP
    if lap < nodes[SHARED, LAP]:  # the hand started over and had not come to it
        return False
    at_the_end = nodes[SHARED, HAND] > 0 and nodes[node, CREATED] > nodes[SHARED, MOVED]
    nodes[SHARED, MOVED] = now
    if lap == nodes[SHARED, LAP] and at_the_end:
        nodes[SHARED, LAP] += 1
        nodes[SHARED, HAND] = 0
        return False
    nodes[SHARED, LAP] = lap
    nodes[SHARED, HAND] = nodes[node, CREATED]
    visited = nodes[node, WORD_A] == 1
    nodes[node, WORD_A] = 0
    return not visited
