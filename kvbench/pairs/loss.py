"""An engine of a pair dies: its memory and its cache are gone, and it comes back empty.

    lose_prefill   its legs fail; what the decode side was to read or to be sent never comes
    lose_decode    its sequences fail, or look for another decode engine (pull, `again`)
    tell_client    a sequence has ended: the client hears of it, or it is to be sent again

What moves goes on until its link is done: who is left keeps the memory that it touches until then (see transfer.over).
A sequence that has failed is sent again when both sides are done with it, unless a token of it has been handed out:
nothing is delivered twice.
"""

from __future__ import annotations

import numpy as np

from ..client.clients import INCIDENT, ended
from ..core.jit import inline, jit
from ..kernels.event_heap import push_event
from ..memory.operations import OP_ATTEMPT, OP_KIND, OP_OWNER, SEND
from ..scheduler import calendar
from ..scheduler.lifecycle import close_sequence, end, suspend
from ..scheduler.state_columns import (
    ARRIVED,
    CANCELLED,
    COMPUTED,
    DRAINING,
    FAILED,
    FIRST_TERMINAL,
    IN_DECODE,
    IN_PREFILL,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    ROUTED,
)
from . import leases
from .state import HOMELESS, NO_ATTEMPT, NOT_LOST, NOT_YET, SENT_AGAIN

FIRST_AGAIN = np.int64(-2)
"""An INCIDENT of this number less a sequence: Python is to send that one again."""


@jit
def lose_prefill(pairs, q, e):
    """e   the dead engine, at e.now"""
    legs = pairs.legs
    for seq in range(legs.state.size):
        if legs.engine[seq] != e.number or legs.state[seq] < ROUTED or legs.state[seq] >= FIRST_TERMINAL:
            continue
        leases.end(pairs.leases, seq)
        if pairs.lost[seq] != HOMELESS and q.state[seq] < FIRST_TERMINAL:  # else its client knows
            pairs.lost[seq] = SENT_AGAIN
        _forget(e, seq)
        close_sequence(e, seq, CANCELLED if pairs.quit[seq] == 1 else FAILED)


@jit
def lose_decode(pairs, q, e, moves_on):
    """e   the dead engine, at e.now. moves_on: its sequences look for another decode engine (HOMELESS)"""
    for seq in range(q.state.size):
        mine = pairs.handed[seq] == 1 and q.engine[seq] == e.number and pairs.lost[seq] != HOMELESS
        if not mine or q.state[seq] < ROUTED or q.state[seq] >= FIRST_TERMINAL:
            continue
        slot = q.slot[seq]
        if slot != NO_SLOT:
            calendar.settle(e.calendar, e.slots.rec, slot)
        runs = slot != NO_SLOT and (e.slots.rec[slot, PHASE] == IN_DECODE or e.slots.rec[slot, PHASE] == IN_PREFILL)
        if moves_on and pairs.quit[seq] == 0 and q.state[seq] != DRAINING:
            pairs.lost[seq] = HOMELESS
            pairs.load[e.number] -= 1
            if runs:
                suspend(e, slot)
            _forget(e, seq)
            q.state[seq] = ROUTED
            continue
        pairs.lost[seq] = SENT_AGAIN
        state = CANCELLED if pairs.quit[seq] == 1 else FAILED
        if runs:
            end(e, slot, state)
        else:
            _forget(e, seq)
            close_sequence(e, seq, state)


@inline
def _forget(e, seq):
    """It holds nothing any more. The lists of the dead engine are nobody's."""
    q, slot = e.seqs, e.seqs.slot[seq]
    if slot != NO_SLOT:
        q.lost[seq] = e.slots.rec[slot, COMPUTED]
        q.slot[seq] = NO_SLOT


@jit
def tell_client(pairs, c, seq, now):
    """A sequence has ended on the decode side, or never got there."""
    if not _comes_again(pairs, c.seqs, seq):
        ended(c, seq)
    elif is_over(pairs, seq):
        call_again(pairs, c, seq, now)


@jit
def _comes_again(pairs, q, seq):
    is_lost = pairs.again and pairs.lost[seq] == SENT_AGAIN and pairs.quit[seq] == 0
    return is_lost and q.state[seq] == FAILED and q.first_token[seq] < 0


@jit
def is_over(pairs, seq):
    """The prefill side has done with it."""
    return pairs.legs.state[seq] >= FIRST_TERMINAL or pairs.legs.state[seq] < ROUTED


@jit
def call_again(pairs, c, seq, now):
    """Python sends it again, now."""
    push_event(c.events, now, INCIDENT, FIRST_AGAIN - seq)


@jit
def leg_is_over(pairs, c, seq, now):
    """The prefill side has done with a sequence: it may be what one that failed on the decode side has waited for."""
    if pairs.handed[seq] == 1 and _comes_again(pairs, c.seqs, seq):
        call_again(pairs, c, seq, now)


@jit
def begin_again(pairs, engines, q, seq):
    """Both sides forget what they knew of it. What of it still moves is of an older attempt."""
    legs, ops = pairs.legs, engines[0].operations
    if legs.state[seq] >= FIRST_TERMINAL:
        engines[legs.engine[seq]].num_done -= 1
    if pairs.handed[seq] == 1:
        engines[q.engine[seq]].num_done -= 1
    for row in range(ops.rows.shape[0]):
        if ops.rows[row, OP_KIND] == SEND and ops.rows[row, OP_OWNER] == seq:
            ops.rows[row, OP_ATTEMPT] = NO_ATTEMPT
    if legs.scheduled[seq] < 0:  # its first step is that of its first attempt, on whichever side
        legs.scheduled[seq] = q.scheduled[seq]
    legs.state[seq] = ARRIVED
    legs.generated[seq] = q.generated[seq] = legs.flagged[seq] = q.flagged[seq] = q.present[seq] = 0
    legs.first_token[seq] = legs.last_token[seq] = q.last_token[seq] = q.scheduled[seq] = q.finish[seq] = -1
    legs.ended_next[seq] = q.ended_next[seq] = NO_SEQ
    pairs.handed[seq] = pairs.broken[seq] = pairs.moving[seq] = pairs.sent[seq] = pairs.all_sent[seq] = 0
    pairs.lost[seq] = NOT_LOST
    pairs.computed_ns[seq] = pairs.memory_ns[seq] = pairs.begun_ns[seq] = NOT_YET
    pairs.arrived_ns[seq] = pairs.freed_ns[seq] = NOT_YET
