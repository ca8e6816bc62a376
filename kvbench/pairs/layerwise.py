"""Push under a token budget: the decode side has memory first, then the prompt is computed and written layer by layer
(vllm-ascend, layerwise connector; whole: vLLM, NIXL's push).

    SENT    -> the decode engine
    TURN    memory -> the prefill engine is asked to compute it; a chunk or the prompt computed -> its blocks go out
    LANDED  the last blocks are there -> both sides go on
    DUE     no blocks in time -> both give up

Both sides are those of a pull: the decode side computes the last token of the prompt again, and so makes the first one.
What goes out is held for the link, so the prefill side may preempt, or drop, whom it sends. The decode side keeps
what is written until the link has done with it.

source: vllm-ascend of August 2026, read, not recorded.
"""

from __future__ import annotations

import numpy as np

from ..client.clients import DEADLINE, close
from ..core.jit import entry, inline, jit
from ..kernels.event_heap import push_event
from ..memory.operations import ENDED, OP_COUNT, OP_FIRST, OP_HOLDS, OP_OWNER, OP_SOURCE_EPOCH, OP_STATE, OP_TAG, heard
from ..prefix.hold import hold, let_go
from ..scheduler.mail import ACCEPT, LEAVE, is_unread, post, take
from ..scheduler.queues import take_ended
from ..scheduler.side import BROKEN, CHUNK, WENT_WELL
from ..scheduler.state_columns import CANCELLED, COMPUTED, FAILED, FIRST_TERMINAL, NO_SEQ, ROUTED, SENDING, TRANSFERRING
from . import pull_decode, pull_prefill
from .loss import leg_is_over, tell_client
from .state import (
    ARRIVAL,
    DEADLINES,
    DUE,
    FAULT,
    LANDED,
    MORE_FOLLOWS,
    NO_DECODER,
    NOT_YET,
    OUT_OF_DATE,
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
        pairs.quit[subject] = 1
        _break(pairs, c, engines, ready, stepping, subject, now)
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
    """To the decode side; which engine will prefill is known, and that one hears of it when there is memory."""
    legs, q, d = pairs.legs, c.seqs, least_loaded(pairs)
    legs.arrival[seq], legs.queued[seq], legs.engine[seq] = q.arrival[seq], q.queued[seq], q.engine[seq]
    if d == NO_DECODER:
        _break(pairs, c, engines, ready, stepping, seq, now)
        return
    q.engine[seq] = d
    q.present[seq] = q.prompt[seq] - 1  # its last token is computed again
    pairs.load[d] += 1
    pairs.handed[seq] = 1
    _post(engines, ready, stepping, d, ACCEPT, seq, now)


@jit
def _post(engines, ready, stepping, k, kind, seq, now):
    post(engines[k].inbox, kind, seq)
    wake(engines, ready, stepping, k, now)


@jit
def _break(pairs, c, engines, ready, stepping, seq, now):
    """Nothing more of it is sent."""
    pairs.broken[seq] = 1
    if pairs.moving[seq] > 0:
        break_off(pairs, engines[0].operations, seq)
    _wind_up(pairs, c, engines, ready, stepping, seq, now)


@jit
def _wind_up(pairs, c, engines, ready, stepping, seq, now):
    """One that is broken: the prefill side lets go first, the decode side when nothing is written any more either."""
    legs = pairs.legs
    if legs.state[seq] < ROUTED:  # the router counts it there: it has to be seen to end
        _ask(pairs, engines, ready, stepping, seq, now)
    if legs.state[seq] < FIRST_TERMINAL:
        if legs.flagged[seq] == 0:
            legs.flagged[seq] = 1
            _post(engines, ready, stepping, legs.engine[seq], LEAVE, seq, now)
    elif pairs.moving[seq] == 0 and pairs.handed[seq] == 1 and c.seqs.state[seq] < FIRST_TERMINAL:
        d = c.seqs.engine[seq]
        c.seqs.flagged[seq] = pairs.quit[seq]
        engines[d].side.connection[seq] = BROKEN
        _post(engines, ready, stepping, d, LEAVE, seq, now)


@jit
def _ask(pairs, engines, ready, stepping, seq, now):
    """The prefill engine has it now."""
    pairs.legs.state[seq] = ROUTED
    _post(engines, ready, stepping, pairs.legs.engine[seq], ACCEPT, seq, now)


# ---------------------------------------------------------------- news of the decode side


@jit
def _decode_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        _, seq = take(e.side.outbox)
        if pairs.broken[seq] == 0:
            _announce(pairs, c, e, seq, now)
            _ask(pairs, engines, ready, stepping, seq, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        pairs.load[k] -= 1
        if pairs.arrived_ns[seq] == NOT_YET and pairs.broken[seq] == 0:  # the dead tell nobody
            _break(pairs, c, engines, ready, stepping, seq, now)
        tell_client(pairs, c, seq, now)


@inline
def _announce(pairs, c, e, seq, now):
    """There is memory for it: the prefill side may compute it, and write what is not cached here."""
    pairs.memory_ns[seq] = now
    pairs.sent[seq] = e.slots.rec[e.seqs.slot[seq], COMPUTED] // e.rules.block_tokens
    push_event(c.events, now + pairs.arrival_ns, DEADLINE, DEADLINES * seq + ARRIVAL)


# ---------------------------------------------------------------- news of the prefill side


@jit
def _prefill_news(pairs, c, engines, ready, stepping, k, now):
    e = engines[k]
    while is_unread(e.side.outbox):
        kind, seq = take(e.side.outbox)
        if kind != CHUNK:
            pairs.computed_ns[seq] = now
            pairs.held += 1
            if pairs.broken[seq] == 0:
                _send(pairs, c, engines, e, seq, THE_LAST, now)
        elif pairs.layers > 0 and pairs.broken[seq] == 0:
            _send(pairs, c, engines, e, seq, MORE_FOLLOWS, now)
    while e.ended_head != NO_SEQ:
        seq = take_ended(e)
        pairs.freed_ns[seq] = now
        if pairs.computed_ns[seq] != NOT_YET:
            pairs.held -= 1
        if pairs.handed[seq] == 0:  # no decode engine takes it
            close(c, seq, CANCELLED if pairs.quit[seq] == 1 else FAILED, now)
        elif c.seqs.state[seq] >= FIRST_TERMINAL:
            leg_is_over(pairs, c, seq, now)
        elif pairs.arrived_ns[seq] == NOT_YET or pairs.broken[seq] == 1:
            _break(pairs, c, engines, ready, stepping, seq, now)


@jit
def _send(pairs, c, engines, e, seq, is_last, now):
    """What is computed and has not been sent. The last transfer may be empty: its end says that all is there."""
    slot, bt, start = e.seqs.slot[seq], e.rules.block_tokens, pairs.sent[seq]
    tokens = e.slots.rec[slot, COMPUTED]
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
    hold(False, e.tree, e.pool, e.slots.table[slot], start, stop, np.int64(0))
    row = send_blocks(pairs, e, slot, engines[c.seqs.engine[seq]], seq, start, stop, gone, now)
    e.operations.rows[row, OP_HOLDS] = 1


# ---------------------------------------------------------------- ends


@jit
def _landed(pairs, c, engines, ready, stepping, row, now):
    """What failed breaks the whole; what is of an older attempt means nothing."""
    seq = engines[0].operations.rows[row, OP_OWNER]
    over(pairs, engines, row, now)
    if engines[0].operations.rows[row, OP_TAG] != OUT_OF_DATE and pairs.broken[seq] == 1:
        _break(pairs, c, engines, ready, stepping, seq, now)


@jit
def _due(pairs, c, engines, ready, stepping, subject, now):
    which, seq = subject % DEADLINES, subject // DEADLINES
    if which == FAULT:
        go_wrong(pairs, engines[0].links, seq)
        return
    is_late = now - pairs.memory_ns[seq] >= pairs.arrival_ns  # else it is of an earlier attempt
    if is_late and c.seqs.state[seq] == TRANSFERRING and pairs.arrived_ns[seq] == NOT_YET and pairs.broken[seq] == 0:
        _break(pairs, c, engines, ready, stepping, seq, now)


@entry
def prefill_landed(e, row):
    """The prefill engine hears of the end of a write: the link holds its blocks no longer."""
    ops = e.operations
    rows = ops.rows
    if rows[row, OP_SOURCE_EPOCH] == e.side.epoch:
        first, count = rows[row, OP_FIRST], rows[row, OP_COUNT]
        let_go(False, e.tree, e.hashes, e.pool, ops.blocks, first, count, np.int64(0))
    seq = rows[row, OP_OWNER]
    if read_is_done(e, row) and e.seqs.state[seq] == SENDING:
        pull_prefill.let_go(e, seq)
    heard(ops, row)


@entry
def decode_landed(e, row):
    """The decode engine hears of the end of a write."""
    rows = e.operations.rows
    if write_is_done(e, row) and rows[row, OP_STATE] == ENDED:  # of what failed it hears when the prefill side is done
        pull_decode.read_is_over(e, rows[row, OP_OWNER], WENT_WELL)
    heard(e.operations, row)
