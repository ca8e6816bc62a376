"""Load balancers of experts in plain Python: lists and loops, one layer at a time. For tests."""

from __future__ import annotations

from collections import Counter

import numpy as np


def single(value):
    return np.float32(value)


def pack(weights, packs):
    """Heaviest first into the lightest pack that is not full; equal weights by index. (pack, position) by item."""
    size = len(weights) // packs
    if size == 1:
        return [(i, 0) for i in range(len(weights))]
    totals, filled = [0.0] * packs, [0] * packs
    found = [None] * len(weights)
    for item in sorted(range(len(weights)), key=lambda i: -weights[i]):
        to = min((p for p in range(packs) if filled[p] < size), key=lambda p: totals[p])
        found[item] = (to, filled[to])
        totals[to] += float(weights[item])
        filled[to] += 1
    return found


def place(load, slots, ranks, groups, nodes):
    """The expert of every slot of one layer: vLLM's precision (float32 loads, float64 from there on)."""
    load = [single(x) for x in load]
    experts, size = len(load), len(load) // groups
    sums = [np.sum(load[g * size : (g + 1) * size], dtype=np.float32) for g in range(groups)]
    of_node = [[None] * (groups // nodes) for _ in range(nodes)]
    for group, (node, position) in enumerate(pack(sums, nodes)):
        of_node[node][position] = group
    result = []
    for node in range(nodes):
        mine = [g * size + i for g in of_node[node] for i in range(size)]
        replicas = list(range(len(mine)))
        while len(replicas) < slots // nodes:
            held = Counter(replicas)
            replicas.append(max(range(len(mine)), key=lambda i: (float(load[mine[i]]) / held[i], -i)))
        held = Counter(replicas)
        heat = [float(load[mine[i]]) / held[i] for i in replicas]
        placed = [None] * len(replicas)
        per_rank = slots // ranks
        for which, (rank, position) in enumerate(pack(heat, ranks // nodes)):
            placed[rank * per_rank + position] = mine[replicas[which]]
        result += placed
    assert len(result) == slots
    assert set(result) == set(range(experts))
    return result
