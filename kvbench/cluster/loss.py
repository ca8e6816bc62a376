"""An engine is gone with all that it had: its sequences end or come back, clients and the router hear of it."""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, jit
from ..core.units import NEVER_NS
from ..routing.router import LOST
from ..scheduler import calendar
from ..scheduler.lifecycle import close_sequence, end, suspend
from ..scheduler.queues import queue_remove
from ..scheduler.side import DECODE
from ..scheduler.state_columns import FAILED, FIRST_TERMINAL, NO_SEQ, PREEMPTED, WAITING
from .loop import tell_ends
from .routing import left


@jit
def tell_loss(w, e, now):
    """Nothing of an engine is left; of prefill and decode engines a router knows the first."""
    tell_ends(w, e)
    if e.side.role != DECODE:
        w.hear(w.router, w.clients.seqs, LOST, NO_SEQ, e.number, now)
    w.stepping[e.number] = 0
    w.ready[e.number] = NEVER_NS


@entry
def lose_engine(w, k, now, again):
    """Everything that an engine has, or that is on its way there, fails or comes back. Returns (n,) to send again."""
    e, q = w.engines[k], w.clients.seqs
    e.now, e.num_victims = now, 0
    lost = np.full(q.state.size, -1, np.int64)
    num = 0
    for seq in range(q.state.size):
        if q.engine[seq] != k or q.state[seq] >= FIRST_TERMINAL:
            continue
        if q.slot[seq] >= 0:
            slot = q.slot[seq]
            calendar.settle(e.calendar, e.slots.rec, slot)
            if again:
                suspend(e, slot)
            else:
                end(e, slot, FAILED)
        else:
            if q.state[seq] == WAITING or q.state[seq] == PREEMPTED:
                queue_remove(e, seq)
            if not again:
                close_sequence(e, seq, FAILED)
        if again:
            left(w, seq, now)
            lost[num] = seq
            num += 1
    tell_loss(w, e, now)
    return lost
