"""Order of the waiting list under SGLang's policies.

fcfs keeps the order of arrival (what was retracted goes to the end). The others sort the list before each
prefill batch is formed; all sorts are stable.
"""

from __future__ import annotations

from ..core.jit import inline

FCFS, LOF, BY_PRIORITY = range(3)
ORDERS = {"fcfs": FCFS, "lof": LOF, "priority": BY_PRIORITY}


@inline
def sort_waiting(e):
    """Bring the waiting list into the policy's order."""
    if e.rules.order == FCFS:
        return
    _insertion_sort(e)


@inline
def _before(e, a, b):
    q = e.seqs
    if e.rules.order == LOF:
        return q.max_tokens[a] > q.max_tokens[b]
    return q.priority[a] < q.priority[b]


@inline
def _insertion_sort(e):
    """Stable; linear when the list is nearly in order, as it is from one step to the next."""
    q = e.seqs
    seq = e.queue_head
    if seq < 0:
        return
    seq = q.queue_next[seq]
    while seq >= 0:
        following = q.queue_next[seq]
        before = q.queue_prev[seq]
        if before >= 0 and _before(e, seq, before):
            while before >= 0 and _before(e, seq, before):
                before = q.queue_prev[before]
            _move_behind(e, seq, before)
        seq = following


@inline
def _move_behind(e, seq, before):
    q = e.seqs
    left, right = q.queue_prev[seq], q.queue_next[seq]
    q.queue_next[left] = right
    if right >= 0:
        q.queue_prev[right] = left
    else:
        e.queue_tail = left
    after = e.queue_head if before < 0 else q.queue_next[before]
    q.queue_prev[seq] = before
    q.queue_next[seq] = after
    q.queue_prev[after] = seq
    if before < 0:
        e.queue_head = seq
    else:
        q.queue_next[before] = seq
