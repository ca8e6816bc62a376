"""Lists of copies in order of use: one is lru. Two are ARC: copies that were of use once, and those that were again,
with a boundary that learns from what it evicted.

    t1, t2    copies seen once, and again; oldest first
    b1, b2    names of what left t1 and t2, at most as many as there are slots
    target    of t1. Who is missed and remembered in b1 raises it, in b2 lowers it

The oldest idle copy of t1 leaves when t1 has its target, else that of t2; where one has none, the other. Held copies
and such with children keep their place. An offer that is refused has learnt all the same.

source: Megiddo and Modha, FAST'03; the moves, and the target's whole part in the test, are those of vLLM 0.33's
manager of offloaded blocks.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..prefix.eviction.ghosts import Ghosts, make_ghosts, recall, remember

NEITHER, T1, T2 = (np.int64(i) for i in range(3))


@struct
class Arc:
    """n slots; empty lists where the policy is no list.

    is_on         the policy is ARC, and not lru, which has t1 alone
    member        (n + 1,) NEITHER, T1 or T2
    after, before (n + 3,) lists of t1 and t2; their heads are n + 1 and n + 2
    size          (3,) copies in each
    b1, b2        names. target: of t1, in slots
    """

    is_on: "b1"
    member: "u1[::1]"
    after: "i4[::1]"
    before: "i4[::1]"
    size: "i8[::1]"
    b1: "Ghosts"
    b2: "Ghosts"
    target: "f8"


def make_arc(num_slots: int, num_lists: int) -> Arc:
    """Nothing there, nothing learnt. num_lists: 2 is ARC, 1 lru, 0 neither."""
    n = num_slots if num_lists else 0
    own = np.arange(n + 3, dtype=np.int32)
    ghosts = [make_ghosts(n if num_lists == 2 else 0) for _ in range(2)]
    return Arc(num_lists == 2, np.zeros(n + 1, np.uint8), own, own.copy(), np.zeros(3, np.int64), *ghosts, 0.0)


@inline
def unlink(after, before, slot):
    """Out of the list that it is in."""
    after[before[slot]], before[after[slot]] = after[slot], before[slot]


@inline
def append(after, before, slot, head):
    """The youngest of the list of a head."""
    last = before[head]
    after[last], before[slot] = slot, last
    after[slot], before[head] = head, slot


@inline
def make_youngest(after, before, member, size, slot, head):
    """Of the one list that an lru has, whether it is in it or not."""
    if member[slot] == NEITHER:
        member[slot] = T1
        size[T1] += 1
    else:
        unlink(after, before, slot)
    append(after, before, slot, head)


@inline
def prepend(after, before, slot, head):
    """The oldest."""
    first = after[head]
    before[first], after[slot] = slot, first
    before[slot], after[head] = head, slot


@jit
def to_end(arc, slot, which):
    """A copy becomes the youngest of a list."""
    leave(arc, slot)
    append(arc.after, arc.before, slot, arc.member.size - 1 + which)
    arc.member[slot] = which
    arc.size[which] += 1


@jit
def leave(arc, slot):
    """A copy is in neither list."""
    if arc.member[slot] != NEITHER:
        unlink(arc.after, arc.before, slot)
        arc.size[arc.member[slot]] -= 1
        arc.member[slot] = NEITHER


@jit
def to_front(arc, slot):
    """A copy that is in neither list becomes the oldest of t1."""
    prepend(arc.after, arc.before, slot, arc.member.size - 1 + T1)
    arc.member[slot] = T1
    arc.size[T1] += 1


@jit
def enter(arc, slot, name):
    """A copy is new: whether its name is remembered has been learnt before."""
    recall(arc.b1, name)
    recall(arc.b2, name)
    to_end(arc, slot, T1)


@jit
def learn(arc, name):
    """Somebody asks for what is not there."""
    missed, other = arc.b1.blocks, arc.b2.blocks
    if recall(arc.b1, name):
        arc.target = min(float(arc.member.size - 1), arc.target + max(1.0, other / missed))
        remember(arc.b1, name, np.int64(1))
    elif recall(arc.b2, name):
        arc.target = max(0.0, arc.target - max(1.0, missed / other))
        remember(arc.b2, name, np.int64(1))


@jit
def victim(arc, holds, children):
    """The slot that leaves next, or 0. holds, children: of the tier's slots."""
    if not arc.is_on:
        return _oldest_or_passed(arc, holds, children)
    first = T1 if arc.size[T1] >= np.int64(arc.target) else T2
    slot = _oldest_idle(arc, holds, children, first)
    return slot if slot != 0 else _oldest_idle(arc, holds, children, T1 + T2 - first)


@inline
def _oldest_or_passed(arc, holds, children):
    """lru: who may not leave when it is its turn is taken off the list, so nobody looks at it twice; see to_front."""
    head, after = arc.member.size - 1 + T1, arc.after
    slot = np.int64(after[head])
    while slot != head and (holds[slot] != 0 or children[slot] != 0):
        following = np.int64(after[slot])
        leave(arc, slot)
        slot = following
    return slot if slot != head else np.int64(0)


@inline
def _oldest_idle(arc, holds, children, which):
    head, after = arc.member.size - 1 + which, arc.after
    slot = np.int64(after[head])
    while slot != head and (holds[slot] != 0 or children[slot] != 0):
        slot = np.int64(after[slot])
    return slot if slot != head else np.int64(0)


@jit
def evicted(arc, slot, name):
    """A victim leaves and is remembered."""
    ghosts = arc.b1 if arc.member[slot] == T1 else arc.b2
    leave(arc, slot)
    remember(ghosts, name, np.int64(1))
