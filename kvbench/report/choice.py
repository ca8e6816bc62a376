"""Which point of a grid is best, whether it can be told from the others, and which keys did nothing.

The best has the most goodput where something is promised, else the lowest p99 of TTFT; of replays without a clock the
highest hit rate. A point that finished fewer of its sequences than another is never best: refusing the long ones makes
a tail look short. Points of different workloads do not compare: each workload has a best of its own. Points
under several seeds are told apart where all pairs of seeds lie one way, single ones where their 95 % intervals do not
overlap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

Figures = Mapping[str, Any]

OUTCOMES = (
    *(f"{p}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for p in ("mean", "p99")),
    "output_throughput", "hit_rate", "preemptions", "hit_blocks", "evicted_blocks", "hit_rate_tokens",
)  # fmt: skip
"""Figures that a key can change; a key under which none of them moves did nothing."""

SAME_SHARE = 5e-5
"""Hit rates nearer than what a table shows are no difference."""

MOST_NAMED = 3


@dataclass(frozen=True)
class Measure:
    """What points are judged by. sign: 1 more is better, -1 less is."""

    title: str
    figure: str
    unit: str
    sign: int


GOODPUT = Measure("goodput", "goodput", "sequences/s", 1)
TAIL = Measure("TTFT p99", "p99_ttft_ms", "ms", -1)
HITS = Measure("hit rate", "hit_rate_tokens", "%", 1)


@dataclass(frozen=True)
class Candidate:
    """One point: values of the keys, and the figures of each of its seeds."""

    values: tuple[str, ...]
    seeds: tuple[Figures, ...]

    def mean(self, name: str) -> float:
        """NaN: a seed has no such figure."""
        found = [one.get(name) for one in self.seeds]
        return math.nan if not found or None in found else fmean(float(v) for v in found if v is not None)


@dataclass(frozen=True)
class Choice:
    """best, same: numbers of candidates, -1 and () where none is best. verdict, idle: what is said below a table."""

    best: int
    same: tuple[int, ...]
    verdict: tuple[str, ...]
    idle: tuple[str, ...]


def choose(keys: Sequence[str], points: Sequence[Candidate], cache_only: bool) -> Choice:
    """Of the points that have figures."""
    idle = tuple(filter(None, (_idle(i, key, points) for i, key in enumerate(keys))))
    measure = _measure(points, cache_only)
    fair = [i for i in _fair(points) if not math.isnan(points[i].mean(measure.figure))]
    if len(fair) < 2:
        return Choice(-1, (), (), idle)
    workloads: dict[tuple[Any, ...], list[Candidate]] = {}
    for point in points:
        workloads.setdefault(tuple(one.get("fingerprint") for one in point.seeds), []).append(point)
    if len(workloads) > 1:
        told = tuple(filter(None, (_of_workload(keys, group, cache_only) for group in workloads.values())))
        return Choice(-1, (), told or ("No point is best: they have different workloads.",), idle)
    best = max(fair, key=lambda i: measure.sign * points[i].mean(measure.figure))
    same = tuple(i for i in fair if i != best and not _differ(points[best], points[i], measure))
    return Choice(best, same, (_verdict(keys, points, measure, best, same, fair),), idle)


def _of_workload(keys: Sequence[str], points: Sequence[Candidate], cache_only: bool) -> str:
    """The verdict on the points of one workload, under the values that they share; "" where there is none."""
    varied = [i for i in range(len(keys)) if len({point.values[i] for point in points}) > 1]
    shared = [i for i in range(len(keys)) if i not in varied]
    own = [Candidate(tuple(point.values[i] for i in varied), point.seeds) for point in points]
    verdict = choose([keys[i] for i in varied], own, cache_only).verdict
    head = _named([keys[i] for i in shared], Candidate(tuple(points[0].values[i] for i in shared), ()))
    return f"{head}: {verdict[0][0].lower()}{verdict[0][1:]}" if verdict and head else "".join(verdict)


def _measure(points: Sequence[Candidate], cache_only: bool) -> Measure:
    if cache_only:
        return HITS
    return GOODPUT if any(not math.isnan(point.mean("goodput")) for point in points) else TAIL


def _fair(points: Sequence[Candidate]) -> list[int]:
    """Those that finished the greatest share of their sequences; all where none is told."""
    shares = [point.mean("finished") / point.mean("sequences") for point in points]
    most = max((share for share in shares if not math.isnan(share)), default=math.nan)
    return [i for i, share in enumerate(shares) if math.isnan(most) or share == most]


def _differ(one: Candidate, other: Candidate, by: Measure) -> bool:
    a, b = ([float(seed[by.figure]) for seed in point.seeds] for point in (one, other))
    if len(a) == len(b) > 1:
        return all(x < y for x, y in zip(a, b, strict=True)) or all(x > y for x, y in zip(a, b, strict=True))
    (low, high), (least, most) = _interval(one.seeds[0], by), _interval(other.seeds[0], by)
    return high < least or most < low


def _interval(figures: Figures, by: Measure) -> tuple[float, float]:
    value = float(figures[by.figure])
    if by is HITS:  # exact for these requests
        return value - SAME_SHARE / 2, value + SAME_SHARE / 2
    if by is TAIL:
        low, high = figures.get("p99_low_ttft_ms"), figures.get("p99_high_ttft_ms")
        return (value if low is None else float(low)), (math.inf if high is None else float(high))
    share, n = float(figures.get("slo_share") or 0.0), float(figures.get("sequences") or 1)
    half = 1.96 * math.sqrt(max(share * (1 - share), 0.25 / n) / n)
    return value * (1 - half / max(share, 1 / n)), value * (1 + half / max(share, 1 / n))


def _verdict(
    keys: Sequence[str], points: Sequence[Candidate], by: Measure, best: int, same: Sequence[int], fair: Sequence[int]
) -> str:
    name, value = _named(keys, points[best]), _shown(points[best], by)
    if len(same) == len(fair) - 1:
        return f"No difference: by {by.title} no point can be told from the others ({value} with {name})."
    told = ""
    if same:
        others = [_named(keys, points[i]) for i in same[:MOST_NAMED]]
        more = f" and {len(same) - MOST_NAMED} more" if len(same) > MOST_NAMED else ""
        told = f"; not to be told from it: {'; '.join(others)}{more}"
    apart = [i for i in fair if i != best and i not in same]
    worst = min(apart, key=lambda i: by.sign * points[i].mean(by.figure))
    last = f"the worst, {_named(keys, points[worst])}: {_shown(points[worst], by)}"
    return f"Best: {name}, {by.title} {value} ({last}){told}."


def _named(keys: Sequence[str], point: Candidate) -> str:
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in zip(keys, point.values, strict=True))


def _shown(point: Candidate, by: Measure) -> str:
    value = point.mean(by.figure)
    return f"{100 * value:.2f} %" if by is HITS else f"{value:,.1f} {by.unit}"


def _idle(at: int, key: str, points: Sequence[Candidate]) -> str:
    """That a key changed nothing, with the reason; "" where it did, or has one value."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for point in points:
        groups.setdefault((*point.values[:at], *point.values[at + 1 :]), []).append(point)
    several = [group for group in groups.values() if len(group) > 1]
    if not several or any(_moved(group) for group in several):
        return ""
    return f"{key} did nothing: {_reason(key, [point for group in several for point in group])}."


def _moved(group: Sequence[Candidate]) -> bool:
    outcomes = [[[one.get(name) for name in OUTCOMES] for one in point.seeds] for point in group]
    return any(found != outcomes[0] for found in outcomes) or not any(
        any(v is not None for v in o) for o in outcomes[0]
    )


def _reason(key: str, points: Sequence[Candidate]) -> str:
    def all_zero(*names: str) -> bool:
        found = [one.get(name) for point in points for one in point.seeds for name in names]
        return any(v is not None for v in found) and not any(found)

    if key.startswith(("cache.", "block_tokens")) and all_zero("hit_rate_infinite", "hit_rate_tokens_infinite"):
        return "nothing is shared, so no cache could hit (a trace of lengths only says nothing of content)"
    if key.startswith("cache.") and all_zero("evicted_blocks"):
        return "no eviction took place, the cache held everything"
    return "no figure changed with it"
