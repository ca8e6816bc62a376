"""Random: every candidate is as likely to go as any other, and a seed gives the same victims on any machine.

Each candidate draws an exponential life, and who ends first goes. What is left of an exponential life is distributed
as the whole, so the draws stay fair while time passes, and a heap finds the victim.
"""

from __future__ import annotations

import numpy as np

from ...core.jit import jit
from ..node import ACCESS, KEY, SEED, SHARED, WORD_A

ENDED = WORD_A  # of the shared record: when whoever left last had reached its end
_ONE = 32
"""Bits of a life's fraction."""


@jit
def _draw(state):
    """(next state, 32 random bits). source: splitmix64"""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    x = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state, np.int64((x ^ (x >> np.uint64(31))) >> np.uint64(32))


@jit
def exponential(seed, number):
    """A draw with mean 1 << 32, by comparisons alone. source: von Neumann's method (Knuth, TAOCP 2, 3.4.1)"""
    state = (np.uint64(seed) << np.uint64(40)) ^ np.uint64(number)
    whole = 0
    while True:
        state, first = _draw(state)
        last, falling = first, True
        length = 0
        while falling:  # how far a run of draws falls
            state, following = _draw(state)
            falling = following < last
            last = following
            length += 1
        if length % 2 == 1:
            return (whole << _ONE) + first
        whole += 1


def key(nodes, node, now):
    return nodes[SHARED, ENDED] + exponential(nodes[SHARED, SEED], nodes[node, ACCESS])


def on_evict(nodes, node, now):
    nodes[SHARED, ENDED] = nodes[node, KEY]
    return True
