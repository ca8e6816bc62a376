"""The tiers of one engine: where copies lie, the rules, and what is under way for its next step."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.jit import jit, struct
from ..memory.links import Links, add_link
from ..prefix.eviction.own_file import find_policy
from .host import HostTier, make_host
from .rules import TierRules

# Columns of Tiers.of_seq.
SINCE, TRIED, NAMESPACE, HOST_TOKENS, WAIT_QUEUED, WAIT_IN_STEPS = range(6)
# SINCE        when its fetch began. TRIED: admissions before which it has fetched. NAMESPACE: it fetched for
# HOST_TOKENS  prompt tokens that the host gave it before its first admission
# WAIT_QUEUED, WAIT_IN_STEPS   ns that it waited for them, before it was admitted and in its prefill steps
NUM_OF_SEQ = 6


@struct
class Tiers:
    """n sequences.

    link_down, link_up   of the device's link to the host: copies out, copies in
    min_offers, outputs, min_load_tokens, layerwise, layers, block_bytes, block_fragments, slowdown   see tiers.rules
    load_begin, load_end   ns: of the loads that prefill steps wait for
    wait_ns, slowed_ns   of the planned step: how much longer it takes for them, and beside copies; sum_*: of all steps
    offers, offered      (o,) contents offered so far and how often, by their hash; num_offers of them
    pending              (2 x slots + 16,) operations opened in this step for what it has computed; num_pending of them
    of_seq               (n, 6) see the columns; (1, 6) without a tier
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
    wait_ns: "i8"
    slowed_ns: "i8"
    sum_wait_ns: "i8"
    sum_slowed_ns: "i8"
    offers: "i8[::1]"
    offered: "i8[::1]"
    num_offers: "i8"
    pending: "i8[::1]"
    num_pending: "i8"
    of_seq: "i8[:,::1]"


def make_tiers(
    rules: TierRules,
    links: Links,
    num_sequences: int,
    num_slots: int,
    longest: int,
    block_ns: Any = (),
    seed: int = 0,
) -> Tiers:
    """Empty tiers; their links are added. longest: blocks of a sequence. block_ns, seed: see leaf_heap.make_order."""
    down = up = -1
    if rules.moves:
        link = rules.host_link
        down = add_link(links, link.down.setup_ns, link.down.fragment_ns, link.down.ns_per_byte, link.fair)
        beside = down if link.half_duplex else -1
        up = add_link(links, link.up.setup_ns, link.up.fragment_ns, link.up.ns_per_byte, link.fair, beside)
    counted = 1 << (4 * rules.host_blocks).bit_length() if rules.min_offers > 1 else 1
    policy = find_policy(rules.eviction or "lru")
    return Tiers(
        make_host(rules.host_blocks, policy, rules.closed, longest if rules.on else 0, block_ns, seed),
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
        0,
        0,
        0,
        0,
        np.zeros(counted, np.int64),
        np.zeros(counted, np.int64),
        0,
        np.zeros(2 * num_slots + 16 if rules.moves else 1, np.int64),
        0,
        np.zeros((num_sequences if rules.on else 1, NUM_OF_SEQ), np.int64),
    )


@jit
def times_offered(tiers, content):
    """Count one more offer of a content. Returns how often it was offered. A full table starts anew."""
    offers, mask = tiers.offers, tiers.offers.size - 1
    if tiers.num_offers * 8 > offers.size * 5:
        for i in range(offers.size):
            offers[i] = tiers.offered[i] = 0
        tiers.num_offers = 0
    at = (content >> 24) & mask
    while offers[at] != 0 and offers[at] != content:
        at = (at + 1) & mask
    if offers[at] == 0:
        offers[at] = content
        tiers.num_offers += 1
    tiers.offered[at] += 1
    return tiers.offered[at]
