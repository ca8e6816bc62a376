"""The tiers of one engine: where copies lie, the rules, and what is under way for its next step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.jit import jit, struct
from ..memory.links import DELAY, Links, add_link
from .copies import HostTier, make_host
from .rules import STOP_POLICIES, StoreRules, TierRules

# Columns of Tiers.of_seq.
(
    SINCE,
    TRIED,
    NAMESPACE,
    HOST_TOKENS,
    WAIT_QUEUED,
    WAIT_IN_STEPS,
    PREFETCH_STATE,
    PREFETCH_NEXT,
    PREFETCH_END,
    STORE_TOKENS,
    NAMED,
    CONTENT,
) = range(12)
# SINCE        when its fetch began. TRIED: admissions before which it has fetched. NAMESPACE: it fetched for
# HOST_TOKENS  prompt tokens that the host gave it before its first admission
# WAIT_QUEUED, WAIT_IN_STEPS   ns that it waited for them, before it was admitted and in its prefill steps
# PREFETCH_*   its state, the next block to ask for and where it ends. STORE_TOKENS: that came before its admission
# NAMED        blocks that it has offered; CONTENT: name of the last of them
NUM_OF_SEQ = 12

PF_NEW, PF_DONE, PF_RUNS, PF_ASIDE = (np.int64(i) for i in range(4))
"""PREFETCH_STATE: not looked at yet; over, or never begun; under way; under way, and its sequence is set aside."""

# Counts of Tiers.counts, in blocks of prefetches and of storage.
ASKED_BLOCKS, ARRIVED_BLOCKS, TRUNCATED_BLOCKS, STORED_BLOCKS = range(4)


@struct
class Tiers:
    """n sequences.

    link_down, link_up   of the device's link to the host: copies out, copies in
    min_offers, outputs, min_load_tokens, layerwise, layers, block_bytes, block_fragments, slowdown   see tiers.rules
    load_begin, load_end   ns: of the loads that prefill steps wait for
    writes_back  blocks are copied when they are evicted; write_end: ns, when the last of these copies is over
    copy_ns      ns of copies between device and host that no step has been slowed by yet
    wait_ns, slowed_ns   of the planned step: how much longer it takes for them, and beside copies; sum_*: of all steps
    offers, offered      (o,) contents offered so far and how often, by their hash; num_offers of them
    pending              (2 x slots + 16,) operations opened in this step for what it has computed; num_pending of them
    of_seq               (n, 12) see the columns; (1, 12) without a tier
    store                storage, the same for all engines; store_down, store_up: links between host and storage
    timer                a link that is none: times that are up
    prefetch_min_tokens, stop_policy, timeout_ns, timeout_token_ns, batch_blocks, store_block_bytes   see StoreRules
    counts               (4,) see above
    """

    host: "HostTier"
    link_down: "i8"
    link_up: "i8"
    min_offers: "i8"
    outputs: "b1"
    min_load_tokens: "i8"
    layerwise: "b1"
    layers: "i8"
    block_bytes: "i8"
    block_fragments: "i8"
    slowdown: "f8"
    load_begin: "i8"
    load_end: "i8"
    writes_back: "b1"
    write_end: "i8"
    copy_ns: "i8"
    wait_ns: "i8"
    slowed_ns: "i8"
    sum_wait_ns: "i8"
    sum_slowed_ns: "i8"
    offers: "i8[::1]"
    offered: "u1[::1]"
    num_offers: "i8"
    pending: "i8[::1]"
    num_pending: "i8"
    of_seq: "i8[:,::1]"
    store: "HostTier"
    store_down: "i8"
    store_up: "i8"
    timer: "i8"
    prefetch_min_tokens: "i8"
    stop_policy: "i8"
    timeout_ns: "i8"
    timeout_token_ns: "f8"
    batch_blocks: "i8"
    store_block_bytes: "i8"
    counts: "i8[::1]"


@dataclass(frozen=True)
class Storage:
    """Storage of a run, and the links to it; -1 where there is none."""

    pool: HostTier
    down: int = -1
    up: int = -1
    timer: int = -1


def make_storage(rules: StoreRules, links: Links, longest: int, seed: int = 0, is_checked: bool = False) -> Storage:
    """Empty storage; its links are added. longest: blocks of a sequence."""
    pool = make_host(
        rules.blocks, rules.eviction, False, longest if rules.blocks else 0, (), seed, is_checked=is_checked
    )
    if rules.blocks == 0:
        return Storage(pool)
    down, up = (add_link(links, r.setup_ns, r.fragment_ns, r.ns_per_byte) for r in (rules.down, rules.up))
    return Storage(pool, down, up, add_link(links, 0, 0, 0, DELAY))


def make_tiers(
    rules: TierRules,
    storage: Storage,
    links: Links,
    num_sequences: int,
    num_slots: int,
    longest: int,
    block_ns: Any = (),
    seed: int = 0,
    is_checked: bool = False,
) -> Tiers:
    """Empty tiers; their links are added. longest: blocks of a sequence. block_ns, seed: see leaf_heap.make_order."""
    down = up = -1
    if rules.moves:
        link = rules.host_link
        down = add_link(links, link.down.setup_ns, link.down.fragment_ns, link.down.ns_per_byte, link.fair)
        beside = down if link.half_duplex else -1
        up = add_link(links, link.up.setup_ns, link.up.fragment_ns, link.up.ns_per_byte, link.fair, beside)
    counted = _room_for_offers(rules.host_blocks) if rules.min_offers > 1 else 1
    return Tiers(
        make_host(
            rules.host_blocks,
            rules.eviction,
            rules.closed,
            longest if rules.on else 0,
            block_ns,
            seed,
            is_checked=is_checked,
            ignores_namespace=rules.ignores_namespace,
        ),
        down,
        up,
        rules.min_offers,
        rules.outputs,
        rules.min_load_tokens,
        rules.load == "layerwise",
        rules.layers,
        rules.block_bytes,
        rules.block_fragments,
        rules.slowdown,
        0,
        0,
        rules.writes_back,
        0,
        0,
        0,
        0,
        0,
        0,
        np.zeros(counted, np.int64),
        np.zeros(counted, np.uint8),
        0,
        np.zeros(2 * num_slots + 16 if rules.moves else 1, np.int64),
        0,
        np.zeros((num_sequences if rules.on else 1, NUM_OF_SEQ), np.int64),
        storage.pool,
        storage.down,
        storage.up,
        storage.timer,
        rules.store.min_prefetch_tokens,
        STOP_POLICIES[rules.store.stop],
        rules.store.timeout_ns,
        rules.store.timeout_token_ns,
        rules.store.batch_blocks,
        rules.store.block_bytes,
        np.zeros(4, np.int64),
    )


def _room_for_offers(host_blocks: int) -> int:
    """A power of two, all to twice the blocks of the host: what comes again after seven eighths as many is new."""
    return 1 << max((host_blocks - 1).bit_length(), 4)


@jit
def times_offered(tiers, content):
    """Count one more offer of a content. Returns how often it was offered. A full table starts anew."""
    offers, mask = tiers.offers, tiers.offers.size - 1
    if tiers.num_offers * 8 > offers.size * 7:
        for i in range(offers.size):
            offers[i] = tiers.offered[i] = 0
        tiers.num_offers = 0
    at = (content >> 24) & mask
    while offers[at] != 0 and offers[at] != content:
        at = (at + 1) & mask
    if offers[at] == 0:
        offers[at] = content
        tiers.num_offers += 1
    times = min(np.int64(tiers.offered[at]) + 1, 255)
    tiers.offered[at] = times
    return times
