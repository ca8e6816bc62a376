"""SGLang's scheduler on the calendar: prefill as in `prefill_first`, decodes without a loop over the running list."""

from __future__ import annotations

from ..core.jit import entry, inline
from . import kv, prefill_first
from .due import open_due
from .landing import land_decodes
from .lifecycle import begin_decode
from .prefill_first import may_prefill, open_step, prefill, prepare_decode
from .state_columns import COMPUTED, KNOWN, OUT_OF_KV, PLAN_SLOT, PLAN_TOKENS
from .waiting_order import refresh_waiting, sort_waiting


@entry
def schedule(e):
    """A prefill batch in the plan, or all of the calendar decodes."""
    open_step(e)
    e.calendar.planned = 0
    may = may_prefill(e)
    if may:
        refresh_waiting(e)
    if not (may and prefill(e)):
        _decode(e)


@entry
def schedule_sorted(e):
    """The same under a policy that sorts the waiting list first."""
    open_step(e)
    e.calendar.planned = 0
    may = may_prefill(e)
    if may:
        sort_waiting(e)
    if not (may and prefill(e)):
        _decode(e)


@inline
def _decode(e):
    if prepare_decode(e):
        if not open_due(e):
            e.fault = OUT_OF_KV
        e.calendar.planned = e.calendar.decoders


@entry
def commit(e):
    """The step has ended: decodes are one token further, or the prefill batch emits its first tokens."""
    rec, plan = e.slots.rec, e.plan
    land_decodes(e, prefill_first.finish)
    tokens = 0
    for row in range(e.num_plan):
        slot = plan[row, PLAN_SLOT]
        rec[slot, COMPUTED] += plan[row, PLAN_TOKENS]
        tokens += plan[row, PLAN_TOKENS]
        if rec[slot, COMPUTED] < rec[slot, KNOWN]:
            continue
        if begin_decode(e, slot, e.now):
            prefill_first.finish(e, slot)
        else:
            kv.publish_unfinished(e, slot)
    e.context += tokens


cancel = prefill_first.cancel
"""A flag: the calendar is kept by it where there is one."""
