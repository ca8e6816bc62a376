"""The blocks of a prefix in a tier, all at once: what a run does for every prompt.

    hold_path      who of them is there, or on its way, stays
    reserve_path   slots for copies of the others that are about to be written
    release_path   they stay no longer, and are the youngest now, the start of the prefix last
    confirm, withdraw, pin, unpin   see host.py, of slots that lie in an array

The same as one after the other by `host`. Here each array is taken from its struct once and not for every block, which
is most of the time otherwise; the order of a list (lru) is kept in line, that of other policies by `host`.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..prefix.node import LOCK
from . import host
from .arc import NEITHER, T1, append, make_youngest, prepend, to_front, unlink
from .copies import ABSENT, CONFIRMED, COPYING, EVICTED, NO_PARENT, NO_SLOT, WRITTEN
from .host import find_next, find_slot, place_of, unchain

LEFT_OUT = np.int32(-(1 << 30))
"""In a path: no copy is to be made of this one."""


@jit
def hold_path(tier, names, start, stop, path):
    """Slots of names[start:stop] into path[start:stop]; each stays until `release_path`.

    NO_SLOT: there is none; -slot: there is one that nobody has written, nor is writing, and that could not leave
    """
    bucket, after, contents, state, holds = tier.bucket, tier.after, tier.content, tier.state, tier.holds
    nodes, ranked, following, found = tier.order.nodes, not tier.listed, tier.following, NO_SLOT
    missing, closed = False, tier.closed
    for i in range(start, stop):
        if missing:
            path[i] = NO_SLOT
            continue
        found = find_next(bucket, after, contents, following, found, names[i])
        slot, missing = found, closed and found == NO_SLOT  # nothing stays behind what has left
        if slot != NO_SLOT and state[slot] == COPYING and holds[slot] == 0:
            slot = -slot
        elif slot != NO_SLOT:
            holds[slot] += 1
            if ranked:
                nodes[slot, LOCK] += 1
        path[i] = slot


@jit
def reserve_path(tier, names, start, stop, path, orphans):
    """Slots for what a path has none of from start on, each behind the one before it, into the path, which holds them.

    path      of `hold_path`, from the one before start on, where the tier is closed
    orphans   a planted fault: also where the one before it is not there
    returns   (how many: their slots are tier.slots[:count], their places in the path tier.places[:count];
              where it ended: nobody can leave for this one, or the one before it is not there)
    """
    if tier.arc.is_on or not tier.listed:
        return _reserve_one_by_one(tier, names, start, stop, path, orphans)
    new, end = np.int64(0), stop
    for i in range(start, stop):
        if (
            tier.closed
            and i > 0
            and path[i] <= 0
            and not orphans
            and (path[i - 1] <= 0 if i == start else path[i - 1] == LEFT_OUT)
        ):
            end = i
            break
        new += np.int64(path[i] == NO_SLOT)
        if LEFT_OUT < path[i] < 0:  # its writer failed, and it could not leave; nor may it now
            tier.holds[-path[i]] += 1
    if new > tier.num_free:
        _make_way(tier, new - tier.num_free)
    count, taken_to = _take_slots(tier, names, start, end, path)
    for i in range(taken_to, end):
        if LEFT_OUT < path[i] < 0:
            tier.holds[-path[i]] -= 1
    return count, taken_to


@jit
def _take_slots(tier, names, start, stop, path):
    contents, state, holds, children, parent = tier.content, tier.state, tier.holds, tier.children, tier.parent
    bucket, after, slots, places = tier.bucket, tier.after, tier.slots, tier.places
    younger, older, member, size = tier.arc.after, tier.arc.before, tier.arc.member, tier.arc.size
    head, closed = member.size - 1 + T1, tier.closed
    count, free, num_free, following = np.int64(0), tier.free_head, tier.num_free, tier.following
    end, written = stop, np.int64(0)
    for i in range(start, stop):
        slot = np.int64(path[i])
        if slot > 0 or slot == LEFT_OUT:
            continue
        if slot < 0:
            slot = -slot
            holds[slot] -= 1
        elif num_free == 0:
            end = i
            break
        else:
            slot, free, num_free = free, np.int64(after[free]), num_free - 1
            place = place_of(bucket, names[i])
            after[slot], bucket[place] = bucket[place], slot
            contents[slot], state[slot], parent[slot] = names[i], COPYING, NO_PARENT
            if closed and i > 0:
                above = max(np.int64(path[i - 1]), NO_SLOT)
                parent[slot] = above
                children[above] += np.int32(above > 0)
            if i > start and path[i - 1] > 0:
                following[path[i - 1]] = slot
            append(younger, older, slot, head)
            member[slot] = T1
            written += 1
        holds[slot] += 2
        path[i] = slots[count] = slot
        places[count] = i
        count += 1
    tier.free_head, tier.num_free = free, num_free
    size[T1] += written
    tier.counters[WRITTEN] += written
    return count, end


@jit
def _make_way(tier, count):
    """Up to `count` copies leave, as by host.evict under lru."""
    contents, state, holds, children, parent = tier.content, tier.state, tier.holds, tier.children, tier.parent
    bucket, after, truth, checked = tier.bucket, tier.after, tier.truth, tier.truth.size > 1
    younger, older, member, size = tier.arc.after, tier.arc.before, tier.arc.member, tier.arc.size
    head, free, left = member.size - 1 + T1, tier.free_head, np.int64(0)
    slot = np.int64(younger[head])
    while slot != head and left < count:
        following = np.int64(younger[slot])
        unlink(younger, older, slot)
        member[slot] = NEITHER
        size[T1] -= 1
        if holds[slot] == 0 and children[slot] == 0:
            unchain(bucket, after, contents, slot)
            contents[slot], state[slot] = 0, ABSENT
            if checked:
                truth[slot] = 0
            above = np.int64(parent[slot])
            if above > NO_SLOT:
                children[above] -= 1
                if member[above] == NEITHER and holds[above] == 0 and children[above] == 0:
                    prepend(younger, older, above, head)
                    member[above] = T1
                    size[T1] += 1
                    following = above
            after[slot], free = free, slot
            left += 1
        slot = following
    tier.free_head = free
    tier.num_free += left
    tier.counters[EVICTED] += left


@jit
def _reserve_one_by_one(tier, names, start, stop, path, orphans):
    count = np.int64(0)
    for i in range(start, stop):
        if path[i] > 0 or path[i] == LEFT_OUT:
            continue
        above = NO_PARENT
        if tier.closed and i > 0:
            above = max(np.int64(path[i - 1]), NO_SLOT)
            if above == NO_SLOT and not orphans:
                return count, i
        slot = host.reserve(tier, names[i], above, i)
        if slot == NO_SLOT:
            return count, i
        host.add_hold(tier, slot, 1)
        path[i] = tier.slots[count] = slot
        tier.places[count] = i
        count += 1
    return count, stop


@jit
def release_path(tier, start, stop, path, keeps_order):
    """What a path holds is let go and becomes the youngest, its start last. ARC moves nothing.

    keeps_order   nothing is moved under other policies, too
    """
    if keeps_order or tier.arc.is_on or not tier.listed:
        for i in range(stop - 1, start - 1, -1):
            slot = np.int64(path[i])
            if slot > 0 and not keeps_order:
                host.stamp(tier, slot)
            if slot > 0:
                host.unlock(tier, slot)
        return
    younger, older, member, size, holds = tier.arc.after, tier.arc.before, tier.arc.member, tier.arc.size, tier.holds
    head = member.size - 1 + T1
    for i in range(stop - 1, start - 1, -1):
        slot = np.int64(path[i])
        if slot > 0:
            make_youngest(younger, older, member, size, slot, head)
            holds[slot] -= 1


@jit
def count_uses(tier, path, start, stop):
    """What a path holds was of use. Policies that are lists do not count."""
    if not tier.listed:
        for i in range(stop - 1, start - 1, -1):
            if path[i] > 0:
                host.count_use(tier, np.int64(path[i]))


@jit
def touch(tier, names, start, stop):
    """host.touch_names."""
    if tier.arc.is_on or not tier.listed:
        host.touch_names(tier, names, start, stop)
        return
    bucket, after, contents = tier.bucket, tier.after, tier.content
    younger, older, member, size = tier.arc.after, tier.arc.before, tier.arc.member, tier.arc.size
    head = member.size - 1 + T1
    for i in range(stop - 1, start - 1, -1):
        slot = find_slot(bucket, after, contents, names[i])
        if slot == NO_SLOT:
            continue
        make_youngest(younger, older, member, size, slot, head)


@jit
def confirm(tier, slots, first, count):
    """Copies in slots[first : first + count] are written; the operation that wrote them holds them no longer."""
    state = tier.state
    for i in range(first, first + count):
        state[slots[i]] = CONFIRMED
    unpin(tier, slots, first, count)


@jit
def withdraw(tier, slots, first, count):
    """Copies in slots[first : first + count] will never be written. One with children stays, and is never found."""
    for i in range(first + count - 1, first - 1, -1):
        host.give_up(tier, np.int64(slots[i]))


@jit
def pin(tier, slots, first, count):
    """An operation reads slots[first : first + count]."""
    holds, nodes, ranked = tier.holds, tier.order.nodes, not tier.listed
    for i in range(first, first + count):
        holds[slots[i]] += 1
        if ranked:
            nodes[slots[i], LOCK] += 1


@jit
def unpin(tier, slots, first, count):
    """It no longer does."""
    if not tier.listed:
        for i in range(first + count - 1, first - 1, -1):
            host.unlock(tier, np.int64(slots[i]))
        return
    holds, children, member, own = tier.holds, tier.children, tier.arc.member, tier.arc
    for i in range(first + count - 1, first - 1, -1):
        slot = slots[i]
        holds[slot] -= 1
        if member[slot] == NEITHER and holds[slot] == 0 and children[slot] == 0:
            to_front(own, np.int64(slot))  # its turn had come while it could not leave
