"""GreedyDual-Size-Frequency: small and often used stays, and the cache ages.

    key = age + uses / size

uses is 1 and the hits of admitted requests, size a node's blocks (1 under block hash: then it is LFU that forgets). The
age is the key of whoever left last. A key is set when a node comes and when it is hit. Keys are in millionths.

source: Cherkasova, 1998, at cost 1; victims as libCacheSim's GDSF, ties by last use.
"""

from __future__ import annotations

from ..node import KEY, LENGTH, SHARED, WORD_A, WORD_B

WORTH, USES = WORD_A, WORD_B
AGE = WORD_A  # of the shared record

_UNIT = 1_000_000


def key(nodes, node, now):
    return nodes[node, WORTH]


def on_insert(nodes, node, now):
    nodes[node, USES] = 1
    nodes[node, WORTH] = nodes[SHARED, AGE] + _UNIT // nodes[node, LENGTH]


def on_hit(nodes, node, now):
    nodes[node, USES] += 1
    nodes[node, WORTH] = nodes[SHARED, AGE] + nodes[node, USES] * _UNIT // nodes[node, LENGTH]


def on_evict(nodes, node, now):
    nodes[SHARED, AGE] = nodes[node, KEY]
    return True
