"""Order of the waiting list under SGLang's policies.

    fcfs         order of arrival; what was retracted goes to the end
    lof          largest declared output first
    priority     most urgent first (here the smallest value; the engine's own numbers rise with urgency)
    random       shuffled anew each time, seeded
    lpm          longest cached prefix first, fcfs while too many wait; see `_prefix_keys`
    dfs-weight   depth first through the radix tree; see subtree_order

The list is sorted before each prefill batch is formed and stays in that order; all sorts are stable. Without
a radix tree there is no prefix to be aware of, and lpm and dfs-weight are fcfs.

source: SGLang 0.5.12. lpm and dfs-weight match every waiting sequence with all that it has, also its last token:
the paths are stamped and split, whether the sequence is admitted then or not.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..kernels.ordering import shuffle, sort_by_key
from ..prefix import radix
from ..prefix.keys import fill_keys
from .queues import peek_slot
from .state_columns import NO_SEQ
from .subtree_order import heaviest_subtree_first

FCFS, LOF, BY_PRIORITY, RANDOM, LPM, DFS_WEIGHT = range(6)
ORDERS = {
    "fcfs": FCFS,
    "lof": LOF,
    "priority": BY_PRIORITY,
    "random": RANDOM,
    "lpm": LPM,
    "dfs-weight": DFS_WEIGHT,
}


def order_of(policy: str, cache_kind: str) -> int:
    """The code of a policy over a kind of cache."""
    if policy in ("lpm", "dfs-weight") and cache_kind != "radix":
        return FCFS
    return ORDERS.get(policy, FCFS)


@inline
def sort_waiting(e):
    """Bring the waiting list into the policy's order, which is not fcfs."""
    num, order = e.num_waiting, e.rules.order
    if num == 0 or (order == LPM and num > e.rules.lpm_fallback):
        return
    seqs, key = np.empty(num, np.int64), np.empty(num, np.int64)
    _list_waiting(e, seqs)
    if order == RANDOM:
        e.shuffle_state = shuffle(seqs, num, e.shuffle_state)
    elif order == DFS_WEIGHT:
        for i in range(num):
            key[i] = match_whole(e, seqs[i])
        heaviest_subtree_first(e.tree, seqs, key)
    else:
        if order == LPM:
            _prefix_keys(e, seqs, key)
        else:
            _request_keys(e, seqs, key)
        sort_by_key(key, seqs, num)
    _relink(e, seqs)


@inline
def _list_waiting(e, seqs):
    following = e.seqs.queue_next
    seq = e.queue_head
    for i in range(seqs.size):
        seqs[i] = seq
        seq = following[seq]


@inline
def _relink(e, seqs):
    following, before = e.seqs.queue_next, e.seqs.queue_prev
    last = np.int64(NO_SEQ)
    for i in range(seqs.size):
        seq = seqs[i]
        before[seq] = last
        if last == NO_SEQ:
            e.queue_head = seq
        else:
            following[last] = seq
        last = seq
    following[last] = NO_SEQ
    e.queue_tail = last


@inline
def _request_keys(e, seqs, key):
    priority, max_tokens = e.seqs.priority, e.seqs.max_tokens
    is_lof = e.rules.order == LOF
    for i in range(seqs.size):
        key[i] = -max_tokens[seqs[i]] if is_lof else priority[seqs[i]]


@inline
def _prefix_keys(e, seqs, key):
    """Cached tokens, most first. Behind all others: who will find a prefix once an earlier waiter has computed it.

    That is who has no more than in_batch_check tokens cached, and the same first in_batch_deprioritize tokens as
    an earlier one of whom that holds and who does not go to the back itself.
    """
    q, rules, heads_seen = e.seqs, e.rules, e.heads_seen
    e.num_sorts += 1
    shared = rules.in_batch_deprioritize
    for i in range(seqs.size):
        seq = seqs[i]
        match_whole(e, seq)
        key[i] = -q.matched[seq]
        if q.matched[seq] <= rules.in_batch_check and q.prompt[seq] + q.generated[seq] >= shared:
            if shared == 0 or heads_seen[q.head[seq]] == e.num_sorts:
                key[i] = 1
            else:
                heads_seen[q.head[seq]] = e.num_sorts


@jit
def match_whole(e, seq):
    """Match all that a waiting sequence has; the tokens found go to `matched`. Returns the node it ends at."""
    q, bt = e.seqs, e.rules.block_tokens
    blocks = (q.prompt[seq] + q.generated[seq]) // bt
    fill_keys(e.block_keys, seq, 0, blocks, e.keys)
    row = e.slots.table[peek_slot(e.slots)]
    node, found = radix.match(e.tree, q.namespace[seq], e.keys, blocks, row)
    q.matched[seq] = found * bt
    return node
