"""vLLM's prefill side of a pull: as any engine, but what is computed stays until the decode side has read it.

A parked sequence has no place in the batch, and its memory counts as used. Who lets go of it, when it has been read or
its lease is over, is not known here.

source: vLLM 0.33, NIXL connector.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, jit
from ..scheduler import kv, lifecycle, token_budget
from ..scheduler.lifecycle import count_token, first_token_out
from ..scheduler.mail import post
from ..scheduler.queues import run_remove
from ..scheduler.side import CHUNK, COMPUTED_PROMPT
from ..scheduler.spent import note_end
from ..scheduler.state import set_state
from ..scheduler.state_columns import (
    COMPUTED,
    FINISHED,
    KNOWN,
    NO_SLOT,
    PARKED,
    PHASE,
    PLAN_SLOT,
    PLAN_TOKENS,
    SENDING,
    SEQ,
)

schedule = token_budget.schedule


@entry
def commit(e):
    """The step is over at e.now: what was planned is written; whose prompt is complete is parked, with one token."""
    rec, plan = e.slots.rec, e.plan
    tokens = np.int64(0)
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        tokens += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            kv.publish_unfinished(e, slot)
            post(e.side.outbox, CHUNK, rec[slot, SEQ])
        else:
            _park(e, slot)
    e.context += tokens


@jit
def _park(e, slot):
    rec, seq = e.slots.rec, e.slots.rec[slot, SEQ]
    first_token_out(e, seq, e.now)
    count_token(rec, slot, e.now)
    run_remove(e.slots, slot)
    kv.publish_finished(e, slot)
    rec[slot, PHASE] = PARKED
    set_state(e, seq, SENDING)
    note_end(e, seq)
    post(e.side.outbox, COMPUTED_PROMPT, seq)


@entry
def let_go(e, seq):
    """It has been read, or nobody will: its memory goes back."""
    lifecycle.let_go(e, seq, FINISHED)


@entry
def cancel(e, seq):
    """Who waits or runs goes at once; a parked one stays until nobody wants it (flagged)."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT or e.slots.rec[slot, PHASE] != PARKED:
        token_budget.cancel(e, seq)
    elif e.seqs.flagged[seq] == 1:
        let_go(e, seq)
