"""Policies that do not look at a prompt: turns, chance, load. And what every router counts itself."""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..kernels.rows import doubled
from ..prefix.chain_hash import chain, root_hash
from . import sent_lately
from .choose import accepting, draw, least, load_of, num_accepting, open_decision, turn_to
from .router import ENDED, FIRST_TOKEN, HELD_TOKENS, IN_FLIGHT, NO_ENGINE, OUTPUT_BLOCK, PENDING_TOKENS, SENT


def round_robin(router, seqs, seq, now):
    """source: SGLang's router; the count is of decisions, taken modulo the engines that take requests now, or of those
    decisions alone that had the same engines to choose from"""
    open_decision(router, seqs, seq, now)
    n = num_accepting(router)
    if n == 0:
        return NO_ENGINE
    own = router.base // router.rules.num_engines
    if router.rules.counts_each_set:
        return accepting(router, _turn_of_set(router, own) % n)
    router.turns[own] += 1
    return accepting(router, (router.turns[own] - 1) % n)


@jit
def _turn_of_set(router, own):
    """Decisions before this one with the same engines to choose from. source: vLLM's production stack"""
    name = root_hash(np.int64(own))
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 1:
            name = chain(name, np.int64(engine))
    at = 0
    while at < router.num_sets and router.sets[at, 0] != name:
        at += 1
    if at == router.num_sets:
        if at == router.sets.shape[0]:
            router.sets = doubled(router.sets)
        router.sets[at, 0], router.sets[at, 1] = name, 0
        router.num_sets += 1
    router.sets[at, 1] += 1
    return router.sets[at, 1] - 1


def at_random(router, seqs, seq, now):
    open_decision(router, seqs, seq, now)
    n = num_accepting(router)
    return accepting(router, draw(router, n)) if n > 0 else NO_ENGINE


def least_loaded(router, seqs, seq, now):
    open_decision(router, seqs, seq, now)
    return least(router)


def power_of_two(router, seqs, seq, now):
    """Two different engines; the first drawn where their loads are equal. source: Mitzenmacher, 2001"""
    open_decision(router, seqs, seq, now)
    n = num_accepting(router)
    if n < 2:
        return accepting(router, 0)
    first = draw(router, n)
    second = draw(router, n - 1)
    second += second >= first
    one, other = accepting(router, first), accepting(router, second)
    return other if load_of(router, other) < load_of(router, one) else one


@jit
def count(router, seqs, event, seq, engine, now):
    """The router's own count of what it has sent."""
    if event > OUTPUT_BLOCK:  # it is about no sequence
        return
    turn_to(router, seqs, seq)
    row = router.load[router.base + engine]
    if event == SENT:
        pending = max(seqs.prompt[seq] - router.cached[engine], 0)
        router.booked[seq] = pending
        row[IN_FLIGHT] += 1
        row[PENDING_TOKENS] += pending
        row[HELD_TOKENS] += seqs.prompt[seq]
        if router.rules.window_ns > 0:
            sent_lately.note(router, router.base + engine, now)
    elif event == FIRST_TOKEN or event == ENDED:
        row[PENDING_TOKENS] -= router.booked[seq]
        router.booked[seq] = 0
        if event == ENDED:
            row[IN_FLIGHT] -= 1
            row[HELD_TOKENS] -= seqs.prompt[seq]


def hear(router, seqs, event, subject, engine, now):
    """Of a policy that believes nothing."""
    count(router, seqs, event, subject, engine, now)


def only(router, seqs, seq, now):
    """Where there is one engine, nobody has to choose."""
    return 0


def ignore(router, seqs, event, subject, engine, now):
    """Nor to listen."""
