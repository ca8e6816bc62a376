"""What a router believes to be cached: where it sent what, what the engines' events say, or the truth.

look_up   fills Router.cached for a sequence
learn     what it hears changes what it believes
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..prefix.chain_hash import root_hash
from ..prefix.keys import fill_keys
from . import block_view, holder_tree
from .by_load import count
from .choose import num_accepting, open_decision
from .late import catch_up, forget_late
from .router import LOST, OWN, REMOVED, SENT, STORED, TRUTH


@jit
def root_of(router, seqs, seq):
    """The root of a sequence's namespace in a tree of the router in question."""
    return -1 - (seqs.namespace[seq] * router.rules.routers + router.base // router.rules.num_engines)


@jit
def prompt_keys(router, seqs, seq):
    """Fill Router.keys with the whole blocks of a prompt; returns how many there are."""
    n = seqs.prompt[seq] // router.rules.block_tokens
    fill_keys(router.block_keys, seq, 0, n, router.keys)
    return n


@jit
def look_up(router, seqs, seq):
    """Fill Router.cached with the leading tokens of a sequence that each engine is believed to have."""
    cached, belief = router.cached, router.rules.belief
    if belief == TRUTH:
        for i in range(cached.size):
            cached[i] = router.truth[i]
        return
    n = prompt_keys(router, seqs, seq)
    if belief == OWN:
        holder_tree.look(router.tree, root_of(router, seqs, seq), router.keys, n, router.base, cached)
    else:
        told = router.told
        block_view.held_prefix(router.blocks_told, root_hash(seqs.namespace[seq]), router.keys, n, told)
        for i in range(cached.size):
            cached[i] = 0
        for rank in range(told.size):
            port = router.port[rank]
            cached[port] = max(cached[port], told[rank])
    for i in range(cached.size):
        cached[i] *= router.rules.block_tokens


@jit
def knows_where(router, seqs, seq, now):
    """A decision begins, and `cached` holds what of the prompt lies where. False: no engine takes requests."""
    open_decision(router, seqs, seq, now)
    refresh(router, now)
    if num_accepting(router) == 0:
        return False
    look_up(router, seqs, seq)
    return True


@jit
def predict(router, seqs, seq, engine):
    """What of a sequence the engine will find, and what the best one would: at least one token is computed."""
    bt, cached, most = router.rules.block_tokens, router.cached, np.int64(0)
    for other in range(cached.size):
        if router.accepts[other] == 1:
            most = max(most, cached[other])
    limit = (seqs.prompt[seq] - 1) // bt * bt
    router.predicted, router.best = min(cached[engine], limit), min(most, limit)


@jit
def refresh(router, now):
    """Before a decision: hear what is due; now and then, no more believe what is over a limit or too old."""
    catch_up(router, now)
    if now < router.next_evict:
        return
    router.next_evict = (now // router.rules.evict_ns + 1) * router.rules.evict_ns
    holder_tree.evict(router.tree, router.tree.limit, now - router.rules.ttl_ns)


@jit
def learn(router, seqs, event, subject, engine, now):
    """Of a policy that has a belief."""
    belief = router.rules.belief
    if event == LOST and not router.rules.hears_loss:
        return
    if belief == OWN:
        if event == SENT:
            n = prompt_keys(router, seqs, subject)
            port = router.base + engine
            node, _ = holder_tree.insert(router.tree, root_of(router, seqs, subject), router.keys, n, port, now)
            holder_tree.stamp_path(router.tree, node, port, now)
        elif event == LOST:
            for first in range(0, router.tree.held.size, router.rules.num_engines):
                holder_tree.drop_engine(router.tree, np.int64(first) + router.port[engine])
    elif belief != TRUTH:
        if event == STORED:
            block_view.stored(router.blocks_told, subject, engine)
        elif event == REMOVED:
            block_view.removed(router.blocks_told, subject, engine)
        elif event == LOST:
            forget_late(router, engine)
            block_view.drop_engine(router.blocks_told, engine)


def hear(router, seqs, event, subject, engine, now):
    """Of a policy that keeps nothing beside its belief."""
    count(router, seqs, event, subject, engine, now)
    learn(router, seqs, event, subject, engine, now)
