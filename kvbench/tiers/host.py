"""Host memory, or storage, as a tier: copies of blocks under the chain hash of the prefix that each of them ends.

    find        how far the tier continues a prefix that the device has
    reserve     a slot for a copy that is about to be written, evicting if need be: COPYING
    put         a copy is written in no time
    confirm     they are written: CONFIRMED, and so found
    withdraw    they never will be: the slots are free again
    pin, unpin  an operation reads them: nobody evicts them
    touch       they were of use

A copy is ABSENT, COPYING or CONFIRMED; only confirmed ones are found. One that is copied, read, or the parent of
another one (where the rules close prefixes) is not evicted; among the others the policy chooses, any of those of the
device's cache. A slot is 1..n; record 0 belongs to the policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.jit import inline, jit, struct
from ..prefix.block_hash import EMPTY, erase, find_entry, register
from ..prefix.chain_hash import chain, root_hash
from ..prefix.eviction.ghosts import recall, remember
from ..prefix.eviction.own_file import find_policy
from ..prefix.eviction.policies import OWN, Policy
from ..prefix.keys import fill_keys
from ..prefix.leaf_heap import EvictionOrder, make_order, offer
from ..prefix.node import (
    ACCESS,
    CHILDREN,
    CREATED,
    DEPTH,
    HITS,
    KEY,
    LENGTH,
    LOCK,
    NODE_COLUMNS,
    PARENT,
    WORD_A,
    WORD_B,
)
from ..prefix.own_policy import pop_any
from . import arc
from .arc import T1, T2, Arc, make_arc

ABSENT, COPYING, CONFIRMED = (np.int64(i) for i in range(3))
NO_SLOT = np.int64(0)

ARC = "arc"

# Counters of a tier.
WRITTEN, REFUSED, EVICTED, FOUND_BLOCKS, LOADED = range(5)
NUM_COUNTERS = 5
# WRITTEN   blocks reserved for copies. REFUSED: not copied for want of space, or offered too seldom
# FOUND_BLOCKS   blocks of prompts that it had; LOADED: blocks that came back to the device


@struct
class HostTier:
    """n slots; see the columns of prefix.node for a record. m blocks of the longest sequence.

    content      (n + 1,) chain hash, 0 = none. state: (n + 1,) of its copy
    table        (tag << 32 | slot), a power of two, as in prefix.block_hash; used: entries that are not EMPTY
    free         (n,) stack of slots, the first num_free of them
    order        who is evicted first; arc: the same where the policy is ARC
    closed       a parent is not evicted before its children
    names        (m,) scratch: chain hashes of a sequence. slots: (m,) scratch. row: (m,) scratch, blocks of the device
    counters     (5,) see above
    truth        (n + 1,) in check mode: the content that was really written there, whatever its state says; else (1,)
    ignores_namespace   a planted fault: a name is the tokens alone
    """

    content: "i8[::1]"
    state: "u1[::1]"
    table: "i8[::1]"
    used: "i8"
    free: "i4[::1]"
    num_free: "i8"
    order: "EvictionOrder"
    arc: "Arc"
    closed: "b1"
    names: "i8[::1]"
    slots: "i4[::1]"
    row: "i4[::1]"
    counters: "i8[::1]"
    truth: "i8[::1]"
    ignores_namespace: "b1"


def policy_of(name: str) -> Policy:
    """What a tier's policy hears of its records. ARC hears of copies, and needs nothing of them."""
    return find_policy("lru" if name == ARC else name)


def make_host(
    num_slots: int,
    policy: Policy | str,
    closed: bool,
    longest: int,
    block_ns: Any = (),
    seed: int = 0,
    *,
    is_checked: bool = False,
    ignores_namespace: bool = False,
) -> HostTier:
    """An empty tier. policy: or its name. longest: blocks of a sequence. block_ns, seed: see leaf_heap.make_order."""
    is_arc = policy == ARC
    if isinstance(policy, str):
        policy = policy_of(policy)
    nodes = np.zeros((num_slots + 1, NODE_COLUMNS), np.int64)
    return HostTier(
        np.zeros(num_slots + 1, np.int64),
        np.zeros(num_slots + 1, np.uint8),
        np.zeros(1 << (4 * max(num_slots, 4)).bit_length(), np.int64),
        0,
        np.arange(num_slots, 0, -1).astype(np.int32),
        num_slots,
        make_order(nodes, max(num_slots, 1), policy, block_ns, seed),
        make_arc(num_slots, is_arc),
        closed,
        np.zeros(longest + 1, np.int64),
        np.zeros(longest + 1, np.int32),
        np.zeros(longest + 1, np.int32),
        np.zeros(NUM_COUNTERS, np.int64),
        np.zeros(num_slots + 1 if is_checked else 1, np.int64),
        ignores_namespace,
    )


@inline
def slot_of(tier, content):
    """The slot of a content whatever its state, or NO_SLOT."""
    return tier.table[find_entry(tier.table, tier.content, content)] & 0xFFFFFFFF


@jit
def name_blocks(tier, keys, seq, namespace, stop):
    """The chain hashes of the first blocks of a sequence into tier.names."""
    names, namespace = tier.names, np.int64(0) if tier.ignores_namespace else namespace
    fill_keys(keys, seq, 0, stop, names)
    content = root_hash(namespace)
    for i in range(stop):
        content = chain(content, names[i])
        names[i] = content


@inline
def is_wanted(tier, slot):
    """Whether a copy that is offered is not there, nor on its way. slot: of its content."""
    return slot == NO_SLOT or (tier.state[slot] == COPYING and tier.order.nodes[slot, LOCK] == 0)


@inline
def find(tier, start, stop):
    """The same for its own names."""
    return find_names(tier, tier.names, start, stop)


@jit
def find_names(tier, names, start, stop):
    """Confirmed copies of names[start:stop], from the first on without a gap, into slots. Returns where they end."""
    for i in range(start, stop):
        slot = slot_of(tier, names[i])
        if slot == NO_SLOT or tier.state[slot] != CONFIRMED:
            return i
        tier.slots[i] = slot
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
    order, nodes = tier.order, tier.order.nodes
    for i in range(stop - 1, start - 1, -1):
        slot = slot_of(tier, names[i])
        if slot != NO_SLOT:
            order.clock += 1
            nodes[slot, ACCESS] = order.clock
            nodes[slot, HITS] += 1
            if order.policy == OWN:
                on_hit = order.on_hit
                on_hit(nodes, slot, order.clock)
            _offer(tier, slot)


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
def _offer(tier, slot):
    nodes = tier.order.nodes
    if not tier.arc.is_on and nodes[slot, LOCK] == 0 and nodes[slot, CHILDREN] == 0:
        offer(tier.order, slot, tier.order.clock)


@jit
def reserve(tier, content, parent, depth):
    """A slot for a copy that is about to be written: of a content that the tier does not have, or never got.

    parent   content of the block before it; depth: blocks before it
    returns  the slot; NO_SLOT: nobody can be evicted for it
    """
    nodes = tier.order.nodes
    slot = slot_of(tier, content)
    if slot != NO_SLOT:  # its writer failed, and it could not leave
        nodes[slot, LOCK] = 1
        return slot
    if tier.num_free == 0 and not evict(tier):
        return NO_SLOT
    if (tier.used + 1) * 8 > tier.table.size * 5:
        _rebuild(tier)
    tier.num_free -= 1
    slot = np.int64(tier.free[tier.num_free])
    _, used = register(tier.table, tier.content, slot, content)
    tier.used += used
    order = tier.order
    order.clock += 1
    tier.state[slot] = COPYING
    nodes[slot, LENGTH] = nodes[slot, LOCK] = nodes[slot, HITS] = 1
    nodes[slot, ACCESS] = nodes[slot, CREATED] = order.clock
    nodes[slot, DEPTH] = depth
    nodes[slot, CHILDREN] = nodes[slot, WORD_A] = nodes[slot, WORD_B] = 0
    above = slot_of(tier, parent) if tier.closed and depth > 0 else NO_SLOT
    nodes[slot, PARENT] = above
    if above != NO_SLOT:
        nodes[above, CHILDREN] += 1
    if tier.arc.is_on:
        arc.enter(tier.arc, slot, content)
    if order.two_queues:
        nodes[slot, WORD_A] = np.int64(recall(order.ghosts, content))
    if order.policy == OWN:
        on_insert = order.on_insert
        on_insert(nodes, slot, order.clock)
    tier.counters[WRITTEN] += 1
    return slot


@jit
def put(tier, content, parent, depth):
    """A copy is written in no time; its parent stays meanwhile. False: there is no space, or no parent (closed)."""
    above = slot_of(tier, parent) if tier.closed and depth > 0 else NO_SLOT
    if above != NO_SLOT:
        tier.order.nodes[above, LOCK] += 1
    elif tier.closed and depth > 0:
        return False
    slot = reserve(tier, content, parent, depth)
    if above != NO_SLOT:
        unlock(tier, above)
    if slot != NO_SLOT:
        tier.slots[0] = slot
        if tier.truth.size > 1:
            tier.truth[slot] = content
        confirm(tier, tier.slots, 0, 1)
    return slot != NO_SLOT


@jit
def evict(tier):
    """The policy's first candidate leaves. False when there is none."""
    order, nodes = tier.order, tier.order.nodes
    slot = arc.victim(tier.arc, nodes) if tier.arc.is_on else pop_any(order, order.clock)
    if slot == NO_SLOT:
        return False
    if tier.arc.is_on:
        arc.evicted(tier.arc, slot, tier.content[slot])
    if order.two_queues and nodes[slot, KEY] < 0:
        remember(order.ghosts, tier.content[slot], np.int64(1))
    _remove(tier, slot)
    tier.counters[EVICTED] += 1
    return True


@jit
def _remove(tier, slot):
    nodes = tier.order.nodes
    if tier.arc.is_on:
        arc.leave(tier.arc, slot)
    tier.used -= erase(tier.table, tier.content[slot], slot)
    tier.content[slot] = 0
    tier.state[slot] = ABSENT
    if tier.truth.size > 1:
        tier.truth[slot] = 0
    nodes[slot, LENGTH] = 0
    parent = nodes[slot, PARENT]
    if parent != NO_SLOT:
        nodes[parent, CHILDREN] -= 1
        _offer(tier, parent)
    tier.free[tier.num_free] = slot
    tier.num_free += 1


@jit
def rank(tier, slot, stamp):
    """Put a copy where a stamp of last use says."""
    tier.order.nodes[slot, ACCESS] = stamp
    _offer(tier, slot)


@jit
def drop(tier, slot):
    """A copy without children goes, whoever holds it."""
    tier.order.nodes[slot, LOCK] = 0
    _remove(tier, slot)


@jit
def _rebuild(tier):
    """Sweep the entries of what is gone."""
    table, content = tier.table, tier.content
    for i in range(table.size):
        table[i] = EMPTY
    tier.used = 0
    for slot in range(1, content.size):
        if content[slot] != 0:
            _, used = register(table, content, slot, content[slot])
            tier.used += used


@jit
def confirm(tier, slots, first, count):
    """Copies in slots[first : first + count] are written; the operation that wrote them holds them no longer."""
    for i in range(first + count - 1, first - 1, -1):
        tier.state[slots[i]] = CONFIRMED
        unlock(tier, np.int64(slots[i]))


@jit
def withdraw(tier, slots, first, count):
    """Copies in slots[first : first + count] will never be written. One with children stays, and is never found."""
    nodes = tier.order.nodes
    for i in range(first + count - 1, first - 1, -1):
        slot = np.int64(slots[i])
        nodes[slot, LOCK] -= 1
        if nodes[slot, CHILDREN] == 0 and nodes[slot, LOCK] == 0:
            _remove(tier, slot)


@inline
def unlock(tier, slot):
    """One hold less."""
    tier.order.nodes[slot, LOCK] -= 1
    _offer(tier, slot)


@jit
def pin_present(tier, start, stop):
    """What is there of names[start:stop], or on its way, stays until unpin(tier.row). Returns how many."""
    kept = 0
    for i in range(start, stop):
        slot = slot_of(tier, tier.names[i])
        if not is_wanted(tier, slot):
            tier.row[kept] = slot
            kept += 1
    pin(tier, tier.row, 0, kept)
    return kept


@jit
def pin(tier, slots, first, count):
    """An operation reads slots[first : first + count]."""
    for i in range(first, first + count):
        tier.order.nodes[slots[i], LOCK] += 1


@jit
def unpin(tier, slots, first, count):
    """It no longer does."""
    for i in range(first + count - 1, first - 1, -1):
        unlock(tier, np.int64(slots[i]))
