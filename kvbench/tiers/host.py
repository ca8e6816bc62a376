"""Host memory, or storage, as a tier: copies of blocks under the chain hash of the prefix that each of them ends.

    find        how far the tier continues a prefix that the device has
    reserve     a slot for a copy that is about to be written, evicting if need be: COPYING
    put         a copy is written in no time: CONFIRMED, and so found
    give_up     it never will be written
    unlock      an operation that holds a copy does so no longer
    touch       copies were of use: they are counted, and become the youngest
    stamp       one becomes the youngest

What a run does for all blocks of a prompt at once is in paths.py.

A copy is ABSENT, COPYING or CONFIRMED; only confirmed ones are found. One that is copied, read, or the parent of
another one (where the rules close prefixes) is not evicted; among the others the policy chooses, any of those of the
device's cache. Under lru and ARC it is a list of copies, oldest first, in which the blocks of a prefix lie from its
end to its start; under the others a heap over records as the device's cache has them. A slot is 1..n.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..prefix.chain_hash import chain, root_hash
from ..prefix.eviction.ghosts import recall, remember
from ..prefix.eviction.policies import OWN
from ..prefix.keys import fill_keys
from ..prefix.leaf_heap import offer
from ..prefix.node import (
    ACCESS,
    CHILDREN,
    CREATED,
    DEPTH,
    HITS,
    KEY,
    LENGTH,
    LOCK,
    WORD_A,
    WORD_B,
)
from ..prefix.own_policy import pop_any
from . import arc
from .arc import NEITHER, T1, T2
from .copies import ABSENT, CONFIRMED, COPYING, EVICTED, NO_PARENT, NO_SLOT, NOBODY, WRITTEN


@jit
def make_room(tier, count):
    """Scratch for `count` copies: what is written back is of many sequences, and may be more than the longest."""
    if tier.slots.size < count:
        tier.slots, tier.path = np.zeros(2 * count, np.int32), np.zeros(2 * count, np.int32)
        tier.places, tier.names = np.zeros(2 * count, np.int32), np.zeros(2 * count, np.int64)
        tier.named = NOBODY


@inline
def place_of(bucket, content):
    return (content >> 1) & (bucket.size - 1)  # the last bit of a chain hash is always set


@inline
def unchain(bucket, after, contents, slot):
    """Out of the bucket of its content."""
    place = place_of(bucket, contents[slot])
    if bucket[place] == slot:
        bucket[place] = after[slot]
    else:
        before = bucket[place]
        while after[before] != slot:
            before = after[before]
        after[before] = after[slot]


@inline
def find_slot(bucket, after, contents, content):
    slot = bucket[place_of(bucket, content)]
    while slot != 0 and contents[slot] != content:
        slot = after[slot]
    return np.int64(slot)


@inline
def find_next(bucket, after, contents, following, before, content):
    """The same, of the block after the one in slot `before`: most often it is where it was."""
    slot = np.int64(following[before])
    if contents[slot] != content:
        slot = find_slot(bucket, after, contents, content)
        following[before] = slot
    return slot


@inline
def slot_of(tier, content):
    """The slot of a content whatever its state, or NO_SLOT."""
    return find_slot(tier.bucket, tier.after, tier.content, content)


@jit
def name_blocks(tier, keys, seq, namespace, stop):
    """The names of the first blocks of a sequence into tier.names."""
    if tier.named != seq or tier.named_in != namespace or tier.named_stop < stop:
        root = root_hash(np.int64(0) if tier.ignores_namespace else namespace)
        name_rest(tier, keys, seq, root, np.int64(0), stop)
        tier.named, tier.named_in, tier.named_stop = seq, namespace, stop


@jit
def name_rest(tier, keys, seq, content, start, stop):
    """The same for blocks start .. stop, of which `content` is the name of the one before."""
    names = tier.names
    tier.named = NOBODY
    fill_keys(keys, seq, start, stop, names)
    for i in range(start, stop):
        content = chain(content, names[i])
        names[i] = content


@inline
def is_wanted(tier, slot):
    """Whether a copy that is offered is not there, nor on its way. slot: of its content."""
    return slot == NO_SLOT or (tier.state[slot] == COPYING and tier.holds[slot] == 0)


@inline
def find(tier, start, stop):
    """The same for its own names."""
    return find_names(tier, tier.names, start, stop)


@jit
def find_names(tier, names, start, stop):
    """Confirmed copies of names[start:stop], from the first on without a gap, into slots. Returns where they end."""
    bucket, after, contents, state, slots = tier.bucket, tier.after, tier.content, tier.state, tier.slots
    following, slot = tier.following, NO_SLOT
    for i in range(start, stop):
        slot = find_next(bucket, after, contents, following, slot, names[i])
        if slot == NO_SLOT or state[slot] != CONFIRMED:
            return i
        slots[i] = slot
    return stop


@inline
def touch(tier, start, stop):
    """The same for its own names."""
    touch_names(tier, tier.names, start, stop)


@jit
def touch_names(tier, names, start, stop):
    """Copies of names[start:stop] were of use; the last first, so that tails leave before heads."""
    if tier.arc.is_on:
        _touch_arc(tier, names, start, stop)
        return
    for i in range(stop - 1, start - 1, -1):
        slot = slot_of(tier, names[i])
        if slot != NO_SLOT:
            count_use(tier, slot)
            stamp(tier, slot)


@jit
def _touch_arc(tier, names, start, stop):
    for i in range(stop - 1, start - 1, -1):
        slot = slot_of(tier, names[i])
        if slot == NO_SLOT:
            arc.learn(tier.arc, names[i])
        else:
            is_again = tier.state[slot] == CONFIRMED or tier.arc.member[slot] == T2
            arc.to_end(tier.arc, slot, T2 if is_again else T1)


@inline
def count_use(tier, slot):
    """A copy was of use. Policies that are lists do not count."""
    order, nodes = tier.order, tier.order.nodes
    if not tier.listed:
        nodes[slot, HITS] += 1
        if order.policy == OWN:
            on_hit = order.on_hit
            on_hit(nodes, slot, order.clock + 1)


@jit
def stamp_names(tier, names, start, stop):
    """Copies of names[start:stop] become the youngest, the first of them last."""
    for i in range(stop - 1, start - 1, -1):
        slot = slot_of(tier, names[i])
        if slot != NO_SLOT:
            stamp(tier, slot)


@inline
def stamp(tier, slot):
    """A copy becomes the youngest. ARC moves nothing."""
    if not tier.listed:
        order = tier.order
        order.clock += 1
        order.nodes[slot, ACCESS] = order.clock
        _offer(tier, slot)
    elif not tier.arc.is_on:
        arc.to_end(tier.arc, slot, T1)


@inline
def _offer(tier, slot):
    """A copy may be a candidate again. lru: one whose turn had come while it was none is the next to leave."""
    if tier.holds[slot] == 0 and tier.children[slot] == 0:
        if not tier.listed:
            offer(tier.order, slot, tier.order.clock)
        elif tier.arc.member[slot] == NEITHER:
            arc.to_front(tier.arc, slot)


@inline
def add_hold(tier, slot, by):
    """More or fewer operations hold a copy."""
    tier.holds[slot] += by
    if not tier.listed:
        tier.order.nodes[slot, LOCK] += by


@inline
def _adopt(tier, slot, by):
    """A copy has more or fewer children."""
    tier.children[slot] += by
    if not tier.listed:
        tier.order.nodes[slot, CHILDREN] += by


@jit
def reserve(tier, content, above, depth):
    """A slot for a copy that is about to be written: of a content that the tier does not have, or never got.

    above    slot of the block before it, NO_PARENT or NO_SLOT, see HostTier.parent. depth: blocks before it
    returns  the slot; NO_SLOT: nobody can be evicted for it
    """
    slot = slot_of(tier, content)
    if slot != NO_SLOT:  # its writer failed, and it could not leave
        add_hold(tier, slot, 1)
        return slot
    if tier.num_free == 0:
        if above > NO_SLOT:
            add_hold(tier, above, 1)
        is_free = evict(tier)
        if above > NO_SLOT:
            unlock(tier, above)
        if not is_free:
            return NO_SLOT
    slot, after = tier.free_head, tier.after
    tier.free_head = np.int64(after[slot])
    tier.num_free -= 1
    place = place_of(tier.bucket, content)
    after[slot] = tier.bucket[place]
    tier.bucket[place] = slot
    tier.content[slot] = content
    tier.state[slot] = COPYING
    tier.parent[slot] = above
    if above > NO_SLOT:
        _adopt(tier, above, 1)
    if tier.arc.is_on:
        arc.enter(tier.arc, slot, content)
    elif tier.listed:
        arc.to_end(tier.arc, slot, T1)
    else:
        _introduce(tier.order, slot, content, depth)
    add_hold(tier, slot, 1)
    tier.counters[WRITTEN] += 1
    return slot


@jit
def _introduce(order, slot, content, depth):
    """The record of a copy that is new."""
    nodes = order.nodes
    order.clock += 1
    nodes[slot, LENGTH] = nodes[slot, HITS] = 1
    nodes[slot, ACCESS] = nodes[slot, CREATED] = order.clock
    nodes[slot, DEPTH] = depth
    nodes[slot, LOCK] = nodes[slot, CHILDREN] = nodes[slot, WORD_A] = nodes[slot, WORD_B] = 0
    if order.two_queues:
        nodes[slot, WORD_A] = np.int64(recall(order.ghosts, content))
    if order.policy == OWN:
        on_insert = order.on_insert
        on_insert(nodes, slot, order.clock)


@jit
def put(tier, content, parent, depth):
    """A copy is written in no time. parent: content of the block before it.

    False: there is no space, or no parent (closed)
    """
    above = slot_of(tier, parent) if tier.closed and depth > 0 else NO_PARENT
    if above == NO_SLOT:
        return False
    slot = reserve(tier, content, above, depth)
    if slot != NO_SLOT:
        tier.slots[0] = slot
        if tier.truth.size > 1:
            tier.truth[slot] = content
        tier.state[slot] = CONFIRMED
        unlock(tier, slot)
    return slot != NO_SLOT


@jit
def evict(tier):
    """The policy's first candidate leaves. False when there is none."""
    order = tier.order
    slot = arc.victim(tier.arc, tier.holds, tier.children) if tier.listed else pop_any(order, order.clock)
    if slot == NO_SLOT:
        return False
    if tier.arc.is_on:
        arc.evicted(tier.arc, slot, tier.content[slot])
    if order.two_queues and order.nodes[slot, KEY] < 0:
        remember(order.ghosts, tier.content[slot], np.int64(1))
    _remove(tier, slot)
    tier.counters[EVICTED] += 1
    return True


@jit
def _remove(tier, slot):
    unchain(tier.bucket, tier.after, tier.content, slot)
    tier.content[slot] = 0
    tier.state[slot] = ABSENT
    if tier.truth.size > 1:
        tier.truth[slot] = 0
    if tier.listed:
        arc.leave(tier.arc, slot)
    else:
        tier.order.nodes[slot, LENGTH] = 0
    parent = np.int64(tier.parent[slot])
    if parent > NO_SLOT:
        _adopt(tier, parent, -1)
        _offer(tier, parent)
    tier.after[slot] = tier.free_head
    tier.free_head = slot
    tier.num_free += 1


@jit
def rank(tier, slot, stamp):
    """Put a copy where a stamp of last use says. Not for lists."""
    tier.order.nodes[slot, ACCESS] = stamp
    _offer(tier, slot)


@jit
def drop(tier, slot):
    """A copy without children goes, whoever holds it."""
    add_hold(tier, slot, -tier.holds[slot])
    _remove(tier, slot)


@jit
def give_up(tier, slot):
    """A copy will never be written: whoever was to write it holds it no longer. With children it stays, never found."""
    add_hold(tier, slot, -1)
    if tier.children[slot] == 0 and tier.holds[slot] == 0:
        _remove(tier, slot)


@inline
def unlock(tier, slot):
    """One hold less."""
    add_hold(tier, slot, -1)
    _offer(tier, slot)
