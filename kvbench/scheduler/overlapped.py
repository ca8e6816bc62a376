"""Planning a step while the one before runs: what each discipline does when results come a step late.

    schedule(n)    the tokens of step n - 1 are on their way: their places are planned, their ends are not known
    commit(n)      the results of step n - 1 are in (tokens come out, sequences end), and step n is on the device

A sequence that ended in step n - 1 without its end being foreseen is computed once more, for nobody, in step n. What
it held is free as soon as its end is known: later steps come behind step n on the same queue.

    token-budget    an end by max_tokens is foreseen: no token is planned behind it. The token of a sequence that is
                    preempted meanwhile still counts when it comes.
    prefill-first   no end is foreseen. The token of a sequence that is retracted meanwhile is dropped, and made again.

source: vLLM's async scheduling, SGLang's overlap loop.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit
from ..memory.pool import ring_give
from . import kv, token_budget
from .calendar import note_gap
from .lifecycle import count_token, drop_waiting, end, first_token_out
from .spent import CHUNK, FIRST, FLIGHT_DOES, FLIGHT_SEQ, FLIGHT_SLOT, NEXT_TOKEN, NOTHING, note_decode
from .state import set_state
from .state_columns import (
    CANCELLED,
    COMPUTED,
    DECODING,
    ENDED,
    FINISHED,
    FREE_SLOT,
    FREE_TWICE,
    GENERATED,
    IN_DECODE,
    KNOWN,
    LAST_TOKEN,
    PHASE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    PREEMPTED,
    RADIX,
    SEQ,
)


@entry
def commit_token_budget(e):
    """Results of the step before, as of e.now; then the planned step is launched."""
    for row in range(e.num_flight):
        slot, seq, does = e.flight[row, FLIGHT_SLOT], e.flight[row, FLIGHT_SEQ], e.flight[row, FLIGHT_DOES]
        if does == NOTHING:
            continue
        if e.seqs.slot[seq] != slot:
            if does != CHUNK and e.seqs.state[seq] == PREEMPTED:
                _late_token(e, seq)
        elif does == CHUNK:
            kv.publish_unfinished(e, slot)
        elif _token_out(e, slot, seq, does):
            token_budget.finish(e, slot)
        elif does == FIRST:
            kv.publish_unfinished(e, slot)
    _launch(e, True)


@entry
def commit_prefill_first(e):
    """The same; the blocks of a chunk enter the tree when the next chunk is scheduled."""
    for row in range(e.num_flight):
        slot, seq, does = e.flight[row, FLIGHT_SLOT], e.flight[row, FLIGHT_SEQ], e.flight[row, FLIGHT_DOES]
        if does == NOTHING or does == CHUNK or e.seqs.slot[seq] != slot:
            continue
        if _token_out(e, slot, seq, does):
            _finish_prefill_first(e, slot)
        elif does == FIRST:
            kv.publish_unfinished(e, slot)
    _launch(e, False)


@inline
def _token_out(e, slot, seq, does):
    """A token of a sequence comes out at e.now. True when it is the last."""
    rec = e.slots.rec
    if rec[slot, LAST_TOKEN] < 0:
        first_token_out(e, seq, e.now)
    else:
        note_gap(e.journal, e.now - rec[slot, LAST_TOKEN], np.int64(1))
    if does == FIRST:
        note_decode(e, seq)
    known = rec[slot, KNOWN]  # it was counted when its step was launched
    last = count_token(rec, slot, e.now)
    rec[slot, KNOWN] = known
    return last


@jit
def _late_token(e, seq):
    """A sequence lost its slot while its token was being made: the token counts, and may be its last."""
    q = e.seqs
    if q.last_token[seq] < 0:
        first_token_out(e, seq, e.now)
    else:
        note_gap(e.journal, e.now - q.last_token[seq], np.int64(1))
    q.last_token[seq] = e.now
    q.generated[seq] += 1
    if q.generated[seq] >= q.output[seq]:
        drop_waiting(e, seq, FINISHED)


@jit
def _finish_prefill_first(e, slot):
    """Its slot leaves the running list when decodes are next prepared; in a mixed batch, when that is merged."""
    if not _in_batch(e, slot):
        e.leavers[e.num_leavers] = slot
        e.num_leavers += 1
    kv.publish_finished(e, slot)
    end(e, slot, CANCELLED if e.seqs.flagged[e.slots.rec[slot, SEQ]] == 1 else FINISHED)


@inline
def _in_batch(e, slot):
    found = False
    for i in range(e.batch_size if e.rules.enable_mixed_chunk else 0):
        found = found or e.batch[i] == slot
    return found


@inline
def _launch(e, ends_are_foreseen):
    """The planned rows go to the device: their tokens count as computed, and the tokens to come as known."""
    rec, plan, flight, max_tokens = e.slots.rec, e.plan, e.flight, e.seqs.max_tokens
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        flight[row, FLIGHT_SLOT] = slot
        if rec[slot, PHASE] == ENDED or rec[slot, PHASE] == FREE_SLOT:
            flight[row, FLIGHT_DOES] = NOTHING
            if e.rules.planted & FREE_TWICE and e.rules.cache_kind == RADIX:
                last = plan[row, PLAN_START] // e.rules.block_tokens
                ring_give(e.pool, e.slots.table[slot], last, last + 1)
            continue
        seq = rec[slot, SEQ]
        flight[row, FLIGHT_SEQ] = seq
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        e.context += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            flight[row, FLIGHT_DOES] = CHUNK
            continue
        flight[row, FLIGHT_DOES] = NEXT_TOKEN
        if rec[slot, PHASE] != IN_DECODE:
            flight[row, FLIGHT_DOES] = FIRST
            rec[slot, PHASE] = IN_DECODE
            set_state(e, seq, DECODING)
        if not (ends_are_foreseen and rec[slot, GENERATED] + 1 >= max_tokens[seq]):
            rec[slot, KNOWN] += 1
    e.num_flight = e.num_plan
