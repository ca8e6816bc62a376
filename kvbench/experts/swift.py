"""vllm-ascend's policy swift (its default): few moves. Experts stay at home; spare slots and swaps are chosen anew.

Of the slots of an expert the first is its home, column by column over the ranks; the others are spare. A layer that is
even enough is left alone. Else spare slots get the hottest experts again, no rank receiving two from the same home;
then the hottest rank swaps an expert with a cooler one, as long as that gains a hundredth of the mean load. What counts
as the mean is that of layer 0, for all layers. Ties are broken as there: by stable sorts read backwards, and by the
order in which a Python set of small ints is read. Sums are of float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ascend import keep_places
from .layout import F64, I64, Layout, Placement, placement_of

F32 = NDArray[np.float32]

_EVEN = 1.01
"""Most loaded over mean, below which a layer is left alone."""
_GAIN = 0.01
"""Of the mean load: what a swap has to gain."""
_SWAPS = 100
_NOBODY = -1


def place(load: I64 | F64, layout: Layout, old: I64) -> Placement:
    """Place by load; most experts stay where they are.

    load  (layers, experts) tokens
    old   (layers, slots) the map before
    """
    weights = np.asarray(load, np.float64)
    mean = float(weights[0].sum() / layout.ranks)
    rows = [_layer(w, before.reshape(layout.ranks, -1).tolist(), mean) for w, before in zip(weights, old, strict=True)]
    return placement_of(np.array(rows, np.int64).reshape(old.shape))


def _layer(weights: F64, old: list[list[int]], mean: float) -> list[list[int]]:
    """The experts of every rank, where the change is worth it."""
    uneven = imbalance(weights, old)
    if uneven < _EVEN or mean == 0.0 or len(old[0]) > weights.size:  # the last: a rank would hold an expert twice
        return old
    plan = _with_spares_filled(weights, old)
    most = _swap(plan, mean * _GAIN)
    if most / mean >= uneven:
        return old
    return [keep_places(list(box), rank) for box, rank in zip(plan.boxes, old, strict=True)]


def imbalance(weights: F64, ranks: list[list[int]]) -> float:
    """Load of the fullest rank over the mean, replicas sharing evenly; 1 without load."""
    held = np.bincount([expert for rank in ranks for expert in rank], minlength=weights.size)
    total, most = 0.0, 0.0
    for rank in ranks:
        own = 0.0
        for expert in rank:
            each = float(weights[expert] / held[expert])
            own += each
            total += each
        most = max(most, own)
    mean = total / len(ranks)
    return most / mean if abs(mean) >= 1e-9 else 1.0


# ---------------------------------------------------------------- spare slots


@dataclass
class _Plan:
    """One layer while it is placed.

    boxes     experts of each rank; what is read of them in an order is read as a set gives it
    loads     (ranks,) by weight of a replica; weight: (experts,)
    sent      (ranks, ranks) transfers from one to another
    received  experts that each rank did not have
    """

    boxes: list[set[int]]
    loads: F32
    weight: F32
    sent: I64
    received: list[set[int]]


def _with_spares_filled(weights: F64, old: list[list[int]]) -> _Plan:
    ranks = len(old)
    home, spare = _homes(old, weights.size)
    extra, weight = _chosen(weights, sum(map(len, spare)), ranks)
    slots = [[_NOBODY if i in spare[r] else expert for i, expert in enumerate(rank)] for r, rank in enumerate(old)]
    loads = _loads(slots, weight)
    sent, received = np.zeros((ranks, ranks), np.int64), [set[int]() for _ in old]
    for expert in extra:
        free = [r for r in range(ranks) if spare[r] and expert not in slots[r] and sent[home[expert], r] == 0]
        if free:
            to = min(free, key=loads.__getitem__)
            slots[to][spare[to].pop()] = expert
            loads[to] += weight[expert]
            sent[home[expert], to] += 1
            received[to].add(expert)
    if any(spare):
        weight = _fill_rest(weights, slots, spare, home, sent, received)
        loads = _loads(slots, weight)
    return _Plan([set(rank) for rank in slots], loads, weight, sent, received)


def _homes(old: list[list[int]], experts: int) -> tuple[list[int], list[list[int]]]:
    """(experts,) the rank where each is at home; (ranks,) the spare positions of each."""
    home, spare = [_NOBODY] * experts, [list[int]() for _ in old]
    for position in range(len(old[0])):
        for rank, row in enumerate(old):
            if home[row[position]] == _NOBODY:
                home[row[position]] = rank
            else:
                spare[rank].append(position)
    return home, spare


def _chosen(weights: F64, spares: int, ranks: int) -> tuple[list[int], F32]:
    """Experts of the spare slots, the hottest first; and the weight of a replica of every expert.

    An expert that gets its n-th spare slot is taken to weigh (n + 1) / (n + 2) of before, as there.
    """
    each, held = weights.copy(), np.zeros(weights.size, np.int64)
    for _ in range(spares):
        for expert in _hottest_first(each):
            n = held[expert] + 1
            if n < ranks:
                each[expert] = each[expert] * (n + 1) / (n + 2)
                held[expert] = n
                break
    weight = each.astype(np.float32)
    extra = [expert for expert in range(weights.size) for _ in range(held[expert])]
    return sorted(extra, key=lambda expert: -weight[expert]), weight


def _fill_rest(
    weights: F64,
    slots: list[list[int]],
    spare: list[list[int]],
    home: list[int],
    sent: I64,
    received: list[set[int]],
) -> F32:
    """Slots that are still free take whatever is hottest and not on the rank. Returns the weight of a replica."""
    held = np.bincount([e for rank in slots for e in rank if e != _NOBODY], minlength=weights.size)
    weight = (weights / held).astype(np.float32)
    for rank, positions in enumerate(spare):
        for position in positions:
            expert = next(int(e) for e in _hottest_first(weight) if e not in slots[rank])
            slots[rank][position] = expert
            sent[home[expert], rank] += 1
            received[rank].add(expert)
            weight[expert] = weight[expert] * (held[expert] / (held[expert] + 1))
            held[expert] += 1
    return weight


def _hottest_first(weight: F64 | F32) -> I64:
    return np.argsort(weight, kind="stable")[::-1]


def _loads(slots: list[list[int]], weight: F32) -> F32:
    loads = np.zeros(len(slots), np.float32)
    for rank, experts in enumerate(slots):
        for expert in experts:
            if expert != _NOBODY:
                loads[rank] += weight[expert]
    return loads


# ---------------------------------------------------------------- swaps


def _swap(plan: _Plan, gain: float) -> float:
    """Swap while it gains. Returns the load of the fullest rank, as it was before the last of all swaps allowed."""
    most = 0.0
    for _ in range(_SWAPS):
        order = np.argsort(plan.loads, kind="stable").tolist()
        hottest = order[-1]
        most = float(plan.loads[hottest])
        if not any(_swapped(plan, hottest, cooler, gain) for cooler in order[:-1]):
            break
    return most


def _swapped(plan: _Plan, hot: int, cool: int, gain: float) -> bool:
    """The best swap of the two is made, if they have sent each other nothing and it gains enough."""
    if plan.sent[cool, hot] or plan.sent[hot, cool]:
        return False
    out, back, most = _best_swap(plan, hot, cool)
    if out == _NOBODY or float(plan.loads[hot]) - most < gain:
        return False
    for rank, gone, come in ((hot, out, back), (cool, back, out)):
        plan.boxes[rank].remove(gone)
        plan.boxes[rank].add(come)
        plan.loads[rank] += plan.weight[come] - plan.weight[gone]
        plan.received[rank].add(come)
    plan.sent[cool, hot] += 1
    plan.sent[hot, cool] += 1
    return True


def _best_swap(plan: _Plan, hot: int, cool: int) -> tuple[int, int, float]:
    """(expert that leaves the hot rank, one that comes, load of the fuller of both then)."""
    hot_load, cool_load = float(plan.loads[hot]), plan.loads[cool]
    hot_box, cool_box = plan.boxes[hot], plan.boxes[cool]
    back = [(e, float(plan.weight[e])) for e in cool_box if e not in hot_box and e not in plan.received[cool]]
    best, most = (_NOBODY, _NOBODY), hot_load
    for expert in hot_box:
        if expert in cool_box or expert in plan.received[hot]:
            continue
        own = float(plan.weight[expert])
        for other, its in back:
            fuller = max(hot_load - own + its, cool_load - its + own)
            if fuller < most:
                best, most = (expert, other), fuller
    return *best, most
