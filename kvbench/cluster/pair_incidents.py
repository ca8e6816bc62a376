"""Engines of a pair die and come back empty: what the loop has to do about it, between two slices of it."""

from __future__ import annotations

import numpy as np

from ..client.clients import close, ended
from ..core.jit import entry
from ..memory.operations import heard
from ..pairs import pull
from ..pairs.loss import begin_again, lose_decode, lose_prefill
from ..pairs.state import HOMELESS
from ..routing.router import NO_ENGINE
from ..scheduler.mail import is_unread, take
from ..scheduler.side import PREFILL
from ..scheduler.state_columns import CANCELLED, FAILED, FIRST_TERMINAL, TOKENIZING
from .loss import tell_loss
from .routing import decide, left
from .world import World


@entry
def lose_of_pair(w, k, now, again):
    """Everything that an engine of a pair has fails, or comes back. Returns (n,) sequences that it never got to see."""
    e, q = w.engines[k], w.clients.seqs
    e.now, e.num_victims = now, 0
    never_seen = np.full(q.state.size, -1, np.int64)
    num = 0
    for seq in range(q.state.size):
        if q.engine[seq] == k and q.state[seq] == TOKENIZING:
            left(w, seq, now)
            if again:
                never_seen[num] = seq
                num += 1
            else:
                q.engine[seq] = NO_ENGINE
                close(w.clients, seq, FAILED, now)
    if e.side.role == PREFILL:
        lose_prefill(w.pairs, q, e)
    else:
        lose_decode(w.pairs, q, e, again and w.pairs.pulls)
    while is_unread(e.landed):  # nobody hears it any more
        heard(w.operations, take(e.landed)[1])
    tell_loss(w, e, now)
    return never_seen


@entry
def settle_pair(w, now):
    """The new engine stands in its place: who looks for another decode engine has one."""
    q = w.clients.seqs
    for seq in range(q.state.size):
        if w.pairs.lost[seq] == HOMELESS and q.state[seq] < FIRST_TERMINAL:
            pull.move_on(w.pairs, w.clients, w.engines, w.ready, w.stepping, seq, now)


def send_again(world: World, seq: int) -> None:
    """A sequence that failed with its engine is sent again; its client may have given up meanwhile."""
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        _send_again(world, seq)


@entry
def _send_again(w, seq):
    q, now = w.clients.seqs, w.now
    if q.cancel_after[seq] >= 0 and now >= q.arrival[seq] + q.cancel_after[seq]:
        q.state[seq] = CANCELLED
        ended(w.clients, seq)
        return
    begin_again(w.pairs, w.engines, q, seq)
    q.state[seq] = TOKENIZING
    decide(w, seq, now)
