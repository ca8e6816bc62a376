"""SGLang's decode side of a push: who is given memory before anything of its prompt is computed.

    budget        what may be given: free memory, less what decoding sequences are expected to take
    give_memory   the queue in order, as far as the budget goes
    resume        retracted sequences come back first

source: SGLang 0.5.12, decode mode.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..prefix import radix
from ..scheduler import kv
from ..scheduler.mail import post
from ..scheduler.queues import open_slot, peek_slot, queue_back
from ..scheduler.shadow import bring
from ..scheduler.side import CONNECTED, MEMORY
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    GENERATED,
    LOADED,
    LOADING,
    LOST,
    NEXT,
    NO_SLOT,
    PHASE,
    PREALLOCATED,
    SEQ,
    SINCE,
    TRANSFERRING,
    WAITING,
)
from .marks import take_mark
from .push_queue import keep_from


@inline
def _num_live(e):
    """Sequences that decode, or will without asking again."""
    return e.slots.running + e.side.num_holding + e.num_waiting


@inline
def _to_return(e, seq):
    """Tokens that a retracted sequence asks for."""
    return e.seqs.prompt[seq] + max(e.seqs.generated[seq] - 1, 0) + e.side.reserved


@jit
def _retractable(e):
    """What a retraction of everybody would free."""
    rec, prompt, step = e.slots.rec, e.seqs.prompt, e.calendar.step  # by name: see token_budget.schedule_running
    total = np.int64(0)
    slot = e.slots.head
    while slot != NO_SLOT:
        total += prompt[rec[slot, SEQ]] + rec[slot, GENERATED]
        if rec[slot, SINCE] >= 0:
            total += step - rec[slot, SINCE]
        slot = rec[slot, NEXT]
    return total


@jit
def _budget(e, retractable, preallocated):
    """Tokens that may be preallocated. It can be negative."""
    rec, side, clip = e.slots.rec, e.side, e.rules.clip_max_new_tokens
    max_tokens, prompt = e.seqs.max_tokens, e.seqs.prompt
    lone = retractable
    slot = e.slots.head
    if slot != NO_SLOT:
        lone = np.int64(0)
    while slot != NO_SLOT:
        seq = rec[slot, SEQ]
        lone = max(lone, min(max_tokens[seq], clip) + prompt[seq])
        slot = rec[slot, NEXT]
    reserve = max(side.reserved * (_num_live(e) + preallocated), lone - retractable)
    for i in range(side.num_retracted):
        reserve += _to_return(e, side.retracted[i])
    return kv.available(e) * e.rules.block_tokens - reserve


@entry
def allocatable(e):
    """The budget before a step."""
    return _budget(e, _retractable(e), np.int64(0))


@inline
def _free_rows(e):
    return e.side.rows - e.slots.holders


@jit
def resume(e):
    """Retracted sequences come back in order, while the budget bears them."""
    side, q, bt = e.side, e.seqs, e.rules.block_tokens
    left = kv.available(e) * bt - side.reserved * _num_live(e)
    done = np.int64(0)
    while done < side.num_retracted:
        seq = side.retracted[done]
        need, tokens = _to_return(e, seq), q.prompt[seq] + max(q.generated[seq] - 1, 0)
        has_pages = (tokens + bt - 1) // bt <= kv.available(e)  # `left` does not count in whole ones
        if _free_rows(e) <= 0 or need > left or not has_pages:
            break
        left -= need
        slot = open_slot(e, seq)
        kv.attach(e, slot, 0, 0)
        kv.install(e, slot, tokens)
        bring(e, slot, np.int64(0), tokens)
        e.slots.rec[slot, PHASE] = LOADED
        set_state(e, seq, WAITING)
        queue_back(e, seq)
        done += 1
    side.num_retracted -= done
    side.num_ended -= done
    for i in range(side.num_retracted):
        side.retracted[i] = side.retracted[i + done]


@inline
def give_memory(e):
    side = e.side
    retractable = _retractable(e)
    kept, taken, at = np.int64(0), np.int64(0), np.int64(0)
    first = side.num_holding
    while at < side.num_queued:
        seq = side.queue[at]
        if side.seen[seq] == 0:
            side.queue[kept] = seq
            kept += 1
        elif _free_rows(e) <= 0 or side.num_marks == 0 or not _preallocated(e, seq, retractable, taken):
            break
        else:
            taken += 1
        at += 1
    keep_from(side, at, kept)
    side.num_holding = first + taken


@inline
def _preallocated(e, seq, retractable, taken):
    """Memory for its prompt beyond what is cached here, and a place for its first token, if the budget bears it."""
    q, side, bt = e.seqs, e.side, e.rules.block_tokens
    prompt, slot = q.prompt[seq], peek_slot(e.slots)
    hits, node, _ = kv.lookup(e, seq, prompt // bt, e.slots.table[slot])
    radix.lock(e.tree, node)
    need = (prompt + bt - 1) // bt * bt - hits * bt if e.rules.keeps else prompt
    growth = prompt - hits * bt + min(q.max_tokens[seq], e.rules.clip_max_new_tokens) - retractable
    fits = max(need + side.reserved, growth) <= _budget(e, retractable, taken)
    if fits:
        open_slot(e, seq)
        kv.attach(e, slot, hits, node)
        missing = (need + bt - 1) // bt - e.pool.num_free
        if missing > 0:
            radix.evict(e.tree, e.pool, missing)
        kv.extend(e, slot, prompt)
        q.cached[seq] = hits * bt
        e.slots.rec[slot, PHASE] = LOADING
        set_state(e, seq, PREALLOCATED)
        set_state(e, seq, TRANSFERRING)
        take_mark(side, seq)
        side.holding[side.num_holding + taken] = slot
        if side.connection[seq] == CONNECTED:
            side.num_ended -= 1
        else:
            e.slots.rec[slot, PHASE] = LOST  # nobody had looked
        post(side.outbox, MEMORY, seq)
    radix.unlock(e.tree, node)
    return fits
