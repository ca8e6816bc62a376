"""Arrivals at a rate that changes: a profile of pieces, and the times at which unit gaps come out of it.

A process whose gaps have mean 1 becomes one of that profile by a change of time: the k-th arrival is at the time by
which the integral of the rate has reached the sum of its first k gaps. So the same gaps give constant, Poisson and
gamma arrivals under stages, ramps, and on and off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.config import nearest
from ..core.errors import UsageError
from ..core.units import NS_PER_S, NS_PER_US
from .draws import F64, Purpose, Seeds, uniforms

I64 = NDArray[np.int64]

MAX_SECONDS = 2.0e9
"""Longest profile: 63 years."""

_MOST_TURNS = 10_000_000
"""Changes between on and off that are drawn before it is an error of the keys."""

RAMPS = ("linear", "exponential")
_STAGE_KEYS = ("rate", "seconds", "to", "ramp")


@dataclass(frozen=True)
class Profile:
    """Pieces of time, each (pieces,) float64.

    start, end    rates at both ends, requests/s
    seconds       how long
    exponential   whether the rate grows by a factor a second, and not by an amount
    """

    start: F64
    end: F64
    seconds: F64
    exponential: NDArray[np.bool_]

    def amounts(self) -> F64:
        """(pieces,) requests that each piece brings in the mean: the integral of its rate."""
        growth = np.log(np.where(self.exponential, self.end, 1.0) / np.where(self.exponential, self.start, 1.0))
        linear = (self.start + self.end) / 2 * self.seconds
        flat = growth == 0
        curved = (self.end - self.start) * self.seconds / np.where(flat, 1.0, growth)
        return np.where(self.exponential & ~flat, curved, linear)

    def times_ns(self, amounts: F64) -> I64:
        """(n,) whole microseconds, in ns, by which the rate has brought these amounts (ascending).

        Beyond the last piece its end rate goes on. UsageError: that is 0, or the times are out of reach.
        """
        reached = np.cumsum(self.amounts())
        before = np.concatenate(([0.0], reached))
        began = np.concatenate(([0.0], np.cumsum(self.seconds)))
        piece = np.searchsorted(reached, amounts, side="left")
        within = amounts - before[piece]
        last = piece == reached.size
        if last.any() and self.end[-1] <= 0:
            raise UsageError("arrivals.stages end at a rate of 0 before num_prompts have come; lower num_prompts")
        inside = np.minimum(piece, reached.size - 1)
        seconds = began[piece] + np.where(last, within / max(self.end[-1], 1e-300), self._inverse(inside, within))
        if seconds.size and seconds[-1] > MAX_SECONDS:
            raise UsageError(
                "arrivals.stages and arrivals.rate spread the requests over more than 63 years; raise them"
            )
        return np.rint(seconds * (NS_PER_S / NS_PER_US)).astype(np.int64) * NS_PER_US

    def _inverse(self, piece: NDArray[np.intp], amount: F64) -> F64:
        """Seconds into a piece by which it has brought an amount."""
        start, end, seconds = self.start[piece], self.end[piece], self.seconds[piece]
        root = start + np.sqrt(np.maximum(start * start + 2 * (end - start) * amount / seconds, 0.0))
        linear = 2 * amount / np.where(root > 0, root, 1.0)
        curved = self.exponential[piece] & (start != end)
        growth = np.where(curved, np.log(np.where(curved, end, 2.0) / np.where(curved, start, 1.0)) / seconds, 1.0)
        safe = np.where(curved, amount * growth / np.where(curved, start, 1.0), 0.0)
        return np.minimum(np.where(curved, np.log1p(np.maximum(safe, -1 + 1e-15)) / growth, linear), seconds)


def stages(tables: Sequence[Mapping[str, Any]], key: str = "arrivals.stages") -> Profile:
    """A profile from tables with rate, seconds, and for a ramp `to` and `ramp`. UsageError names stage and field."""
    rows = [_stage(table, f"{key}[{i}]") for i, table in enumerate(tables)]
    if sum(seconds for _, _, seconds, _ in rows) > MAX_SECONDS:
        raise UsageError(f"{key} last more than 63 years together; lower their seconds")
    start, end, seconds, exponential = zip(*rows, strict=True)
    profile = Profile(np.array(start), np.array(end), np.array(seconds), np.array(exponential, np.bool_))
    if profile.amounts().sum() <= 0:
        raise UsageError(f"{key} bring no request at all; one needs a rate above 0")
    return profile


def _stage(table: Mapping[str, Any], where: str) -> tuple[float, float, float, bool]:
    for name in table:
        if name not in _STAGE_KEYS:
            raise UsageError(f"{where}: a stage has no {name!r}; the nearest is {nearest(name, _STAGE_KEYS)}")
    ramp = table.get("ramp", "linear")
    if ramp not in RAMPS:
        raise UsageError(f"{where}.ramp is one of {', '.join(RAMPS)}; got {ramp!r}")
    rate = _number(table, "rate", where)
    end = _number(table, "to", where) if "to" in table else rate
    seconds = _number(table, "seconds", where)
    if seconds <= 0:
        raise UsageError(f"{where}.seconds must be above 0, got {seconds:g}")
    if ramp == "exponential" and min(rate, end) <= 0:
        raise UsageError(f"{where}: an exponential ramp needs rates above 0 at both ends; use ramp = 'linear'")
    return rate, end, seconds, ramp == "exponential"


def _number(table: Mapping[str, Any], name: str, where: str) -> float:
    value = table.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise UsageError(f"{where}.{name} must be a number from 0 to 1e9, got {value!r}")
    return float(value)


def on_off(rate: float, off_rate: float, on_s: float, off_s: float, amount: float, seeds: Seeds, phase: int) -> Profile:
    """A Markov-modulated profile that brings at least `amount` requests: exponential times on and off, by turns.

    rate       mean of the whole, requests/s; the rate while on follows from it
    off_rate   rate while off
    on_s, off_s  mean seconds of a time on and of a time off
    It begins on or off by the share of time that each takes.
    """
    on_rate = (rate * (on_s + off_s) - off_rate * off_s) / on_s
    if off_rate > rate:
        raise UsageError(f"arrivals.off_rate {off_rate:g} is above the mean arrivals.rate {rate:g}; lower it")
    turns = max(16, 2 * math.ceil(2 * amount / (rate * (on_s + off_s))))
    while turns <= _MOST_TURNS:
        u = uniforms(seeds.arrivals, Purpose.SOJOURN, turns + 1, phase)
        on = (np.arange(turns) + int(u[0] >= on_s / (on_s + off_s))) % 2 == 0
        seconds = -np.log1p(-u[1:]) * np.where(on, on_s, off_s)
        rates = np.where(on, on_rate, off_rate)
        profile = Profile(rates, rates, seconds, np.zeros(turns, np.bool_))
        if profile.amounts().sum() >= amount:
            return profile
        turns *= 2
    raise UsageError("arrivals.on_s and arrivals.off_s change millions of times before the last request; raise them")
