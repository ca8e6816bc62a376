"""Distributions as quantile functions: uniforms in, values out, the same on every version of every library.

    fixed        value
    uniform      min, max (both ends included)
    normal       mean, sigma (standard deviation)
    lognormal    mean (of the values) or median, and sigma (standard deviation of the natural logarithm);
                 or p50 and p99 (of the values, before they are cut)
    exponential  mean
    zipf         exponent, max, min (1 if left out): value v is drawn as v ** -exponent
    empirical    values, weights (even if left out); or file, column, weights (a column too)
    histogram    edges, weights (one fewer): even within a bin
    mixture      parts (tables like these), weights (even if left out)

A table is checked before it comes here (`lengths`); lists in it are arrays then, parts are checked tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Table = Mapping[str, Any]

LARGEST_ZIPF = 10_000_000
"""Values of a zipf distribution: they are summed one by one."""

_Z99 = 2.3263478740408408
"""Standard normal quantile of 0.99."""


@dataclass(frozen=True)
class Shape:
    """One distribution: its parameters (beside the bounds min and max) and its quantile function.

    quantile(table, u, step) -> (n,) float64. step is 1 where whole numbers are wanted, 0 for times.
    bounded   whether it takes `min` and `max` to cut what is drawn
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    quantile: Callable[[Table, F64, float], F64]
    bounded: bool = True


def quantiles(table: Table, u: F64, step: float) -> F64:
    """(n,) values of a checked table at the uniforms u, cut to its bounds."""
    shape = SHAPES[table["distribution"]]
    values = shape.quantile(table, u, step)
    if not shape.bounded:
        return values
    return np.clip(values, table.get("min", -math.inf), table.get("max", math.inf))


def _fixed(t: Table, u: F64, step: float) -> F64:
    return np.full(u.shape, float(t["value"]))


def _uniform(t: Table, u: F64, step: float) -> F64:
    """Whole numbers are rounded afterwards: half a step more at both ends gives the ends their full share."""
    low, high = float(t["min"]), float(t["max"])
    return np.clip(low - step / 2 + u * (high - low + step), low, high)


def _normal(t: Table, u: F64, step: float) -> F64:
    return t["mean"] + t["sigma"] * _normal_scores(u)


def _lognormal(t: Table, u: F64, step: float) -> F64:
    if "p99" in t:
        center, sigma = math.log(t["p50"]), math.log(t["p99"] / t["p50"]) / _Z99
    else:
        sigma = t["sigma"]
        center = math.log(t["median"]) if "median" in t else math.log(t["mean"]) - sigma * sigma / 2
    return np.exp(np.minimum(center + sigma * _normal_scores(u), 700.0))  # exp(710) overflows


def _exponential(t: Table, u: F64, step: float) -> F64:
    return -t["mean"] * np.log1p(-u)


def _zipf(t: Table, u: F64, step: float) -> F64:
    low, high = int(t.get("min", 1)), int(t["max"])
    return low + zipf_ranks(high - low + 1, t["exponent"], u, first=low).astype(np.float64)


def zipf_ranks(count: int, exponent: float, u: F64, first: int = 1) -> NDArray[np.int64]:
    """(n,) ranks from 0: rank r is drawn as (first + r) ** -exponent."""
    edges = np.cumsum(np.arange(first, first + count, dtype=np.float64) ** -exponent)
    return _bins(edges, u)


def _empirical(t: Table, u: F64, step: float) -> F64:
    values: F64 = t["values"]
    return values[_bins(np.cumsum(t.get("weights", np.ones(values.size))), u)]


def _histogram(t: Table, u: F64, step: float) -> F64:
    """A bin of whole numbers holds its lower edge and not its upper one."""
    edges: F64 = t["edges"]
    bins, within = _split(t["weights"], u)
    low, high = edges[bins], edges[bins + 1]
    if step:
        return np.minimum(np.floor(low + within * (high - low)), np.maximum(high - step, low))
    return low + within * (high - low)


def _mixture(t: Table, u: F64, step: float) -> F64:
    """One uniform chooses the part, and its place within that part's share is drawn by."""
    which, within = _split(t.get("weights", np.ones(len(t["parts"]))), u)
    out = np.empty(u.shape)
    for number, part in enumerate(t["parts"]):
        mine = which == number
        out[mine] = quantiles(part, within[mine], step)
    return out


def _split(weights: F64, u: F64) -> tuple[NDArray[np.int64], F64]:
    """(n,) which of the weights a uniform falls to, and where in its share, strictly between 0 and 1."""
    edges = np.cumsum(weights)
    which = _bins(edges, u)
    start = np.concatenate(([0.0], edges[:-1]))[which]
    within = (u * edges[-1] - start) / weights[which]
    return which, np.clip(within, 2.0**-53, 1 - 2.0**-53)


def _bins(edges: F64, u: F64) -> NDArray[np.int64]:
    """(n,) first bin whose upper edge is above u of the whole."""
    return np.searchsorted(edges[:-1], u * edges[-1], side="right").astype(np.int64)


def _normal_scores(u: F64) -> F64:
    """Standard normal quantiles by the standard library: scipy.special takes 0.3 s to import."""
    from statistics import NormalDist

    return np.array(list(map(NormalDist().inv_cdf, u.tolist())), np.float64)


SHAPES: dict[str, Shape] = {
    "fixed": Shape(("value",), (), _fixed, bounded=False),
    "uniform": Shape(("min", "max"), (), _uniform, bounded=False),
    "normal": Shape(("mean", "sigma"), (), _normal),
    "lognormal": Shape((), ("mean", "median", "sigma", "p50", "p99"), _lognormal),
    "exponential": Shape(("mean",), (), _exponential),
    "zipf": Shape(("exponent", "max"), ("min",), _zipf, bounded=False),
    "empirical": Shape(("values",), ("weights",), _empirical),
    "histogram": Shape(("edges", "weights"), (), _histogram),
    "mixture": Shape(("parts",), ("weights",), _mixture),
}
