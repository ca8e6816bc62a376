"""What most policies need: draws, the load of an engine, the least loaded one."""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from . import sent_lately
from .router import HELD_TOKENS, KV_ALL, KV_USED, NO_ENGINE


@inline
def turn_to(router, seqs, seq):
    """Of several routers, that of a sequence: requests go to them in turn."""
    router.base = seqs.request[seq] % router.rules.routers * router.rules.num_engines


@inline
def open_decision(router, seqs, seq, now):
    """Before every decision: whose turn it is, and what counts no more."""
    turn_to(router, seqs, seq)
    if router.rules.window_ns > 0:
        sent_lately.forget(router, now)


@jit
def draw(router, n):
    """A whole number below n, each as likely as any other. source: splitmix64, the top bits of a product"""
    router.random += _STEP
    return np.int64((_mixed(router.random) * np.uint64(n)) >> np.uint64(32))


@jit
def draw_lost(router):
    """Whether an event is lost."""
    router.lottery += _STEP
    return np.int64(_mixed(router.lottery)) < router.lost_events


_STEP = np.uint64(0x9E3779B97F4A7C15)


@inline
def _mixed(x):
    """32 random bits. source: splitmix64"""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(32)


@inline
def load_of(router, engine):
    """The load by which engines are compared: a count, or a share of what the engine has."""
    column = router.rules.load_column
    row = router.load[router.base + engine]
    load = np.float64(row[column])
    if column == KV_USED or column == HELD_TOKENS:
        load /= max(row[KV_ALL], 1)
    return load


@jit
def num_accepting(router):
    num = 0
    for engine in range(router.accepts.size):
        num += router.accepts[engine]
    return num


@jit
def accepting(router, place):
    """The engine in that place among those that take requests, by number."""
    for engine in range(router.accepts.size):
        place -= router.accepts[engine]
        if place < 0:
            return engine
    return NO_ENGINE


@jit
def least(router):
    """The least loaded engine that takes requests, of equal ones the first; NO_ENGINE."""
    best, least_load = NO_ENGINE, 0.0
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 1:
            load = load_of(router, engine)
            if best == NO_ENGINE or load < least_load:
                best, least_load = engine, load
    return best


@jit
def draw_least(router, cost):
    """An engine of the least cost that takes requests; of equal ones any, by chance. source: reservoir of one"""
    best, num = NO_ENGINE, 0
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 0:
            continue
        if best == NO_ENGINE or cost[engine] < cost[best]:
            best, num = engine, 1
        elif cost[engine] == cost[best]:
            num += 1
            if draw(router, num) == 0:
                best = engine
    return best
