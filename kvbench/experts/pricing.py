"""One step of experts that are spread over devices: tokens by slot and device, and what each rank waits for.

A layer ends for all when the fullest device has done its experts, and when the most loaded link is done: the exchange
is a barrier of its own in every layer.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline

# Columns of terms, by rank: the query's dimensions in their order.
LOAD, ACTIVE, BYTES, FIXED = range(4)
NUM_TERMS = 4


@entry
def fill_slots(counts, experts, replica, replicas, shift, of_slots):
    """Tokens by slot: the replicas of an expert share its tokens, whole ones, the rest to whoever's turn it is.

    counts    (layers, experts)
    experts   (layers, slots) a map; replica: (layers, slots) number of it among those of its expert
    replicas  (layers, experts)
    shift     whose turn it is
    of_slots  (layers, slots) overwritten
    """
    for layer in range(experts.shape[0]):
        for slot in range(experts.shape[1]):
            expert = experts[layer, slot]
            tokens, n = counts[layer, expert], replicas[layer, expert]
            place = (replica[layer, slot] + shift + expert) % n
            of_slots[layer, slot] = tokens // n + (1 if place < tokens % n else 0)


@entry
def fill_nearest(counts, experts, served, devices, of_slots):
    """Tokens by slot where every device uses the nearest replica and tokens come from all devices alike.

    served  (layers, slots + 1, 2) devices that use the replicas of this expert before this slot, and with it
    """
    for layer in range(experts.shape[0]):
        for slot in range(experts.shape[1]):
            tokens = counts[layer, experts[layer, slot]]
            before, after = served[layer, slot, 0], served[layer, slot, 1]
            of_slots[layer, slot] = tokens * after // devices - tokens * before // devices


@entry
def price_step(of_slots, sent, prices, tp, terms, of_devices, together):
    """What each rank's query gets, and what all of them wait for.

    of_slots    (layers, slots) tokens
    sent        (ranks,) choices of the tokens of each rank's devices, one device
    prices      (6,): token_ns, read_ns, activation, pair_bytes of this step, ns a byte, fixed_ns of a layer
    tp          devices of a rank
    terms       (ranks, NUM_TERMS) overwritten
    of_devices  (layers, devices) tokens, overwritten
    together    (2,) ns of experts and of exchanges that the fullest device of each layer takes, overwritten
    """
    layers, slots = of_slots.shape
    ranks, devices = terms.shape[0], of_devices.shape[1]
    held = slots // devices
    token_ns, read_ns, activation = prices[0], prices[1], prices[2]
    pair_bytes, byte_ns, fixed_ns = prices[3], prices[4], prices[5]
    terms[:] = 0.0
    together[:] = 0.0
    for layer in range(layers):
        slowest, widest = 0.0, 0.0
        for rank in range(ranks):
            longest, products, read, most = 0.0, 0.0, 0.0, 0.0
            for device in range(rank * tp, rank * tp + tp):
                tokens, active = _of_device(of_slots, layer, device * held, held)
                of_devices[layer, device] = tokens
                weights = active + tokens * activation
                ns = max(tokens * token_ns, weights * read_ns)
                if ns > longest:
                    longest = ns
                    products = tokens if tokens * token_ns >= weights * read_ns else 0.0
                    read = 0.0 if tokens * token_ns >= weights * read_ns else weights
                most = max(most, tokens, sent[rank])
            terms[rank, LOAD] += products
            terms[rank, ACTIVE] += read
            terms[rank, BYTES] += most * pair_bytes
            terms[rank, FIXED] += fixed_ns
            slowest = max(slowest, longest)
            widest = max(widest, most * pair_bytes * byte_ns + fixed_ns)
        together[0] += slowest
        together[1] += widest


@inline
def _of_device(of_slots, layer, first, held):
    tokens, active = np.float64(0.0), np.float64(0.0)
    for slot in range(first, first + held):
        tokens += of_slots[layer, slot]
        active += np.float64(of_slots[layer, slot] > 0)
    return tokens, active
