"""Who may enter SGLang's next prefill batch: the admission budget of a step.

    open_budget        what running sequences are expected to need still
    continue_chunk     the sequence in the middle of its prefill, which comes first
    look_up, add_one   one waiting sequence: its hits, then in or not, whole or cut to a chunk

The budget is in tokens, Engine.budget; what is free or evictable is read afresh each time.

source: SGLang 0.5.12 and 0.5.23; what differs between them is a rule by name in `e.rules`.
"""

from __future__ import annotations

from ..core.jit import inline, jit
from . import kv
from .calendar import generated_now
from .known_ends import NOT_MADE, fits_until_end
from .lifecycle import admit, start_of
from .queues import peek_slot, queue_remove
from .state_columns import (
    BLOCKS,
    COMPUTED,
    KNOWN,
    NEXT,
    NO_SEQ,
    NO_SLOT,
    PLAN_BLOCKS_BEFORE,
    PLAN_SLOT,
    PLAN_START,
    PLAN_TOKENS,
    SEQ,
    UNCACHED,
)
from .waiting_order import SHORTEST_PREFILL, prefill_left

# Engine.budget
TOTAL_OFFSET, INPUT_LEFT, CHUNK_LEFT, CURRENT_OFFSET = range(4)
# TOTAL_OFFSET    what running and admitted sequences are expected to need; CURRENT_OFFSET: to hold now

CONTINUE, NO_TOKEN, OTHER = range(3)
"""Look at the next one; memory is the limit, the running batch counts as full; the step's own budget is."""


@inline
def open_budget(e):
    """The budget of a step under the engine's rules; decodes that are mixed in take their part first."""
    mixed = e.slots.running if e.rules.enable_mixed_chunk else 0
    fill_budget(e, e.rules.max_prefill_tokens, e.rules.chunk_tokens, mixed)


@inline
def fill_budget(e, input_tokens, chunk_tokens, mixed):
    rec, cal, max_tokens = e.slots.rec, e.calendar, e.seqs.max_tokens
    clip, ratio = e.rules.clip_max_new_tokens, e.ratio
    if e.rules.ignore_eos and e.rules.ignore_eos_in_full:
        ratio = 1.0
    growth = 0.0  # summed in this order, each term by itself: the last bit may decide an admission
    slot = e.slots.head
    while slot != NO_SLOT:
        left = max_tokens[rec[slot, SEQ]] - generated_now(cal, rec, slot)
        growth += min(left, clip) * ratio
        slot = rec[slot, NEXT]
    e.budget[TOTAL_OFFSET] = mixed + growth
    e.budget[CURRENT_OFFSET] = mixed
    e.budget[INPUT_LEFT] = input_tokens - mixed
    e.budget[CHUNK_LEFT] = chunk_tokens - mixed
    e.num_ends = NOT_MADE


@inline
def total_left(e):
    """Tokens left if every running and admitted sequence grows as expected."""
    return kv.available(e) * e.rules.block_tokens - e.budget[TOTAL_OFFSET]


@inline
def current_left(e):
    """Tokens left for prefill right now."""
    return kv.available(e) * e.rules.block_tokens - e.budget[CURRENT_OFFSET]


@inline
def _ceil_block(e, tokens):
    return (tokens + e.rules.block_tokens - 1) // e.rules.block_tokens * e.rules.block_tokens


@inline
def _spend(e, extend, output):
    whole = _ceil_block(e, extend)
    e.budget[TOTAL_OFFSET] += whole + output + e.rules.block_tokens
    e.budget[CURRENT_OFFSET] += whole + e.rules.block_tokens
    e.budget[INPUT_LEFT] -= whole
    e.budget[CHUNK_LEFT] -= whole


@inline
def budget_state(e):
    if total_left(e) <= 0 or current_left(e) <= 0:
        return NO_TOKEN
    if e.budget[INPUT_LEFT] <= 0 or (e.rules.chunked and e.budget[CHUNK_LEFT] <= 0):
        return OTHER
    return CONTINUE


@jit
def add_row(e, slot, tokens):
    """Plan the next tokens of a slot."""
    row = e.num_plan
    e.plan[row, PLAN_SLOT] = slot
    e.plan[row, PLAN_START] = e.slots.rec[slot, COMPUTED]
    e.plan[row, PLAN_TOKENS] = tokens
    e.plan[row, PLAN_BLOCKS_BEFORE] = e.slots.rec[slot, BLOCKS]
    e.num_plan = row + 1


@inline
def continue_chunk(e):
    """The sequence in the middle of its prefill goes first; its output counts once it is complete."""
    slot = e.chunk
    rec = e.slots.rec
    left = min(int(e.budget[CHUNK_LEFT]), int(total_left(e)))
    if left <= 0:
        left = int(e.budget[CHUNK_LEFT])
    rest = rec[slot, KNOWN] - rec[slot, COMPUTED]
    if e.rules.order == SHORTEST_PREFILL:
        left = min(left, _shared_chunk(e, rest))
    tokens = min(rest, left)
    add_row(e, slot, tokens)
    if tokens < rest:
        _spend(e, tokens, 0)
    else:
        e.chunk = NO_SLOT
        _spend(e, tokens, min(e.seqs.max_tokens[rec[slot, SEQ]], e.rules.clip_max_new_tokens))


@jit
def _shared_chunk(e, rest):
    """Tokens for the chunk when those who wait and have less to compute than its rest are to have theirs, in order."""
    bt, budget = e.rules.block_tokens, int(e.budget[CHUNK_LEFT])
    if not e.rules.chunked or budget < 2 * bt:
        return rest
    reserved = 0
    seq = e.queue_head
    while seq != NO_SEQ:
        work = prefill_left(e, seq)
        if work >= rest or reserved + _ceil_block(e, work) > budget - bt:
            break
        reserved += _ceil_block(e, work)
        seq = e.seqs.queue_next[seq]
    return rest if reserved == 0 else (budget - reserved) // bt * bt


@inline
def look_up(e, seq):
    """Match all but the last token, which has to be computed. Returns what add_one needs: see kv.lookup."""
    known = e.seqs.prompt[seq] + e.seqs.generated[seq]
    return kv.lookup(e, seq, (known - 1) // e.rules.block_tokens, e.slots.table[peek_slot(e.slots)])


@inline
def add_one(e, seq, hits, link, tied):
    """Admit one waiting sequence, which has just been looked up, if the budget bears it."""
    q, rules = e.seqs, e.rules
    if 0 < rules.prefill_max_requests <= e.num_plan:
        return OTHER
    start = start_of(e, seq, hits)
    extend = q.prompt[seq] + q.generated[seq] - start
    taken = start - hits * rules.block_tokens  # memory of the KV that comes with it
    if rules.ignore_eos and rules.cache_kind == UNCACHED:
        result, tokens = _bear_to_the_end(e, seq, extend, taken)
    else:
        result, tokens = _bear(e, seq, extend, taken, tied)
    if result != CONTINUE:
        return result
    slot = peek_slot(e.slots)
    queue_remove(e, seq)
    admit(e, seq, hits, link)
    add_row(e, slot, tokens)
    output = min(q.max_tokens[seq], rules.clip_max_new_tokens)
    if tokens < extend:
        e.chunk = slot
        output = 0
    _spend(e, tokens, output)
    return budget_state(e)


@inline
def _bear(e, seq, extend, taken, tied):
    """Memory for its prompt and for the output that it may have must be left. Returns (result, tokens to compute)."""
    q, rules = e.seqs, e.rules
    left = total_left(e)
    output = min(max(q.max_tokens[seq] - q.generated[seq], 0), rules.clip_max_new_tokens)
    total = extend + output + rules.block_tokens + taken
    whole = _ceil_block(e, extend)
    too_long = whole >= e.budget[INPUT_LEFT] and e.num_plan > 0
    if total >= left:
        return NO_TOKEN, 0
    if too_long and not rules.chunks_bound_input:
        return OTHER, 0
    if total >= left - tied * rules.block_tokens:  # the hits cease to be evictable
        return NO_TOKEN, 0
    if too_long and not rules.chunked:
        return OTHER, 0
    if not rules.chunked or whole <= e.budget[CHUNK_LEFT]:
        return CONTINUE, extend
    if rules.order == SHORTEST_PREFILL and e.chunk != NO_SLOT:  # one chunk at a time, and its budget was shared
        return OTHER, 0
    tokens = int(e.budget[CHUNK_LEFT]) // rules.block_tokens * rules.block_tokens
    return CONTINUE if tokens > 0 else OTHER, tokens


@inline
def _bear_to_the_end(e, seq, extend, taken):
    """Outputs run to their declared length: all must fit until they end. A chunk is not cut to whole blocks."""
    whole = _ceil_block(e, extend) + (e.rules.block_tokens if e.rules.ignore_eos_block else 0)
    if whole + taken > min(total_left(e), current_left(e)):
        return NO_TOKEN, 0
    if not fits_until_end(e, seq, current_left(e) - whole - taken):
        return NO_TOKEN, 0
    if not e.rules.chunked or extend <= e.budget[CHUNK_LEFT]:
        return CONTINUE, extend
    tokens = int(e.budget[CHUNK_LEFT])
    return CONTINUE if tokens > 0 else OTHER, tokens
