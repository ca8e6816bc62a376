"""Push: the decode side has memory before anything is computed, and is written while more is (SGLang).

    SENT    -> both engines
    TURN    memory -> its page list goes to the prefill side; a chunk or a prompt computed -> its pages go out
    LANDED  the last pages are there -> both sides go on
    DUE     no memory in time -> both give up; no pages in time -> both give up

Whoever gives up while pages are under way keeps its memory until the link has done with them.
"""

from __future__ import annotations

import numpy as np

from ..client.clients import DEADLINE, close
from ..core.jit import entry, inline, jit
from ..kernels.event_heap import push_event
from ..memory.operations import ENDED, OP_OWNER, OP_STATE, heard
from ..scheduler.mail import LEAVE, is_unread, post, take
from ..scheduler.queues import take_ended
from ..scheduler.side import BROKEN, CHUNK, CONNECTED, MEMORY, TIMED_OUT_CONNECTION
from ..scheduler.state_columns import (
    BOOTSTRAPPING,
    CANCELLED,
    COMPUTED,
    FAILED,
    FIRST_TERMINAL,
    FREE_WHILE_WRITTEN,
    LAST_TOKEN,
    NO_SEQ,
    ROUTED,
    SENDING,
    TIMED_OUT,
    TRANSFERRING,
)
from . import push_decode, push_prefill, push_queue
from .loss import leg_is_over, tell_client
from .state import (
    ARRIVAL,
    BOOTSTRAP,
    DEADLINES,
    DUE,
    FAULT,
    LANDED,
    MORE_FOLLOWS,
    NO_DECODER,
    NOT_YET,
    QUIT,
    SENT,
    THE_LAST,
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
        over(pairs, engines, subject, now)
    elif what == DUE:
        _due(pairs, c, engines, ready, stepping, subject, now)
    elif k < pairs.num_prefill:
        _prefill_news(pairs, c, engines, ready, stepping, k, now)
    else:
        _decode_news(pairs, c, engines, ready, stepping, k, now)


@jit
def _sent(pairs, c, engines, ready, stepping, seq, now):
    """To both sides at once; the decode side is chosen here."""
    legs, q = pairs.legs, c.seqs
    p, d = q.engine[seq], least_loaded(pairs)
    legs.arrival[seq], legs.queued[seq] = q.arrival[seq], q.queued[seq]
    legs.engine[seq], legs.state[seq] = p, ROUTED
    push_prefill.accept(engines[p], seq)
    if d == NO_DECODER:
        push_queue.connect(engines[p], seq, BROKEN)
        wake(engines, ready, stepping, p, now)
        return
    q.engine[seq] = d
    pairs.load[d] += 1
    pairs.handed[seq] = 1
    push_decode.accept(engines[d], seq)
    push_queue.connect(engines[d], seq, CONNECTED)
    push_event(c.events, now + pairs.bootstrap_ns, DEADLINE, DEADLINES * seq + BOOTSTRAP)
    wake(engines, ready, stepping, d, now)


@jit
def _tell_to_leave(engines, ready, stepping, k, seq, now):
    post(engines[k].inbox, LEAVE, seq)
    wake(engines, ready, stepping, k, now)


@jit
def _quit(pairs, c, engines, ready, stepping, seq, now):
    """Both sides are told; what is under way keeps its memory."""
    pairs.quit[seq] = pairs.broken[seq] = 1
    if pairs.handed[seq] == 0:  # no decode engine takes it
        return
    if pairs.moving[seq] > 0:
        c.seqs.flagged[seq] = pairs.legs.flagged[seq] = 1
        break_off(pairs, engines[0].operations, seq)
        if engines[0].rules.planted & FREE_WHILE_WRITTEN:
            _tell_to_leave(engines, ready, stepping, c.seqs.engine[seq], seq, now)
        return
    _tell_to_leave(engines, ready, stepping, pairs.legs.engine[seq], seq, now)
    _tell_to_leave(engines, ready, stepping, c.seqs.engine[seq], seq, now)


# ---------------------------------------------------------------- news of the decode side


@jit
def _decode_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        kind, seq = take(e.side.outbox)
        if kind == MEMORY and pairs.broken[seq] == 0:
            _announce(pairs, c, engines, ready, stepping, e, seq, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        pairs.load[k] -= 1
        if pairs.legs.state[seq] < FIRST_TERMINAL and pairs.arrived_ns[seq] == NOT_YET:
            pairs.broken[seq] = 1
            if pairs.moving[seq] > 0:  # the prefill side hears when the link is done
                break_off(pairs, engines[0].operations, seq)
            else:
                _tell_to_leave(engines, ready, stepping, pairs.legs.engine[seq], seq, now)
        tell_client(pairs, c, seq, now)


@inline
def _announce(pairs, c, engines, ready, stepping, e, seq, now):
    """Its page list goes to the prefill side, which may compute it now."""
    pairs.memory_ns[seq] = now
    p = pairs.legs.engine[seq]
    pairs.sent[seq] = e.seqs.cached[seq] // e.rules.block_tokens
    push_queue.connect(engines[p], seq, CONNECTED)
    push_event(c.events, now + pairs.arrival_ns, DEADLINE, DEADLINES * seq + ARRIVAL)
    wake(engines, ready, stepping, p, now)


# ---------------------------------------------------------------- news of the prefill side


@jit
def _prefill_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        kind, seq = take(e.side.outbox)
        if kind == CHUNK:
            if pairs.layers > 0 and pairs.broken[seq] == 0:
                _send(pairs, c, engines, e, seq, MORE_FOLLOWS, now)
        else:
            _computed(pairs, c, engines, ready, stepping, e, seq, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        pairs.freed_ns[seq] = now
        if pairs.computed_ns[seq] != NOT_YET:
            pairs.held -= 1
        if pairs.handed[seq] == 0:
            close(c, seq, CANCELLED if pairs.quit[seq] == 1 else FAILED, now)
        elif c.seqs.state[seq] >= FIRST_TERMINAL:
            leg_is_over(pairs, c, seq, now)
        elif pairs.moving[seq] > 0:  # it has died while its pages went out: the decode side hears when the link is done
            pairs.broken[seq] = 1
            break_off(pairs, engines[0].operations, seq)
        elif pairs.arrived_ns[seq] == NOT_YET:
            pairs.broken[seq] = 1
            how = TIMED_OUT_CONNECTION if e.seqs.state[seq] == TIMED_OUT else BROKEN
            _break_decode(pairs, c, engines, ready, stepping, seq, how, now)


@jit
def _computed(pairs, c, engines, ready, stepping, e, seq, now):
    """The rest of its pages goes out, the partial one too; or nobody wants it any more."""
    q = c.seqs
    pairs.computed_ns[seq] = now
    pairs.held += 1
    if pairs.broken[seq] == 1:
        if pairs.moving[seq] == 0:
            pairs.legs.flagged[seq] = 1
            _tell_to_leave(engines, ready, stepping, e.number, seq, now)
        return
    if pairs.hands_out:
        q.first_token[seq] = e.seqs.first_token[seq]
        q.last_token[seq] = e.slots.rec[e.seqs.slot[seq], LAST_TOKEN]
    _send(pairs, c, engines, e, seq, THE_LAST, now)


@jit
def _send(pairs, c, engines, e, seq, is_last, now):
    """What is computed and has not been sent. The last transfer may be empty: its end says that all is there."""
    bt, tokens = e.rules.block_tokens, e.slots.rec[e.seqs.slot[seq], COMPUTED]
    start = pairs.sent[seq]
    stop = (tokens + bt - 1) // bt if is_last else tokens // bt
    if stop <= start and not is_last:
        return
    stop = max(stop, start)
    pairs.sent[seq] = stop
    pairs.all_sent[seq] = np.int64(is_last)
    pairs.attempt[seq] += np.int64(pairs.begun_ns[seq] == NOT_YET)
    gone = np.int64(0)
    if pairs.layers > 1:  # all but the last layer went out while the step ran, as far as time sufficed
        gone = (e.now - e.began) * (pairs.layers - 1) // pairs.layers
    send_blocks(pairs, e, e.seqs.slot[seq], engines[c.seqs.engine[seq]], seq, start, stop, gone, now)


# ---------------------------------------------------------------- ends


@jit
def _break_decode(pairs, c, engines, ready, stepping, seq, how, now):
    """It never will arrive."""
    d = c.seqs.engine[seq]
    if c.seqs.state[seq] == BOOTSTRAPPING:
        push_decode.break_connection(engines[d], seq, how)
    else:
        push_decode.transferred(engines[d], seq, how)
    wake(engines, ready, stepping, d, now)


@jit
def _due(pairs, c, engines, ready, stepping, subject, now):
    which, seq = subject % DEADLINES, subject // DEADLINES
    if which == FAULT:
        go_wrong(pairs, engines[0].links, seq)
        return
    p = pairs.legs.engine[seq]
    if which == BOOTSTRAP:
        if now - pairs.legs.queued[seq] < pairs.bootstrap_ns:
            return  # of an earlier attempt
        if push_queue.connect(engines[p], seq, TIMED_OUT_CONNECTION):
            wake(engines, ready, stepping, p, now)
    elif now - pairs.memory_ns[seq] < pairs.arrival_ns or pairs.broken[seq] == 1:
        return
    elif c.seqs.state[seq] == TRANSFERRING:
        pairs.broken[seq] = 1
        if pairs.moving[seq] > 0:
            engines[c.seqs.engine[seq]].side.connection[seq] = TIMED_OUT_CONNECTION
            break_off(pairs, engines[0].operations, seq)
        else:
            _break_decode(pairs, c, engines, ready, stepping, seq, TIMED_OUT_CONNECTION, now)


@entry
def prefill_landed(e, row):
    """The prefill engine hears of the end of a transfer."""
    if read_is_done(e, row):
        seq = e.operations.rows[row, OP_OWNER]
        if e.seqs.state[seq] == SENDING:
            push_prefill.let_go(e, seq, e.operations.rows[row, OP_STATE] == ENDED)
        elif e.seqs.state[seq] < FIRST_TERMINAL:
            push_prefill.cancel(e, seq)
    heard(e.operations, row)


@entry
def decode_landed(e, row):
    """The decode engine hears of the end of a transfer."""
    if write_is_done(e, row):
        seq = e.operations.rows[row, OP_OWNER]
        is_there = e.operations.rows[row, OP_STATE] == ENDED
        push_decode.transferred(e, seq, CONNECTED if is_there else max(e.side.connection[seq], BROKEN))
    heard(e.operations, row)
