"""A step has landed, row by row: what was planned is written, and sequences that are complete emit a token."""

from __future__ import annotations

import numpy as np

from ..core.jit import inline
from . import kv
from .calendar import leave, note_gap, tick
from .lifecycle import begin_decode, count_token
from .state_columns import COMPUTED, IN_DECODE, KNOWN, LAST_TOKEN, NO_SLOT, PHASE, PLAN_SLOT, PLAN_TOKENS


@inline
def land_rows(e, finish, shows_chunks):
    """Of the plan of the step that is over at e.now.

    finish         finish(e, slot): what the discipline does with a sequence whose last token is out
    shows_chunks   blocks that a chunk has filled are visible at once; else when the next chunk is scheduled
    """
    rec, plan, now = e.slots.rec, e.plan, e.now
    tokens = 0
    gap, same = np.int64(0), np.int64(0)  # tokens that had this gap and are not in the journal yet
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        tokens += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            if shows_chunks:
                kv.publish_unfinished(e, slot)
        elif rec[slot, PHASE] == IN_DECODE:
            if now - rec[slot, LAST_TOKEN] != gap:
                note_gap(e.journal, gap, same)
                gap, same = now - rec[slot, LAST_TOKEN], np.int64(0)
            same += 1
            if count_token(rec, slot, now):
                finish(e, slot)
        elif begin_decode(e, slot, now):
            finish(e, slot)
        else:
            kv.publish_unfinished(e, slot)
    note_gap(e.journal, gap, same)
    e.context += tokens


@inline
def land_decodes(e, finish):
    """On the calendar: everybody in it is one token further, and who has ended leaves it."""
    cal, bt = e.calendar, e.rules.block_tokens
    if cal.planned > 0:
        place = bt + cal.step % bt
        tick(cal, e.journal, e.now)
        e.context += cal.planned
        while cal.head[place] != NO_SLOT:
            slot = cal.head[place]
            leave(cal, e.slots.rec, slot, bt)
            finish(e, slot)
