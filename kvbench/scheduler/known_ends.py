"""SGLang's admission when outputs run to their declared length and nothing is cached (ignore_eos, no radix tree).

Who ends when is known then, so it is simulated: a candidate may enter if, one end after another, those that are
still alive always fit. The sequences of a step stand in a list (tokens left, tokens held), the first to end in
front: Engine.ends, made by the first candidate of a step, to which each further candidate is added.

source: SGLang 0.5.12, place of a late candidate included: where nobody has as much left it goes before the last
one, not behind it.
"""

from __future__ import annotations

from ..core.jit import inline, jit
from .calendar import generated_now
from .state_columns import GENERATED, NEXT, NO_SLOT, PLAN_SLOT, SEQ

# Rows of Engine.ends.
LEFT, HELD = range(2)
NOT_MADE = -1
"""Engine.num_ends before the first candidate of a step."""


@jit
def fits_until_end(e, seq, free):
    """Note a candidate, and tell whether all fit until they end. free: tokens left once it has its prompt."""
    q = e.seqs
    left = q.max_tokens[seq] - q.generated[seq]
    held = q.prompt[seq] + q.generated[seq]
    if e.num_ends == NOT_MADE:
        _make_list(e, left, held)
    elif left > 0:
        _add_late(e, left, held)
    lefts, helds, num = e.ends[LEFT], e.ends[HELD], e.num_ends
    freed = 0
    for i in range(num):
        alive = num - i
        if free + freed - lefts[i] * alive <= alive:  # one token each in reserve
            return False
        freed += helds[i]
    return True


@inline
def _make_list(e, left, held):
    """The candidate, the running ones and those admitted in this step, sorted by what they have left."""
    rec, q = e.slots.rec, e.seqs
    e.num_ends = 0
    _insert(e, left, held)
    slot = e.slots.head
    while slot != NO_SLOT:
        seq = rec[slot, SEQ]
        generated = generated_now(e.calendar, rec, slot)
        _insert(e, q.max_tokens[seq] - generated, q.prompt[seq] + generated)
        slot = rec[slot, NEXT]
    for row in range(e.num_plan):
        slot = e.plan[row, PLAN_SLOT]
        seq = rec[slot, SEQ]
        _insert(e, q.max_tokens[seq] - rec[slot, GENERATED], q.prompt[seq] + rec[slot, GENERATED])


@jit
def _insert(e, left, held):
    """Behind those who have as much left; nobody who has nothing left."""
    if left > 0:
        place = e.num_ends
        while place > 0 and e.ends[LEFT, place - 1] > left:
            place -= 1
        _put(e.ends, e.num_ends, place, left, held)
        e.num_ends += 1


@inline
def _put(ends, num, place, left, held):
    for i in range(num, place, -1):
        ends[LEFT, i], ends[HELD, i] = ends[LEFT, i - 1], ends[HELD, i - 1]
    ends[LEFT, place], ends[HELD, place] = left, held


@inline
def _add_late(e, left, held):
    ends, num = e.ends, e.num_ends
    place = 0
    while place < num and left > ends[LEFT, place]:
        place += 1
    if place == num:
        place = max(num - 1, 0)
    _put(ends, num, place, left, held)
    e.num_ends = num + 1
