"""Pull: a prompt is computed, held under a lease, and read when the decode side has memory for it (vLLM, NIXL).

SENT    -> the prefill engine
TURN    prompt computed -> its lease begins, a decode engine is told; memory -> the read begins
LANDED  read -> the prefill side lets go; failed -> it keeps it until the lease is over
DUE     lease over -> the prefill side lets go; heartbeat -> the leases of what is still wanted go on
"""

from __future__ import annotations

import numpy as np

from ..client.clients import DEADLINE, close
from ..core.jit import entry, inline, jit
from ..kernels.event_heap import push_event
from ..memory.operations import ENDED, OP_OWNER, OP_STATE, heard
from ..scheduler.mail import ACCEPT, LEAVE, is_unread, post, take
from ..scheduler.queues import take_ended
from ..scheduler.side import COMPUTED_PROMPT, WENT_WRONG
from ..scheduler.spent import note_given_up
from ..scheduler.state_columns import (
    CANCELLED,
    COMPUTED,
    FAILED,
    FINISHED,
    FIRST_TERMINAL,
    FREE_SLOT,
    LAST_TOKEN,
    LEASE_OVER_READS,
    NO_SEQ,
    NO_SLOT,
    PHASE,
    ROUTED,
    SENDING,
    SEQ,
)
from . import leases, pull_decode, pull_prefill
from .loss import tell_client
from .state import (
    BEAT,
    DEADLINES,
    DUE,
    FAULT,
    HOMELESS,
    LANDED,
    LEASE,
    NO_DECODER,
    NOT_LOST,
    NOT_YET,
    QUIT,
    SENT,
    go_wrong,
    least_loaded,
    wake,
)
from .transfer import break_off, over, read_is_done, send_blocks, write_is_done


def verb(pairs, c, engines, ready, stepping, what, subject, k, now):
    """Something happens between the engines of a pair; see the module."""
    if what == SENT:
        _sent(pairs, c, engines, ready, stepping, subject, now)
    elif what == QUIT:
        _quit(pairs, c, engines, ready, stepping, subject, now)
    elif what == LANDED:
        _landed(pairs, c, engines, ready, stepping, subject, now)
    elif what == DUE:
        _due(pairs, c, engines, ready, stepping, subject, now)
    elif k < pairs.num_prefill:
        _prefill_news(pairs, c, engines, ready, stepping, k, now)
    else:
        _decode_news(pairs, c, engines, ready, stepping, k, now)


@jit
def _sent(pairs, c, engines, ready, stepping, seq, now):
    legs, q = pairs.legs, c.seqs
    k = q.engine[seq]
    legs.arrival[seq], legs.queued[seq] = q.arrival[seq], q.queued[seq]
    legs.engine[seq], legs.state[seq] = k, ROUTED
    post(engines[k].inbox, ACCEPT, seq)
    wake(engines, ready, stepping, k, now)


@jit
def _quit(pairs, c, engines, ready, stepping, seq, now):
    """To the engine that has it."""
    pairs.quit[seq] = 1
    if pairs.lost[seq] == HOMELESS:
        _close_homeless(c, seq, CANCELLED, now)
        return
    if pairs.computed_ns[seq] != NOT_YET and pairs.handed[seq] == 0:  # the router has not told of it yet
        let_go(pairs, engines, ready, stepping, seq, now)
        close(c, seq, CANCELLED, now)
        return
    k = c.seqs.engine[seq]
    post(engines[k].inbox, LEAVE, seq)
    wake(engines, ready, stepping, k, now)


# ---------------------------------------------------------------- news of the prefill side


@jit
def _prefill_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        kind, seq = take(e.side.outbox)
        if kind == COMPUTED_PROMPT:
            _computed(pairs, c, engines, ready, stepping, e, seq, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        if pairs.computed_ns[seq] == NOT_YET:  # it went before its prompt was computed
            c.seqs.state[seq] = CANCELLED if e.seqs.state[seq] == CANCELLED else FAILED
            c.seqs.finish[seq] = now
            tell_client(pairs, c, seq, now)
        else:
            pairs.freed_ns[seq] = now
            pairs.held -= 1


@jit
def _computed(pairs, c, engines, ready, stepping, e, seq, now):
    """Its lease begins, and a decode engine is told, unless nobody wants it any more."""
    q = c.seqs
    pairs.computed_ns[seq] = now
    pairs.held += 1
    if pairs.hands_out:
        q.first_token[seq] = e.seqs.first_token[seq]
        q.last_token[seq] = e.slots.rec[e.seqs.slot[seq], LAST_TOKEN]
        q.generated[seq] = 1
    if pairs.quit[seq] == 1 or (pairs.hands_out and q.output[seq] == 1):
        let_go(pairs, engines, ready, stepping, seq, now)
        close(c, seq, CANCELLED if pairs.quit[seq] == 1 else FINISHED, max(now, q.first_token[seq]))
        return
    leases.begin(pairs.leases, seq, now)
    push_event(c.events, pairs.leases.ends[seq], DEADLINE, DEADLINES * seq + LEASE)
    if pairs.late == 0:
        hand_over(pairs, c, engines, ready, stepping, seq, now)


@jit
def _catch_up(pairs, c, engines, ready, stepping, now):
    """The router tells the decode side of what has been computed meanwhile; nobody knows whose lease is over."""
    q = c.seqs
    for seq in range(q.state.size):
        if pairs.computed_ns[seq] != NOT_YET and pairs.handed[seq] == 0 and q.state[seq] < FIRST_TERMINAL:
            hand_over(pairs, c, engines, ready, stepping, seq, now)


@jit
def hand_over(pairs, c, engines, ready, stepping, seq, now):
    """A decode engine is told of a computed prompt, or of one that another has lost: it reads what is still held."""
    q, k = c.seqs, least_loaded(pairs)
    is_held = leases.runs(pairs.leases, seq)
    if k == NO_DECODER:
        if is_held:
            let_go(pairs, engines, ready, stepping, seq, now)
        _close_homeless(c, seq, FAILED, now)
        return
    if pairs.beating[k] == 0 and pairs.leases.interval > 0:
        pairs.beating[k] = 1
        push_event(c.events, now, DEADLINE, DEADLINES * k + BEAT)
    pairs.load[k] += 1
    pairs.handed[seq] = 1
    pairs.first_unread, pairs.last_handed = min(pairs.first_unread, seq), max(pairs.last_handed, seq)
    q.engine[seq] = k
    # without its first token its last one is computed again
    q.present[seq] = q.prompt[seq] - np.int64(not pairs.hands_out)
    if pairs.lost[seq] == HOMELESS:
        q.present[seq] *= np.int64(is_held)
        pairs.lost[seq] = NOT_LOST
    post(engines[k].inbox, ACCEPT, seq)
    wake(engines, ready, stepping, k, now)


@jit
def let_go(pairs, engines, ready, stepping, seq, now):
    """The prefill side need not hold it any longer; it does so at its next step boundary."""
    leases.end(pairs.leases, seq)
    k = pairs.legs.engine[seq]
    pairs.legs.flagged[seq] = 1
    post(engines[k].inbox, LEAVE, seq)
    wake(engines, ready, stepping, k, now)


# ---------------------------------------------------------------- news of the decode side


@jit
def _decode_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        _, seq = take(e.side.outbox)
        _read(pairs, engines, e, seq, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        pairs.load[k] -= 1
        unread = leases.runs(pairs.leases, seq) and pairs.begun_ns[seq] == NOT_YET
        if unread and pairs.tells_unread and pairs.lost[seq] == NOT_LOST:  # of a read that failed nobody is told,
            let_go(pairs, engines, ready, stepping, seq, now)  # and the dead tell nobody
        tell_client(pairs, c, seq, now)


@inline
def _read(pairs, engines, e, seq, now):
    """There is memory for it: read what is not cached here, if the prefill side still has it."""
    q, bt = e.seqs, e.rules.block_tokens
    pairs.memory_ns[seq] = now
    source = engines[pairs.legs.engine[seq]]
    slot = pairs.legs.slot[seq]
    if not leases.runs(pairs.leases, seq) and e.rules.planted & LEASE_OVER_READS:
        slot = _where_it_lay(source, seq)
    elif not leases.runs(pairs.leases, seq):
        slot = NO_SLOT
    if slot == NO_SLOT:
        pairs.arrived_ns[seq] = now
        pairs.failed += 1
        pull_decode.read_is_over(e, seq, WENT_WRONG)
        e.empty_plans = 0  # what it held is free again, and nothing else says so to an engine that waits
        return
    start = e.slots.rec[q.slot[seq], COMPUTED] // bt
    pairs.attempt[seq] += 1
    pairs.all_sent[seq] = 1
    send_blocks(pairs, source, slot, e, seq, start, (q.prompt[seq] + bt - 1) // bt, np.int64(0), now)


@inline
def _where_it_lay(e, seq):
    """FAULT: the slot whose blocks a sequence had, which may be anybody's by now."""
    rec = e.slots.rec
    for slot in range(rec.shape[0]):
        if rec[slot, SEQ] == seq and rec[slot, PHASE] == FREE_SLOT:
            return slot
    return np.int64(NO_SLOT)


# ---------------------------------------------------------------- ends


@jit
def _landed(pairs, c, engines, ready, stepping, row, now):
    """What has been read is read; of a read that failed the prefill side does not hear."""
    seq = engines[0].operations.rows[row, OP_OWNER]
    if over(pairs, engines, row, now) and pairs.mute == 0 and leases.read(pairs.leases, seq):
        pairs.legs.flagged[seq] = 1
    if pairs.lost[seq] == HOMELESS and c.seqs.state[seq] < FIRST_TERMINAL:
        move_on(pairs, c, engines, ready, stepping, seq, now)


@jit
def move_on(pairs, c, engines, ready, stepping, seq, now):
    """A sequence whose decode engine has died is given to another one when nothing moves for it any more."""
    if pairs.moving[seq] > 0:
        return
    pairs.broken[seq] = pairs.all_sent[seq] = 0
    pairs.begun_ns[seq] = pairs.arrived_ns[seq] = NOT_YET
    hand_over(pairs, c, engines, ready, stepping, seq, now)


@jit
def _close_homeless(c, seq, state, now):
    """It ends where no engine has it."""
    q = c.seqs
    note_given_up(q.spent, seq, now)
    q.engine[seq] = NO_DECODER
    close(c, seq, state, now)


@jit
def _due(pairs, c, engines, ready, stepping, subject, now):
    which, seq = subject % DEADLINES, subject // DEADLINES
    if which == BEAT:
        _beat(pairs, c, seq, now)
        return
    if which == FAULT:
        go_wrong(pairs, engines[0].links, seq)
        if pairs.late == 0:
            _catch_up(pairs, c, engines, ready, stepping, now)
        return
    if not leases.runs(pairs.leases, seq):
        return
    if not leases.expire(pairs.leases, seq, now):
        push_event(c.events, pairs.leases.ends[seq], DEADLINE, subject)
        return
    pairs.expired += 1
    if pairs.moving[seq] > 0 and engines[0].rules.planted & LEASE_OVER_READS == 0:
        pairs.legs.flagged[seq] = 1
        break_off(pairs, engines[0].operations, seq)
    else:
        let_go(pairs, engines, ready, stepping, seq, now)


@inline
def _beat(pairs, c, k, now):
    """A decode engine says what it still wants, as long as it has anything."""
    if pairs.load[k] == 0:
        pairs.beating[k] = 0
        return
    state, engine, handed, arrived = c.seqs.state, c.seqs.engine, pairs.handed, pairs.arrived_ns
    first = pairs.last_handed + 1
    for seq in range(pairs.last_handed, pairs.first_unread - 1, -1):
        if handed[seq] == 1 and arrived[seq] == NOT_YET and state[seq] < FIRST_TERMINAL:
            first = seq
            if engine[seq] == k and pairs.deaf == 0:
                leases.beat(pairs.leases, seq, now)
    pairs.first_unread = first
    pairs.beats += 1
    push_event(c.events, now + pairs.leases.interval, DEADLINE, DEADLINES * k + BEAT)


@entry
def prefill_landed(e, row):
    """The prefill engine hears of the end of a read."""
    seq = e.operations.rows[row, OP_OWNER]
    if read_is_done(e, row) and e.seqs.state[seq] == SENDING and e.seqs.flagged[seq] == 1:
        pull_prefill.let_go(e, seq)
    heard(e.operations, row)


@entry
def decode_landed(e, row):
    """The decode engine hears of the end of a read."""
    if write_is_done(e, row):
        rows = e.operations.rows
        pull_decode.read_is_over(e, rows[row, OP_OWNER], rows[row, OP_STATE] == ENDED)
    heard(e.operations, row)
