"""SGLang's scheduler on the calendar: prefill as in `prefill_first`, decodes without a loop over the running list."""

from __future__ import annotations

from ..core.jit import entry, inline
from . import kv, prefill_first
from .calendar import BUCKET_NEXT, bucket_at, leave, settle, tick, watch_end
from .lifecycle import begin_decode
from .prefill_first import merge_batch, prefill, prepare_decode
from .state_columns import COMPUTED, KNOWN, NO_SLOT, PLAN_SLOT, PLAN_TOKENS


@entry
def schedule(e):
    """A prefill batch in the plan, or all of the calendar decodes."""
    e.num_plan = 0
    e.num_victims = 0
    e.calendar.planned = 0
    if e.chunk != NO_SLOT:
        kv.publish_chunk(e, e.chunk)
    merge_batch(e)
    if not prefill(e) and prepare_decode(e):
        _open_blocks(e)
        e.calendar.planned = e.calendar.decoders


@inline
def _open_blocks(e):
    """In order of the running list: whose token opens a block gets one."""
    cal, rec, bt = e.calendar, e.slots.rec, e.rules.block_tokens
    slot = cal.head[bucket_at(cal, bt, 0)]
    while slot != NO_SLOT:
        following = cal.links[BUCKET_NEXT, slot]
        settle(cal, rec, slot)
        if not kv.extend(e, slot, rec[slot, COMPUTED] + 1):
            e.short_of_memory = True
        watch_end(cal, rec, slot, bt)
        slot = following


@entry
def commit(e):
    """The step has ended: decodes are one token further, or the prefill batch emits its first tokens."""
    cal, rec, plan, bt = e.calendar, e.slots.rec, e.plan, e.rules.block_tokens
    if cal.planned > 0:
        place = bt + cal.step % bt
        tick(cal, e.journal, e.now)
        e.context += cal.planned
        while cal.head[place] != NO_SLOT:
            slot = cal.head[place]
            leave(cal, rec, slot, bt)
            prefill_first.finish(e, slot)
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            continue
        if begin_decode(e, slot, e.now):
            prefill_first.finish(e, slot)
        else:
            kv.publish_unfinished(e, slot)
    e.context += e.prefill_tokens


cancel = prefill_first.cancel
"""A flag: the calendar is kept by it where there is one."""
