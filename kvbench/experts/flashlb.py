"""vllm-ascend's policy flashlb: replicas and places by what may come (mean and spread of the steps), found by search.

Experts are taken in four parts, hottest first. Each part tries more or fewer of the replicas that are left, around the
number that the whole would give it; a trial places everything, replica after replica onto the device whose load is
the lowest with a margin for its spread, and is judged by the fullest device over the mean of the steps. In the end
devices are renamed so that most experts stay where they are. A layer that is still even is left alone.

Equal loads keep the order of their index, where vllm-ascend sorts unstably. A trial whose replicas find no device
without one of them is void; vllm-ascend writes beyond its tables then.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .ascend import keep_places
from .layout import F64, I64, Layout, Placement, placement_of
from .trials import fill_devices, fullest

_MARGIN = 0.6744897501960817
"""Standard deviations: three of four loads lie below."""
_PARTS = 4
_AROUND = 8
_ROWS = 64
_FEW = 32
"""Devices, below which a layer is placed anew earlier."""


class FlashLb:
    """The policy of one run: it remembers how even each layer was when it was placed."""

    def __init__(self) -> None:
        self.even: dict[int, float] = {}

    def __call__(self, steps: F64, layout: Layout, old: I64) -> Placement:
        """(steps, layers, experts) loads, (layers, slots) the map before -> placement."""
        boxes = old.reshape(old.shape[0], layout.ranks, -1)
        rows = [self._layer(steps[:, layer] + 1.0, layer, box) for layer, box in enumerate(boxes)]
        return placement_of(np.array(rows, np.int64).reshape(old.shape))

    def _layer(self, loads: F64, layer: int, old: I64) -> I64:
        before = 1.0 / fullest(loads, np.bincount(old.ravel(), minlength=loads.shape[1]), old)
        if not self._is_uneven(layer, before, old.shape[0]):
            return old
        boxes, most = search(sampled(loads), *old.shape)
        if boxes is None:
            return old
        if 1.0 / most > before:
            self.even[layer] = 1.0 / most
        return renamed(old, boxes)

    def _is_uneven(self, layer: int, now: float, devices: int) -> bool:
        ratio, least = (0.95, 0.9) if devices < _FEW else (0.9, 0.85)
        then = self.even.get(layer, 0.0)
        return then == 0.0 or now < then * ratio or now < least


def sampled(loads: F64) -> F64:
    """At most so many rows of the newest steps, each the sum of equally many."""
    rows = min(len(loads), _ROWS)
    each = len(loads) // rows
    return loads[-each * rows :].reshape(rows, each, -1).sum(1)


def renamed(old: I64, new: I64) -> I64:
    """(devices, slots) the new devices in the order in which most experts stay; these keep their slots."""
    from scipy.optimize import linear_sum_assignment

    width = int(max(old.max(), new.max())) + 1
    before, after = (np.array([np.bincount(row, minlength=width) for row in rows]) for rows in (old, new))
    stay = np.minimum(before[:, None], after[None]).sum(-1)
    _, order = linear_sum_assignment(old.shape[1] - stay)
    rows = [keep_places(new[device].tolist(), row) for row, device in zip(old.tolist(), order, strict=True)]
    return np.array(rows, np.int64)


# ---------------------------------------------------------------- the search


def search(loads: F64, devices: int, slots: int) -> tuple[I64 | None, float]:
    """(devices, slots) experts, and the fullest device over the mean.

    loads    (rows, experts)
    returns  None: not all replicas find a device of their own
    """
    trial = _Trial(loads, devices, slots)
    order = np.argsort(-trial.risk, kind="stable")
    left, size = devices * slots - order.size, -(-order.size // _PARTS)
    replicas = np.ones(order.size, np.int64)
    for first in range(0, (_PARTS - 1) * size, size):
        if left:
            left -= _split(trial, replicas, order[first:], size, left)
    return trial.place(replicas)


def _split(trial: _Trial, replicas: I64, order: I64, size: int, left: int) -> int:
    """Deals replicas to the first `size` of these experts, and what is left to the others. Returns how many."""
    now, later = order[:size], order[size:]
    of_now = grown(trial.risk[now], left)
    if later.size == 0:
        replicas[now] = of_now[left]
        return left
    of_later = grown(trial.risk[later], left)

    def deal(extra: int) -> I64:
        replicas[now], replicas[later] = of_now[extra], of_later[left - extra]
        return replicas

    usual = int((grown(trial.risk[order], left)[left][:size] - 1).sum())
    extra = _best_near(usual, left, lambda number: trial.place(deal(number))[1])
    deal(extra)
    return extra


def _best_near(start: int, most: int, tried: Callable[[int], float]) -> int:
    """The best of the numbers near `start`, nearer ones first and less before more; from 0 to `most`."""
    best, least = start, tried(start)
    for distance in range(1, min(max(start, most - start), _AROUND) + 1):
        for number in (start - distance, start + distance):
            if 0 <= number <= most and (found := tried(number)) < least:
                best, least = number, found
    return best


def grown(risk: F64, extra: int) -> I64:
    """(extra + 1, experts) replicas when 0, 1, ... more than one each go to whoever has the highest risk a replica."""
    held = np.ones((extra + 1, risk.size), np.int64)
    for row in range(1, extra + 1):
        held[row:, (risk / held[row]).argmax()] += 1
    return held


class _Trial:
    """Places replicas by the mean of the loads and their spread."""

    def __init__(self, loads: F64, devices: int, slots: int) -> None:
        self.loads, self.shape = loads, (devices, slots)
        self.mean = loads.mean(0)
        apart, freedom = loads - self.mean, max(len(loads) - 1, 1)
        self.variance = (apart**2).sum(0) / freedom
        self.covariance = np.zeros((loads.shape[1],) * 2)
        for row in apart:  # no BLAS: the same sums on every machine
            self.covariance += row[:, None] * row / freedom
        self.risk = self.mean + _MARGIN * np.sqrt(self.variance)

    def place(self, replicas: I64) -> tuple[I64 | None, float]:
        """(devices, slots) experts, and the fullest device over the mean; None and infinity."""
        boxes = np.full(self.shape, -1, np.int64)
        order = np.argsort(-(self.mean / replicas), kind="stable")
        if not fill_devices(order, replicas, self.mean, self.variance, self.covariance, _MARGIN, boxes):
            return None, np.inf
        return boxes, float(fullest(self.loads, replicas, boxes))
