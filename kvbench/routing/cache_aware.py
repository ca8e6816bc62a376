"""The engine that has most of a prompt, unless the load is uneven: SGLang's router, cache_aware.

    1. uneven: max - min > balance_abs, and max > min x balance_rel   -> the least loaded engine
    2. the share of the prompt that the tree knows > match_threshold  -> who brought the deepest node it shares
    3. else the least loaded engine

The tree holds what was sent where; it is a guess. The single precision of the comparisons is the router's.
source: sglang-router 0.3.2, in whole blocks of tokens where it counts characters
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from . import holder_tree
from .belief import learn, look_up, predict, prompt_keys, refresh, root_of
from .by_load import count
from .choose import least, load_of, num_accepting, open_decision
from .holder_tree import CREATOR, HOLDERS, NO_HOLDER
from .router import NO_ENGINE, OWN, SENT

_TOUCH_EVERY = 8
"""Matches of which one is a use of what they found."""


def route(router, seqs, seq, now):
    open_decision(router, seqs, seq, now)
    refresh(router, now)
    if num_accepting(router) == 0:
        return NO_ENGINE
    engine = NO_ENGINE
    if router.rules.belief == OWN:
        n = prompt_keys(router, seqs, seq)
        tree = router.tree
        node, blocks = holder_tree.look(tree, root_of(router, seqs, seq), router.keys, n, router.base, router.cached)
        for i in range(router.cached.size):
            router.cached[i] *= router.rules.block_tokens
        if not is_uneven(router):
            engine = _who_brought(tree, node, router.base, _is_enough(router, seqs, seq, blocks))
    else:
        look_up(router, seqs, seq)
        if not is_uneven(router):
            engine = _who_has_most(router, seqs, seq)
    if engine == NO_ENGINE or router.accepts[engine] == 0:
        engine = least(router)
    predict(router, seqs, seq, engine)
    return engine


@jit
def is_uneven(router):
    """Whether the loads of the engines that take requests are too far apart."""
    low, high = np.inf, 0.0
    for engine in range(router.accepts.size):
        if router.accepts[engine] == 1:
            load = load_of(router, engine)
            low, high = min(low, load), max(high, load)
    rel = np.float32(low) * np.float32(router.rules.balance_rel)
    return high - low > router.rules.balance_abs and np.float32(high) > rel


@jit
def _is_enough(router, seqs, seq, blocks):
    share = np.float32(blocks * router.rules.block_tokens) / np.float32(seqs.prompt[seq])
    return share > np.float32(router.rules.match_threshold)


@jit
def _who_brought(tree, node, base, is_enough):
    """The engine for which a node came, or another one that holds it still; a match now and then counts as a use."""
    tree.clock += 1
    if node <= 0:
        return NO_ENGINE
    holder = holder_tree.find_holder(tree, node, tree.nodes[node, CREATOR])
    if holder == NO_HOLDER:
        holder = tree.nodes[node, HOLDERS]
        tree.nodes[node, CREATOR] = tree.holders[holder, holder_tree.ENGINE]
    if (tree.clock - 1) % _TOUCH_EVERY == 0:
        tree.holders[holder, holder_tree.STAMP] = tree.clock - 1
    return tree.holders[holder, holder_tree.ENGINE] - base if is_enough else NO_ENGINE


@jit
def _who_has_most(router, seqs, seq):
    """Under another belief: the engine that has most; of equal ones the least loaded."""
    best, cached, bt = NO_ENGINE, router.cached, router.rules.block_tokens
    for engine in range(cached.size):
        if router.accepts[engine] == 0 or not _is_enough(router, seqs, seq, cached[engine] // bt):
            continue
        more = best == NO_ENGINE or cached[engine] > cached[best]
        as_many = not more and cached[engine] == cached[best]
        if more or (as_many and load_of(router, engine) < load_of(router, best)):
            best = engine
    return best


def hear(router, seqs, event, subject, engine, now):
    """A new leaf has the tick of its coming, what else the engine did not hold has none yet."""
    count(router, seqs, event, subject, engine, now)
    if router.rules.belief == OWN and event == SENT:
        n = prompt_keys(router, seqs, subject)
        tree, port = router.tree, router.base + engine
        node, is_new = holder_tree.insert(tree, root_of(router, seqs, subject), router.keys, n, port, np.int64(0))
        if is_new == 1:
            tree.holders[holder_tree.find_holder(tree, node, port), holder_tree.STAMP] = tree.clock
            tree.clock += 1
    elif event != SENT:
        learn(router, seqs, event, subject, engine, now)
