"""Single operations on a pool of copies, from Python: for recordings of real caches."""

from __future__ import annotations

import numpy as np

from ..core.jit import entry
from . import arc, host, paths


@entry
def put(tier, content):
    """A copy is written at once. Returns its slot, or NO_SLOT: nobody can be evicted for it."""
    return tier.slots[0] if host.put(tier, content, np.int64(0), np.int64(0)) else host.NO_SLOT


@entry
def slot_of(tier, content):
    """The slot of a copy, or NO_SLOT."""
    return host.slot_of(tier, content)


@entry
def touch(tier, content):
    """A copy was of use."""
    tier.names[0] = content
    host.touch(tier, 0, 1)


@entry
def hold(tier, slot):
    """Somebody reads a copy: it stays."""
    tier.slots[0] = slot
    paths.pin(tier, tier.slots, 0, 1)


@entry
def let_go(tier, slot):
    """Undo one hold."""
    tier.slots[0] = slot
    paths.unpin(tier, tier.slots, 0, 1)


@entry
def drop(tier, slot):
    """A copy goes, whoever holds it."""
    host.drop(tier, slot)


@entry
def rank(tier, slot, stamp):
    """Put a copy where a stamp of last use says, whether it is held or not."""
    host.rank(tier, slot, stamp)


@entry
def evict(tier):
    """The policy's first candidate goes. False: there is none."""
    return host.evict(tier)


@entry
def reserve(tier, content):
    """A slot for a copy that is being written, or NO_SLOT; see host.reserve."""
    return host.reserve(tier, content, host.NO_PARENT, np.int64(0))


@entry
def end_writing(tier, slot, is_there):
    """It is written, or never will be."""
    tier.slots[0] = slot
    if is_there:
        paths.confirm(tier, tier.slots, 0, 1)
    else:
        paths.withdraw(tier, tier.slots, 0, 1)


@entry
def learn(tier, content):
    """Somebody asks for what is not there (ARC)."""
    arc.learn(tier.arc, content)


@entry
def to_end(tier, slot, which):
    """A copy becomes the youngest of t1 or t2 (ARC)."""
    arc.to_end(tier.arc, slot, which)
