"""A declared workload like a given one: lengths, arrivals, sessions, sharing, as tables of WORKLOAD_KEYS.

Lengths and times become lognormal where that is close, else a table of quantiles. Sessions have turns that go on from
each other. Without sessions, what several prompts begin with becomes the prefix of a group; how many groups there are
is for the caller to find, who can measure hit rates.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.requests import NONE, Requests
from ..core.units import NS_PER_S
from .chain import block_ids, has_own_ids, shares_nothing
from .rows import I64

Tables = dict[str, Any]

CLOSE = 0.05
"""Largest distance at which a lognormal distribution stands for a sample."""

QUANTILES = 64

GROUPS_OF_A_SESSION = 16
"""So many prefixes for each session that two sessions rarely get the same."""

_Z99 = NormalDist().inv_cdf(0.99)


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Kolmogorov-Smirnov distance of two samples, from 0 to 1; 1 where only one of them is empty."""
    if one.size == 0 or other.size == 0:
        return float(one.size != other.size)
    one, other = np.sort(one), np.sort(other)
    at = np.concatenate((one, other))
    shares = [np.searchsorted(sample, at, side="right") / sample.size for sample in (one, other)]
    return float(np.abs(shares[0] - shares[1]).max())


def fitted(requests: Requests, block_tokens: int, groups: int = 0, zipf: float = 1.0) -> Tables:
    """Nested tables of a workload with as many requests.

    groups   of shared prefixes, where several prompts begin alike; 0 is none
    """
    r = requests
    tables: Tables = {"num_prompts": len(r), "arrivals": _arrivals(r)}
    if (r.after != NONE).any():
        return tables | _sessions(r)
    shared = np.zeros(len(r), np.int64) if groups == 0 else shared_tokens(r, block_tokens)
    text = np.maximum(r.prompt_tokens - shared, 1)
    tables["lengths"] = {"prompt": length(text), "output": length(r.output_tokens)}
    if shared.any():
        tables["sharing"] = {"groups": groups, "prefix": length(shared[shared > 0]), "zipf": zipf}
    return tables


def _sessions(r: Requests) -> Tables:
    """Turns, think times, new text of later turns; the head of a first prompt is a prefix that hardly any two share."""
    sizes = np.unique(r.session_id[r.session_id != NONE], return_counts=True)[1]
    follows = r.after != NONE
    context = (r.prompt_tokens + r.output_tokens)[r.after[follows]]
    text = np.maximum(r.prompt_tokens[follows] - context, 1)
    heads = r.prompt_tokens[~follows] - int(np.median(text))
    tables: Tables = {
        "lengths": {"prompt": length(text), "output": length(r.output_tokens)},
        "sessions": {"turns": length(sizes), "think_s": _quantiles(r.think_ns[follows] / NS_PER_S)},
    }
    if (heads > 0).any():
        tables["sharing"] = {"groups": GROUPS_OF_A_SESSION * heads.size, "prefix": length(np.maximum(heads, 1))}
    return tables


def length(values: I64) -> float | int | Tables:
    """A distribution of whole numbers: a number, lognormal, or quantiles."""
    low, high = int(values.min()), int(values.max())
    if low == high:
        return low
    median, p99 = (float(x) for x in np.percentile(values, (50, 99)))
    if median >= 1 and p99 > median:
        sigma = math.log(p99 / median) / _Z99
        table: Tables = {"distribution": "lognormal", "median": median, "sigma": round(sigma, 4)}
        table |= {"min": low, "max": high}
        normal = NormalDist(math.log(median), sigma)
        drawn = np.exp([normal.inv_cdf((i + 0.5) / 1024) for i in range(1024)])
        if distance(np.clip(np.rint(drawn), low, high), values) <= CLOSE:
            return table
    return _quantiles(values)


def _quantiles(values: NDArray[Any]) -> float | int | Tables:
    """The values in the middle of equal shares, equal ones counted together."""
    at = np.percentile(values, (np.arange(QUANTILES) + 0.5) / QUANTILES * 100, method="inverted_cdf")
    found, weights = np.unique(at, return_counts=True)
    if found.size == 1:
        return found[0].item()
    return {"distribution": "empirical", "values": found.tolist(), "weights": weights.tolist()}


def _arrivals(r: Requests) -> Tables:
    """Gamma gaps of the same mean (sessions count all their turns), of the shape that comes closer: that with the same
    coefficient of variation, which long pauses rule, or the most likely one, which short gaps rule."""
    times = r.arrival_ns[r.after == NONE]
    span_s = float(np.ptp(times)) / NS_PER_S
    if span_s == 0:
        return {"process": "all-at-once"}
    gaps = np.diff(times) / 1e3  # whole microseconds are drawn
    unit = gaps / gaps.mean()
    shapes = [_in_bounds(1 / unit.var() if unit.var() else np.inf), _likely_shape(np.maximum(gaps, 1.0))]
    shape = min(shapes, key=lambda k: distance(np.rint(_gamma(k) * gaps.mean()), gaps))
    return {"process": "gamma", "rate": float(f"{len(r) / span_s:.6g}"), "burstiness": float(f"{shape:.6g}")}


def _likely_shape(gaps: NDArray[np.float64]) -> float:
    """Shape of the gamma distribution of most likelihood, by the usual closed approximation."""
    s = math.log(gaps.mean()) - float(np.log(gaps).mean())
    return _in_bounds((3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s) if s > 0 else np.inf)


def _in_bounds(shape: float) -> float:
    return float(min(max(shape, 1e-3), 1e6))


def _gamma(shape: float) -> NDArray[np.float64]:
    """Quantiles of mean 1."""
    from scipy.special import gammaincinv

    return np.asarray(gammaincinv(shape, (np.arange(1024) + 0.5) / 1024) / shape)


def shared_tokens(r: Requests, block_tokens: int) -> I64:
    """(n,) leading tokens, in whole blocks, that some other prompt begins with too."""
    if shares_nothing(r):
        return np.zeros(len(r), np.int64)
    own = has_own_ids(r, block_tokens)
    ids, counts = (r.segment_stream, np.diff(r.segment_offset)) if own else block_ids(r, block_tokens)
    _, number, uses = np.unique(ids, return_inverse=True, return_counts=True)
    once = np.append(np.flatnonzero(uses[number] == 1), ids.size)
    starts = np.cumsum(counts) - counts
    first = once[np.searchsorted(once, starts)]
    return np.minimum(np.minimum(first - starts, counts) * block_tokens, r.prompt_tokens)
