"""Order of the waiting list under SGLang's policies.

    fcfs         order of arrival; what was retracted goes to the end
    lof          largest declared output first
    priority     most urgent first (here the smallest value; the engine's own numbers rise with urgency)
    random       shuffled anew each time, seeded
    lpm          longest cached prefix first, fcfs while too many wait; see `_prefix_keys`
    dfs-weight   depth first through the radix tree; see subtree_order
    hrrn         highest ratio of prefill tokens computed while it waited to those that it needs; fcfs like lpm
    shortest-prefill-first   fewest tokens to compute; the chunk that goes on leaves room for who has less

The list is sorted before each prefill batch is formed and stays in that order; all sorts are stable. Without
a radix tree there is no prefix to be aware of, and lpm, dfs-weight and hrrn are fcfs. Ties: hrrn by number,
shortest-prefill-first by entry into the list.

source: SGLang 0.5.12 and 0.5.23. The four that know prefixes match every waiting sequence with all that it
has, also its last token: the paths are stamped and split, whether the sequence is admitted then or not.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..kernels.ordering import shuffle, sort_by_key
from ..prefix import radix
from ..prefix.eviction.policies import LRU
from ..prefix.keys import fill_keys
from .queues import peek_slot
from .state_columns import NO_SEQ, RADIX
from .subtree_order import heaviest_subtree_first

FCFS, LOF, BY_PRIORITY, RANDOM, LPM, DFS_WEIGHT, HRRN, SHORTEST_PREFILL = range(8)
SEES_PREFIXES = (LPM, DFS_WEIGHT, HRRN, SHORTEST_PREFILL)
ORDERS = {
    "fcfs": FCFS,
    "lof": LOF,
    "priority": BY_PRIORITY,
    "random": RANDOM,
    "lpm": LPM,
    "dfs-weight": DFS_WEIGHT,
    "hrrn": HRRN,
    "shortest-prefill-first": SHORTEST_PREFILL,
}
MOST_MATCHED = 128
"""Waiting sequences that a refresh looks at."""
_FIRST, _LAST = np.int64(-(1 << 63)), np.int64(1 << 62)


def order_of(policy: str, cache_kind: str) -> int:
    """The code of a policy over a kind of cache."""
    if ORDERS.get(policy, FCFS) in SEES_PREFIXES and cache_kind != "radix":
        return FCFS
    return ORDERS.get(policy, FCFS)


@inline
def sort_waiting(e):
    """Bring the waiting list into the policy's order, which is not fcfs."""
    num, order = e.num_waiting, e.rules.order
    if num == 0:
        return
    if (order == LPM or order == HRRN) and num > e.rules.lpm_fallback_waiting:
        refresh_waiting(e)
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
        if order == HRRN or order == SHORTEST_PREFILL:
            _prefill_keys(e, seqs, key)
        elif order == LPM:
            _prefix_keys(e, seqs, key)
        else:
            _request_keys(e, seqs, key)
        sort_by_key(key, seqs, num)
    _relink(e, seqs)
    if order == LOF or order == BY_PRIORITY or order == RANDOM:
        refresh_waiting(e)


@jit
def refresh_waiting(e):
    """Now and then, where nobody else does it, who waits uses its cached prefix, so that it is not evicted meanwhile.

    Under lru alone; the head of the list is the last, and the most recent.
    """
    interval = e.rules.waiting_refresh_interval
    if interval == 0 or e.num_waiting == 0 or e.rules.cache_kind != RADIX or e.tree.order.policy != LRU:
        return
    e.num_sightings += 1
    if (e.num_sightings - 1) % interval != 0:
        return
    first = np.empty(min(e.num_waiting, MOST_MATCHED), np.int64)
    _list_waiting(e, first)
    for i in range(first.size - 1, -1, -1):
        match_whole(e, first[i])


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
    """Cached tokens, most first. Behind all others: who is late."""
    for i in range(seqs.size):
        match_whole(e, seqs[i])
        key[i] = 1 if _is_late(e, seqs[i], i == 0) else -_matched(e, seqs[i])


@inline
def _prefill_keys(e, seqs, key):
    """Shortest prefill first, or highest response ratio; behind all others who is late. Ties are in order already.

    Ratios are compared as floats of 64 bits; those of numbers that are not negative rise with their bits.
    """
    q, n = e.seqs, seqs.size
    is_hrrn = e.rules.order == HRRN
    ratio = np.zeros(n, np.float64)
    tie, place, were, keys = np.empty(n, np.int64), np.arange(n), seqs.copy(), np.empty(n, np.int64)
    for i in range(n):
        seq = seqs[i]
        match_whole(e, seq)
        late = _is_late(e, seq, i == 0)
        uncached = max(q.prompt[seq] - _matched(e, seq), 0)
        ratio[i] = max(e.processed_tokens - q.processed_then[seq], 0) / max(uncached, 1)
        if not is_hrrn:
            keys[i] = prefill_left(e, seq) + (_LAST if late else 0)
        elif late:
            keys[i] = _LAST
        else:
            keys[i] = -ratio.view(np.int64)[i] if uncached > 0 else _FIRST
        tie[i] = seq if is_hrrn else q.entry[seq]
    sort_by_key(tie, place, n)
    for i in range(n):
        seqs[i], key[i] = were[place[i]], keys[place[i]]


@inline
def _matched(e, seq):
    """Cached tokens of a sequence that has just been matched."""
    q = e.seqs
    most = q.prompt[seq] + q.generated[seq] - (1 if e.rules.match_all_but_last else 0)
    return min(q.matched[seq], most)


@inline
def prefill_left(e, seq):
    """Tokens that a waiting sequence would have to compute, as of its last match."""
    return max(e.seqs.prompt[seq] + e.seqs.generated[seq] - _matched(e, seq), 1)


@inline
def _is_late(e, seq, is_first):
    """Whether it will find a prefix once an earlier waiter has computed it; asked of all that wait, in order.

    That is who has no more than in_batch_check tokens cached, and the same first in_batch_deprioritize tokens as
    an earlier one of whom that holds and who does not go to the back itself.
    """
    q, rules, heads_seen = e.seqs, e.rules, e.heads_seen
    if is_first:
        e.num_sorts += 1
    shared = rules.in_batch_deprioritize_threshold
    if q.matched[seq] > rules.in_batch_check_threshold or q.prompt[seq] + q.generated[seq] < shared:
        return False
    if shared == 0 or heads_seen[q.head[seq]] == e.num_sorts:
        return True
    heads_seen[q.head[seq]] = e.num_sorts
    return False


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
