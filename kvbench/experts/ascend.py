"""vllm-ascend's default policy: replicas first, one rank after the other; the rest onto the lightest rank.

Among equal loads the higher position goes first, on a list that is ordered anew for every replica. A very hot expert
may come onto a rank twice: vllm-ascend's worker then rejects the layer and keeps the old map, and so does `place`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.errors import UsageError
from .layout import F64, I64, Layout, Placement, placement_of

Weighted = tuple[int, float]
"""An expert and its load per replica."""


def place(load: I64 | F64, layout: Layout, old: I64) -> Placement:
    """Place by load; an expert that stays on its rank keeps its slot.

    load  (layers, experts) tokens
    old   (layers, slots) the map before
    raises  UsageError: more redundant experts than ranks
    """
    if layout.redundant > layout.ranks:
        raise UsageError(
            f"vllm-ascend's default policy has one redundant expert a rank at most: {layout.redundant} of them "
            f"on {layout.ranks} ranks"
        )
    rows = [_layer(weights, layout, before) for weights, before in zip(np.asarray(load, np.float64), old, strict=True)]
    return placement_of(np.array(rows, np.int64))


def proposed(weights: F64, layout: Layout) -> list[list[int]]:
    """Experts of each rank before anybody looks at the old map: a rank may have one twice."""
    order, extra = _replicate(list(enumerate(weights.tolist())), layout.redundant)
    boxes: list[list[int]] = [[] for _ in range(layout.ranks)]
    totals = [0.0] * layout.ranks
    heat = dict(order)
    for i, expert in enumerate(extra):
        boxes[i].append(expert)
        totals[i] += heat[expert]
    for expert, weight in _hottest_first(order):
        free = [r for r in range(layout.ranks) if len(boxes[r]) < layout.slots_per_rank and expert not in boxes[r]]
        rank = min(free, key=totals.__getitem__) if free else layout.ranks - 1
        boxes[rank].append(expert)
        totals[rank] += weight
    return boxes


def _layer(weights: F64, layout: Layout, old: I64) -> list[int]:
    boxes = proposed(weights, layout)
    before = old.reshape(layout.ranks, -1).tolist()
    if any(len(set(box)) < layout.slots_per_rank or len(box) != layout.slots_per_rank for box in boxes):
        return [expert for rank in before for expert in rank]
    return [expert for box, rank in zip(boxes, before, strict=True) for expert in keep_places(box, rank)]


def keep_places(new: Sequence[int], old: Sequence[int]) -> list[int]:
    """The new experts of a rank, those that it has already where they are. An expert may be among them twice."""
    rest, kept = list(new), []
    for expert in old:
        stays = expert in rest
        kept.append(stays)
        if stays:
            rest.remove(expert)
    return [expert if stays else rest.pop(0) for expert, stays in zip(old, kept, strict=True)]


def _replicate(weights: list[Weighted], redundant: int) -> tuple[list[Weighted], list[int]]:
    """Loads per replica, and the experts that get one more replica, ascending."""
    extra: list[int] = []
    for _ in range(redundant):
        weights = _hottest_first(weights)
        expert, heat = weights[0]
        held = extra.count(expert) + 1
        weights[0] = (expert, heat * held / (held + 1))
        extra.append(expert)
    return weights, sorted(extra)


def _hottest_first(weights: list[Weighted]) -> list[Weighted]:
    order = np.argsort([heat for _, heat in weights], kind="stable")[::-1]
    return [weights[i] for i in order]
