"""Token budget by time: decodes first, then as many prompt tokens as keep the step within a target.

    step_target_ms   the whole step, decodes included: no token waits longer for others' prompts
    equal_chunks     a chunk deep in a prompt takes no longer than a whole one would at its start

The cost tables that price the step are asked, a few times for each step that has a prompt to compute. The first prompt
that goes on stands for all of them; where none does, one without context. A block is computed in any case, so that a
prompt is never barred by decodes that take longer than the target alone.

source: vllm-ascend's dynamic batch, which looks the budget up in a table of measured steps, and its profiling chunks.
"""

from __future__ import annotations

from ..core.jit import entry, jit
from ..core.units import NS_PER_MS
from ..costs.tables import add_prefill, clear, set_decode, step_ns
from .state_columns import COMPUTED, IN_DECODE, NEXT, NO_SLOT, PHASE, PLAN_START, PLAN_TOKENS
from .token_budget import drop_empty_rows, schedule_running, schedule_waiting, threshold_of


@entry
def schedule(e):
    """Fill the plan as token_budget does, decodes before prompts, which share what the target leaves."""
    e.num_plan = 0
    e.num_victims = 0
    threshold = threshold_of(e)
    e.holds_prefill = True
    budget = schedule_running(e, e.rules.max_num_batched_tokens, threshold)
    e.holds_prefill = False
    budget = _fitting(e, budget)
    budget = schedule_running(e, budget, threshold)
    if e.num_victims == 0:
        schedule_waiting(e, budget, threshold)
    drop_empty_rows(e)


@jit
def _fitting(e, budget):
    """Prompt tokens beside the planned decodes, at most `budget`: the most that keep to the target, or a block."""
    rec, plan = e.slots.rec, e.plan
    batch, context = 0, 0
    for row in range(e.num_plan):
        if plan[row, PLAN_TOKENS] > 0:
            batch += 1
            context += plan[row, PLAN_START] + 1
    slot = e.slots.head
    while slot != NO_SLOT and rec[slot, PHASE] == IN_DECODE:
        slot = rec[slot, NEXT]
    start = rec[slot, COMPUTED] if slot != NO_SLOT else 0
    whole = _time(e, 0, 0, e.rules.max_num_batched_tokens, 0) if e.rules.equal_chunks else 0
    target = int(e.rules.step_target_ms * NS_PER_MS)
    low, high = min(e.rules.block_tokens, budget), budget
    while low < high:
        middle = (low + high + 1) // 2
        within = target == 0 or _time(e, batch, context, middle, start) <= target
        if within and (whole == 0 or _time(e, 0, 0, middle, start) <= whole):
            low = middle
        else:
            high = middle - 1
    return low


@jit
def _time(e, batch, context, tokens, start):
    """Nanoseconds of a step of these decodes and one chunk."""
    clear(e.query)
    add_prefill(e.costs, e.query, tokens, start)
    if batch > 0:
        set_decode(e.query, batch, context, 0)
    return step_ns(e.costs, e.query, e.alone)
