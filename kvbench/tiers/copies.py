"""What a tier holds: its copies of blocks, who is evicted first, and scratch; what is done with them is in host.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.jit import struct
from ..prefix.eviction.own_file import find_policy
from ..prefix.eviction.policies import Policy
from ..prefix.leaf_heap import EvictionOrder, make_order
from ..prefix.node import NODE_COLUMNS
from .arc import Arc, make_arc

ABSENT, COPYING, CONFIRMED = (np.int64(i) for i in range(3))
NO_SLOT = np.int64(0)
NO_PARENT = np.int64(-1)
"""Of a copy that is the first of its prefix, and of all where prefixes are not closed."""

NOBODY = np.int64(-1)

ARC, LRU = "arc", "lru"

# Counters of a tier.
WRITTEN, REFUSED, EVICTED, FOUND_BLOCKS, LOADED = range(5)
NUM_COUNTERS = 5
# WRITTEN   blocks reserved for copies. REFUSED: not copied for want of space, or offered too seldom
# FOUND_BLOCKS   blocks of prompts that it had; LOADED: blocks that came back to the device


@struct
class HostTier:
    """n slots. m blocks of the longest sequence.

    content      (n + 1,) chain hash, 0 = none. state: (n + 1,) of its copy
    holds        (n + 1,) operations that read or write it. children: copies whose parent it is, see `closed`
    parent       (n + 1,) slot of the block before it, NO_PARENT, or NO_SLOT: it is not there
    bucket       (power of two,) first slot of those whose contents fall there; after: (n + 1,) the next one
    following    (n + 1,) where the block after it was when it was last looked for: perhaps it still is
    free_head    first of num_free slots without a copy, linked by `after`, too
    listed       the order of eviction is that of a list (lru, ARC)
    order        who is evicted first, over records of prefix.node; (1, 16) where it is a list
    arc          the list, or both of ARC
    closed       a parent is not evicted before its children
    names        scratch: of the sequence `named` in namespace named_in, as far as named_stop
    row          scratch: blocks of the device
    slots, path, places   scratch, see paths
    counters     (5,) see above
    truth        (n + 1,) in check mode: the content that was really written there, whatever its state says; else (1,)
    ignores_namespace   a planted fault: a name is the tokens alone
    """

    content: "i8[::1]"
    state: "u1[::1]"
    holds: "i4[::1]"
    children: "i4[::1]"
    parent: "i4[::1]"
    bucket: "i4[::1]"
    after: "i4[::1]"
    following: "i4[::1]"
    free_head: "i8"
    num_free: "i8"
    listed: "b1"
    order: "EvictionOrder"
    arc: "Arc"
    closed: "b1"
    names: "i8[::1]"
    named: "i8"
    named_in: "i8"
    named_stop: "i8"
    row: "i4[::1]"
    slots: "i4[::1]"
    path: "i4[::1]"
    places: "i4[::1]"
    counters: "i8[::1]"
    truth: "i8[::1]"
    ignores_namespace: "b1"


def policy_of(name: str) -> Policy:
    """What a tier's policy hears of its records. Those that are lists hear of copies, and need nothing of them."""
    return find_policy(LRU if name == ARC else name)


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
    """An empty tier. longest: blocks of a sequence. block_ns, seed: see leaf_heap.make_order.

    policy   or its name. lru by its name is a list, as a policy an order of stamps (`rank`)
    """
    listed = policy in (ARC, LRU)
    num_lists = 2 if policy == ARC else 1 if listed else 0
    if isinstance(policy, str):
        policy = policy_of(policy)
    ranked = 0 if listed else num_slots
    nodes = np.zeros((ranked + 1, NODE_COLUMNS), np.int64)
    n = num_slots + 1
    after: NDArray[np.int32] = np.arange(1, n + 1, dtype=np.int32)
    after[[0, -1]] = NO_SLOT
    return HostTier(
        np.zeros(n, np.int64),
        np.zeros(n, np.uint8),
        *(np.zeros(n, np.int32) for _ in range(3)),
        np.zeros(1 << max(num_slots - 1, 0).bit_length(), np.int32),
        after,
        np.zeros(n, np.int32),
        min(num_slots, 1),
        num_slots,
        listed,
        make_order(nodes, max(ranked, 1), policy, block_ns, seed),
        make_arc(num_slots, num_lists),
        closed,
        np.zeros(longest + 1, np.int64),
        NOBODY,
        0,
        0,
        *(np.zeros(longest + 1, np.int32) for _ in range(4)),
        np.zeros(NUM_COUNTERS, np.int64),
        np.zeros(n if is_checked else 1, np.int64),
        ignores_namespace,
    )
