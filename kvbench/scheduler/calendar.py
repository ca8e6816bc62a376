"""The calendar of decodes: when each sequence next needs attention, so that a plain decode step touches nobody.

A decoding sequence computes one token per decode step. Two things about it are known in advance: at which
steps its token opens (or fills) a block, and at which step it ends. So it sits in a *bucket* by the phase of
its block and, when its end is less than a block away, in a *wheel* by the step of its end. Its counters are
brought up to date (`settle`) when it is touched; between, they are what they were at step SINCE.

Nothing is approximated: every step still has its own cost, and buckets and wheel are kept in the order of the
running list, so memory is taken, published and given back in the order of the step-by-step path.

source: the calendar decode of discrete-event simulation, here with two ring indices of block_tokens places.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from .state_columns import (
    COMPUTED,
    FINAL,
    GENERATED,
    KNOWN,
    LAST_TOKEN,
    NO_SLOT,
    ORDER,
    SINCE,
)

# Rows of Calendar.links: neighbours in the bucket and in the wheel.
BUCKET_NEXT, BUCKET_PREV, WHEEL_NEXT, WHEEL_PREV = range(4)
OUTSIDE = -1
"""SINCE of a slot that is not in the calendar: its counters are true."""


@struct
class Calendar:
    """block_tokens places each: heads and tails of the buckets [0, bt) and of the wheel [bt, 2 bt).

    links        (4, slots) neighbours. counts: (bt,) sequences in each bucket. in_wheel: (slots,)
    step         decode steps so far. decoders: sequences in the calendar. context: sum of their tokens
    planned      of these, computed in the step that is planned (all or none)
    last_ns      end of the last decode step
    group_ns, group_count, num_groups   sequences that joined since then with another time of their last token
    """

    active: "b1"
    head: "i8[::1]"
    tail: "i8[::1]"
    links: "i8[:,::1]"
    counts: "i8[::1]"
    in_wheel: "u1[::1]"
    step: "i8"
    decoders: "i8"
    context: "i8"
    planned: "i8"
    last_ns: "i8"
    group_ns: "i8[::1]"
    group_count: "i8[::1]"
    num_groups: "i8"


def make_calendar(active: bool, block_tokens: int, num_slots: int) -> Calendar:
    places = block_tokens if active else 1
    slots = num_slots if active else 1
    return Calendar(
        active,
        np.full(2 * places, NO_SLOT, np.int64),
        np.full(2 * places, NO_SLOT, np.int64),
        np.full((4, slots), NO_SLOT, np.int64),
        np.zeros(places, np.int64),
        np.zeros(slots, np.uint8),
        0,
        0,
        0,
        0,
        0,
        np.zeros(2 * slots + 4, np.int64),
        np.zeros(2 * slots + 4, np.int64),
        0,
    )


@inline
def settle(cal, rec, slot):
    """Bring a slot's counters up to date."""
    since = rec[slot, SINCE]
    if since >= 0 and cal.step > since:
        passed = cal.step - since
        rec[slot, COMPUTED] += passed
        rec[slot, KNOWN] += passed
        rec[slot, GENERATED] += passed
        rec[slot, LAST_TOKEN] = cal.last_ns
        rec[slot, SINCE] = cal.step


@inline
def generated_now(cal, rec, slot):
    """Output tokens of a slot, settled or not."""
    if rec[slot, SINCE] < 0:
        return rec[slot, GENERATED]
    return rec[slot, GENERATED] + cal.step - rec[slot, SINCE]


@inline
def bucket_at(cal, bt, ahead):
    """The bucket of sequences that hold a multiple of bt tokens before the decode step `ahead` from now."""
    return (bt - (cal.step + ahead) % bt) % bt


@inline
def last_step(cal, rec, slot):
    """The decode step in which a settled slot ends."""
    return cal.step + rec[slot, FINAL] - rec[slot, GENERATED] - 1


@jit
def join(cal, rec, slot, bt):
    """A sequence begins to decode, after those that decode already."""
    rec[slot, SINCE] = cal.step
    _insert(cal, rec, slot, (rec[slot, COMPUTED] - cal.step) % bt, BUCKET_NEXT, BUCKET_PREV)
    cal.counts[(rec[slot, COMPUTED] - cal.step) % bt] += 1
    cal.in_wheel[slot] = 0
    watch_end(cal, rec, slot, bt)
    cal.decoders += 1
    cal.context += rec[slot, COMPUTED]
    if rec[slot, LAST_TOKEN] == cal.last_ns:
        return  # its next gap is everybody's
    groups = cal.num_groups
    if groups == 0 or cal.group_ns[groups - 1] != rec[slot, LAST_TOKEN]:
        cal.group_ns[groups] = rec[slot, LAST_TOKEN]
        cal.group_count[groups] = 0
        groups += 1
        cal.num_groups = groups
    cal.group_count[groups - 1] += 1


@jit
def leave(cal, rec, slot, bt):
    """A sequence stops decoding (it ended, or lost its memory). Its counters are true afterwards."""
    settle(cal, rec, slot)
    if rec[slot, LAST_TOKEN] != cal.last_ns:
        for group in range(cal.num_groups):
            if cal.group_ns[group] == rec[slot, LAST_TOKEN]:
                cal.group_count[group] -= 1
                break
    place = (rec[slot, COMPUTED] - cal.step) % bt
    _remove(cal, slot, place, BUCKET_NEXT, BUCKET_PREV)
    cal.counts[place] -= 1
    if cal.in_wheel[slot]:
        _remove(cal, slot, bt + last_step(cal, rec, slot) % bt, WHEEL_NEXT, WHEEL_PREV)
        cal.in_wheel[slot] = 0
    cal.decoders -= 1
    cal.context -= rec[slot, COMPUTED]
    rec[slot, SINCE] = OUTSIDE


@inline
def tick(cal, journal, now):
    """One decode step of all has ended: the gaps of its tokens, and everybody is one token further."""
    old = cal.decoders
    for group in range(cal.num_groups):
        note_gap(journal, now - cal.group_ns[group], cal.group_count[group])
        old -= cal.group_count[group]
    note_gap(journal, now - cal.last_ns, old)
    cal.num_groups = 0
    cal.last_ns = now
    cal.step += 1
    cal.context += cal.decoders


@jit
def note_gap(journal, gap, count):
    """`count` tokens came `gap` ns after the one before. Equal gaps in a row share a journal row."""
    if count == 0:
        return
    row = journal.rows
    if row > 0 and journal.gap[row - 1] == gap:
        journal.count[row - 1] += count
    else:
        journal.gap[row] = gap
        journal.count[row] = count
        journal.rows = row + 1


@inline
def watch_end(cal, rec, slot, bt):
    """Enter a settled slot into the wheel once its end is less than a block away."""
    if cal.in_wheel[slot] == 0 and last_step(cal, rec, slot) - cal.step < bt:
        cal.in_wheel[slot] = 1
        _insert(cal, rec, slot, bt + last_step(cal, rec, slot) % bt, WHEEL_NEXT, WHEEL_PREV)


@jit
def _insert(cal, rec, slot, place, next_, prev):
    """Sorted by the order of the running list; new ones belong to the end."""
    links = cal.links
    before = cal.tail[place]
    after = np.int64(NO_SLOT)
    while before != NO_SLOT and rec[before, ORDER] > rec[slot, ORDER]:
        after = before
        before = links[prev, before]
    links[prev, slot] = before
    links[next_, slot] = after
    if before == NO_SLOT:
        cal.head[place] = slot
    else:
        links[next_, before] = slot
    if after == NO_SLOT:
        cal.tail[place] = slot
    else:
        links[prev, after] = slot


@jit
def _remove(cal, slot, place, next_, prev):
    links = cal.links
    before, after = links[prev, slot], links[next_, slot]
    if before == NO_SLOT:
        cal.head[place] = after
    else:
        links[next_, before] = after
    if after == NO_SLOT:
        cal.tail[place] = before
    else:
        links[prev, after] = before
