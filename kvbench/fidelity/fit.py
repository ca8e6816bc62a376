"""Least squares by simulation: coefficients that make a replay behave as measured, and how well the data know each.

    coefficients -> cost tables and settings -> the same requests through the engine -> log(replayed / measured)

Each request gives two residuals, of TTFT and of TPOT, each in units of its own spread, and far ones count less (Huber).
Coefficients are fitted by their logarithms. A weak prior keeps one that the data say nothing of near its start; its
share of the information about a coefficient tells whether data or prior decided. Requests that wait in one queue
err together, so intervals come from the scatter between stretches of requests, not between requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]

_FAR = 1.5
"""Residuals beyond so many spreads count linearly."""
_SMALLEST_SPREAD = 0.01
_STEP = 0.02
"""Of a logarithm, to either side, for derivatives: larger than the jumps that single steps of an engine make."""
_ENOUGH = 1e-3
_TRIES = 8
_BLOCKS = 20

KNOWN_SHARE = 0.5
"""Of the information about a coefficient: below, the prior decided."""
WIDEST = 0.5
"""Half-width of an interval, as a share of the value: beyond, the data do not determine it."""


@dataclass(frozen=True)
class Coefficient:
    """start: its value without data; spread: of its logarithm, what is believed of it before (a standard deviation)."""

    name: str
    start: float
    spread: float
    unit: str = ""


@dataclass(frozen=True)
class Estimate:
    """low, high: 95 %. share: of the information that came from the data."""

    coefficient: Coefficient
    value: float
    low: float
    high: float
    share: float

    @property
    def is_determined(self) -> bool:
        """Whether the data say what it is."""
        half = (self.high - self.low) / 2.0
        return self.share >= KNOWN_SHARE and half <= WIDEST * self.value


@dataclass(frozen=True)
class Fit:
    """estimates in the order of the coefficients; rounds and replays that it took.

    misfit   -log of the likelihood
    spread   of the residuals of the metric that is fitted worst
    """

    estimates: tuple[Estimate, ...]
    rounds: int
    replays: int
    misfit: float
    spread: float

    @property
    def values(self) -> F64:
        return np.array([estimate.value for estimate in self.estimates])


Residuals = Callable[[F64], list[F64]]
"""Values of the coefficients -> a column of residuals for each metric, (rows,), NaN where there is none. Rows of one
column are in order of arrival."""


def fit(
    coefficients: tuple[Coefficient, ...], residuals: Residuals, most_rounds: int = 12, begin: F64 | None = None
) -> Fit:
    """Gauss-Newton with damping: a round takes two replays for each coefficient and some to find how far to go.

    begin: values to begin the search with, where they are not those that are believed before
    """
    start = np.log([c.start for c in coefficients])
    prior = np.array([c.spread for c in coefficients]) ** -2.0
    counted = _Counted(residuals)
    at = start.copy() if begin is None else np.log(begin)
    columns = counted(at)
    spreads = [_spread(column) for column in columns]
    damping, rounds = 1e-2, 0
    while rounds < most_rounds:
        rounds += 1
        slopes = _slopes(counted, at)
        normal, towards = _normal(columns, slopes, spreads)
        normal += np.diag(prior)
        towards += prior * (at - start)
        here = _cost(columns, spreads) + float(prior @ (at - start) ** 2) / 2.0
        moved = False
        for _ in range(_TRIES):
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), towards)
            tried = at + np.clip(step, -0.7, 0.7)
            found = counted(tried)
            there = _cost(found, spreads) + float(prior @ (tried - start) ** 2) / 2.0
            if there < here:
                moved = True
                break
            damping = min(damping * 4.0, 1e6)
        if not moved:
            break
        size = float(np.abs(tried - at).max())
        at, columns, damping = tried, found, max(damping / 6.0, 1e-6)
        spreads = [_spread(column) for column in columns]
        if here - there < _ENOUGH * here and size < 0.01:
            break
    estimates = _estimates(coefficients, at, columns, _slopes(counted, at), spreads, prior)
    misfit = sum(float(np.log(s)) * int((~np.isnan(c)).sum()) for c, s in zip(columns, spreads, strict=True))
    return Fit(estimates, rounds, counted.replays, misfit, max(spreads))


class _Counted:
    def __init__(self, residuals: Residuals) -> None:
        self.residuals, self.replays = residuals, 0

    def __call__(self, at: F64) -> list[F64]:
        self.replays += 1
        return self.residuals(np.exp(at))


def _slopes(residuals: _Counted, at: F64) -> list[F64]:
    """For each metric (rows, coefficients): central differences."""
    sides = []
    for i in range(at.size):
        move = np.zeros_like(at)
        move[i] = _STEP
        sides.append((residuals(at + move), residuals(at - move)))
    metrics = len(sides[0][0])
    return [np.stack([(up[m] - down[m]) / (2.0 * _STEP) for up, down in sides], axis=1) for m in range(metrics)]


def _weights(column: F64, spread: float) -> F64:
    """(rows,) of Huber's loss; 0 where there is no residual."""
    size = np.abs(column) / spread
    return np.where(np.isnan(column), 0.0, np.minimum(1.0, _FAR / np.maximum(np.nan_to_num(size), 1e-12)))


def _normal(columns: list[F64], slopes: list[F64], spreads: list[float]) -> tuple[F64, F64]:
    n = slopes[0].shape[1]
    normal, towards = np.zeros((n, n)), np.zeros(n)
    for column, slope, spread in zip(columns, slopes, spreads, strict=True):
        weight = _weights(column, spread)
        scaled, known = slope / spread, np.nan_to_num(column) / spread
        scaled = np.nan_to_num(scaled)
        normal += scaled.T @ (weight[:, None] * scaled)
        towards += scaled.T @ (weight * known)
    return normal, towards


def _cost(columns: list[F64], spreads: list[float]) -> float:
    total = 0.0
    for column, spread in zip(columns, spreads, strict=True):
        size = np.abs(column[~np.isnan(column)]) / spread
        total += float(np.where(size <= _FAR, size**2 / 2.0, _FAR * (size - _FAR / 2.0)).sum())
    return total


def _spread(column: F64) -> float:
    """Of residuals about 0, robust: one that far ones do not widen."""
    known = column[~np.isnan(column)]
    return max(float(np.median(np.abs(known))) * 1.4826, _SMALLEST_SPREAD) if known.size else 1.0


def _estimates(
    coefficients: tuple[Coefficient, ...],
    at: F64,
    columns: list[F64],
    slopes: list[F64],
    spreads: list[float],
    prior: F64,
) -> tuple[Estimate, ...]:
    """Intervals from the scatter of stretches of requests (a sandwich), and the share that the data have."""
    normal, _ = _normal(columns, slopes, spreads)
    inverse = np.linalg.inv(normal + np.diag(prior))
    scatter = np.zeros_like(normal)
    for stretch in np.array_split(np.arange(columns[0].size), min(_BLOCKS, columns[0].size)):
        _, towards = _normal([c[stretch] for c in columns], [s[stretch] for s in slopes], spreads)
        scatter += np.outer(towards, towards)
    spread = inverse @ (scatter + np.diag(prior)) @ inverse
    half = 1.96 * np.sqrt(np.maximum(np.diag(spread), 0.0))
    share = np.clip(1.0 - np.diag(inverse) * prior, 0.0, 1.0)
    values = np.exp(at)
    return tuple(
        Estimate(c, float(v), float(v * np.exp(-h)), float(v * np.exp(h)), float(s))
        for c, v, h, s in zip(coefficients, values, half, share, strict=True)
    )
