"""SGLang's memory of the next decode: how much it takes, what is evicted for it, and who goes back for it.

source: SGLang 0.5.12 and 0.5.23, `ScheduleBatch.retract_decode` and `check_decode_mem`.
"""

from __future__ import annotations

from ..core.jit import inline, jit
from ..prefix import radix
from .calendar import bucket_at, join, leave
from .lifecycle import end, suspend
from .queues import close_slot, queue_back, run_append, run_remove
from .state_columns import (
    BLOCKS,
    COMPUTED,
    FAILED,
    GENERATED,
    NEXT,
    NO_SLOT,
    RADIX,
    SEQ,
    TOKENS_FOR_BLOCKS,
)


@jit
def make_room(e, tokens):
    """When fewer tokens than these are free, evict that whole amount, or what is missing. True if they are free."""
    bt = e.rules.block_tokens
    free = e.pool.num_free * bt
    if e.rules.cache_kind == RADIX and free < tokens:
        asked = tokens - free if e.rules.evict_shortfall else tokens
        radix.evict(e.tree, e.pool, (asked + bt - 1) // bt)
    return e.pool.num_free * bt >= tokens


@inline
def new_blocks(e):
    """Running sequences whose next token opens a block."""
    if e.calendar.active:
        return e.calendar.counts[bucket_at(e.calendar, e.rules.block_tokens, 0)]
    return _count_new_blocks(e)


@jit
def _count_new_blocks(e):
    rec, bt = e.slots.rec, e.rules.block_tokens
    count = 0
    slot = e.slots.head
    while slot != NO_SLOT:
        if rec[slot, COMPUTED] == rec[slot, BLOCKS] * bt:
            count += 1
        slot = rec[slot, NEXT]
    return count


@jit
def retract(e):
    """Decodes cannot have memory: the sequences with the fewest outputs (ties: longest prompt) go back.

    By priority: the least urgent first, ties as above.

    The running list is left in order of that key, most outputs first. If the last one does not fit, it fails.
    """
    _leave_calendar(e)
    _sort_running(e)
    first = True
    while first or not make_room(e, _tokens_to_free(e)):
        if e.slots.running == 1:
            break
        first = False
        slot = e.slots.tail
        seq = e.slots.rec[slot, SEQ]
        run_remove(e.slots, slot)
        suspend(e, slot)
        make_room(e, e.slots.running * e.rules.retract_decode_steps)
        queue_back(e, seq)
    if e.slots.running == 1 and not make_room(e, _tokens_to_free(e)):
        slot = e.slots.head
        run_remove(e.slots, slot)
        end(e, slot, FAILED)
        close_slot(e, slot)
    decoded, declared = 0, 0
    slot = e.slots.head
    while slot != NO_SLOT:
        decoded += e.slots.rec[slot, GENERATED]
        declared += e.seqs.max_tokens[e.slots.rec[slot, SEQ]]
        slot = e.slots.rec[slot, NEXT]
    _enter_calendar(e)
    e.ratio = min(1.0, (decoded + e.rules.retract_decode_steps * e.slots.running) / (declared + 1))


@jit
def _tokens_to_free(e):
    """Room that the next decode needs: whole blocks (or, a planted fault, only their first tokens)."""
    blocks = _count_new_blocks(e)
    return blocks if e.rules.planted & TOKENS_FOR_BLOCKS else blocks * e.rules.block_tokens


@inline
def _leave_calendar(e):
    """Retraction looks at everyone and reorders the list: the calendar is emptied and filled again."""
    slot = e.slots.head
    while e.calendar.active and slot != NO_SLOT:
        leave(e.calendar, e.slots.rec, slot, e.rules.block_tokens)
        slot = e.slots.rec[slot, NEXT]


@inline
def _enter_calendar(e):
    e.calendar.num_groups = 0
    slot = e.slots.head
    while e.calendar.active and slot != NO_SLOT:
        join(e.calendar, e.slots.rec, slot, e.rules.block_tokens)
        slot = e.slots.rec[slot, NEXT]


@inline
def _sort_running(e):
    """Stable insertion sort of the running list: outputs descending, then prompt ascending."""
    slots, rec = e.slots, e.slots.rec
    order = e.batch  # empty during a decode: scratch
    n = 0
    slot = slots.head
    while slot != NO_SLOT:
        at = n
        while at > 0 and _stays_longer(e, slot, order[at - 1]):
            order[at] = order[at - 1]
            at -= 1
        order[at] = slot
        n += 1
        slot = rec[slot, NEXT]
    slots.head = slots.tail = NO_SLOT
    slots.running = 0
    for i in range(n):
        run_append(slots, order[i])


@inline
def _stays_longer(e, a, b):
    rec, q = e.slots.rec, e.seqs
    if e.rules.retract_by_priority and q.priority[rec[a, SEQ]] != q.priority[rec[b, SEQ]]:
        return q.priority[rec[a, SEQ]] < q.priority[rec[b, SEQ]]
    if rec[a, GENERATED] != rec[b, GENERATED]:
        return rec[a, GENERATED] > rec[b, GENERATED]
    return q.prompt[rec[a, SEQ]] < q.prompt[rec[b, SEQ]]
