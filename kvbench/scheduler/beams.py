"""Beam search: the beams of a request go in step, and after each step every survivor has drawn its parent.

A survivor of place i (0 = best) draws the beam that it goes on from with a weight of skew ** place. A beam that nobody
drew gives its blocks back; one that was drawn n times goes on itself and is forked n - 1 times. The first token
makes all beams out of one prompt and draws nothing. What is drawn depends on seed, request, token and place alone,
never on the schedule, so the same beams grow under every cache.

Beams are sequences of which one is heard: the journal has the best one's row. Their own texts mix at every fork, so
only blocks of the prompt are published while they run, and the best one's when it has won.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..prefix import block_hash
from ..prefix.ranked import REGISTERED
from .forks import fork, let_go
from .state_columns import (
    CHAIN,
    COMPUTED,
    FIRST_TERMINAL,
    FOLLOWS,
    GENERATED,
    HASHED,
    KNOWN,
    NO_SLOT,
    PHASE,
    PUBLISHED,
    SEQ,
)

_PURPOSE = 0x6265616D
"""Keeps these draws apart from others of an equal seed."""


@jit
def _mixed(x):
    """Finaliser of splitmix64."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@entry
def parent_of(seed, request, token, place, beams, skew):
    """Place of the parent that the survivor of `place` draws after output token `token`: weights skew ** place."""
    x = _mixed(np.uint64(seed) + np.uint64(_PURPOSE))
    x = _mixed(x + np.uint64(request) * np.uint64(0x9E3779B97F4A7C15))
    x = _mixed(x + np.uint64(token) * np.uint64(0x9E3779B97F4A7C15))
    x = _mixed(x + np.uint64(place) * np.uint64(0x9E3779B97F4A7C15))
    weight, total = 1.0, 0.0
    for _ in range(beams):
        total += weight
        weight *= skew
    left = np.float64(x >> np.uint64(11)) * 2.0**-53 * total
    weight = 1.0
    for parent in range(beams - 1):
        if left < weight:
            return parent
        left -= weight
        weight *= skew
    return beams - 1


@jit
def all_there(e, request):
    """Every beam that is not cancelled has computed all that it knows, or forks from one that has."""
    q, rec = e.seqs, e.slots.rec
    for seq in range(q.first[request], q.first[request + 1]):
        slot = q.slot[seq]
        if slot == NO_SLOT:
            if q.state[seq] < FIRST_TERMINAL:
                return False
        elif rec[slot, PHASE] != FOLLOWS and rec[slot, COMPUTED] < rec[slot, KNOWN]:
            return False
    return True


@jit
def by_place(e, request, slots):
    """Write the slots of a request's beams, best first; returns how many there are."""
    q = e.seqs
    n = 0
    for seq in range(q.first[request], q.first[request + 1]):
        if q.slot[seq] != NO_SLOT:
            at = n
            while at > 0 and e.beam_rank[e.slots.rec[slots[at - 1], SEQ]] > e.beam_rank[seq]:
                slots[at] = slots[at - 1]
                at -= 1
            slots[at] = q.slot[seq]
            n += 1
    return n


@jit
def survive(e, request, slots, n):
    """Survivors draw their parents and take over tables; slots[0:n] is by place before and after."""
    rec = e.slots.rec
    parents, taken, free = np.empty(n, np.int64), np.zeros(n, np.int64), np.empty(n, np.int64)
    token = rec[slots[0], GENERATED]
    for place in range(n):
        parents[place] = parent_of(e.rules.beam_seed, request, token, place, n, e.rules.beam_skew)
        taken[parents[place]] += 1
    num_free = 0
    for place in range(n - 1, -1, -1):
        if taken[place] == 0:
            let_go(e, slots[place])
            free[num_free] = slots[place]
            num_free += 1
        taken[place] = 0
    survivors = np.empty(n, np.int64)
    for place in range(n):
        parent = slots[parents[place]]
        if taken[parents[place]] == 0:
            survivors[place] = parent
            taken[parents[place]] = 1
        else:
            num_free -= 1
            survivors[place] = free[num_free]
            fork(e, parent, free[num_free], rec[parent, COMPUTED])
    for place in range(n):
        slots[place] = survivors[place]
        e.beam_rank[rec[survivors[place], SEQ]] = place


@inline
def publish_result(e, slot, seq):
    """Hash cache: the whole blocks of the best beam are those of the request's output."""
    rec = e.slots.rec
    full, start = rec[slot, COMPUTED] // e.rules.block_tokens, rec[slot, PUBLISHED]
    if e.rules.cache_kind == HASHED and full > start:
        row = e.slots.table[slot]
        block_hash.publish(e.hashes, e.pool, e.block_keys, seq, rec[slot, CHAIN], row, start, full, e.keys)
        block_hash.note(e.hashes, e.pool, REGISTERED, row, start, full, -e.seqs.priority[seq])
        rec[slot, PUBLISHED] = full
