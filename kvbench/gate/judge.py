"""The gate: comparisons against limits, and what comes out of them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, KvbenchError, UsageError
from .metrics import HIGHER, NEITHER
from .pairing import Group, compare_group, pair_up
from .runs import Run
from .verdict import BETTER, CHANGED, MODELLED, SAME, WORSE, Comparison

PASSED, STALE, REGRESSION, UNCERTAIN = "pass", "stale", "regression", "inconclusive"
"""Of one metric. stale: it changed, and nothing is worse than it may be: the baseline is out of date."""

DEFAULT_LIMIT = {MODELLED: 0.0, "measured": 0.05}
"""How much worse, as a share of the baseline, a metric may be. Modelled values are exact."""

OPTION = "--max-regression"


@dataclass(frozen=True)
class Limits:
    """default: of all metrics without one of their own. by_name: "ttft.p99" or a whole latency "ttft" -> share."""

    default: float | None
    by_name: dict[str, float]

    def of(self, metric: str, clock: str) -> float:
        for name in (metric, metric.partition(".")[0]):
            if name in self.by_name:
                return self.by_name[name]
        return DEFAULT_LIMIT[clock] if self.default is None else self.default


@dataclass(frozen=True)
class Outcome:
    """One metric of one group, and what the gate makes of it."""

    group: str
    compared: Comparison
    limit: float
    outcome: str


@dataclass(frozen=True)
class Report:
    """All that was gated, in order. clock: of the groups; candidates: their runs."""

    outcomes: tuple[Outcome, ...]
    clock: str
    candidates: tuple[Run, ...]

    def of(self, outcome: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.outcome == outcome]

    @property
    def exit_code(self) -> int:
        if self.of(REGRESSION):
            return EXIT_REGRESSION
        return EXIT_INCONCLUSIVE if self.of(UNCERTAIN) else EXIT_OK

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        words = {REGRESSION: "worse", UNCERTAIN: "inconclusive", STALE: "changed"}
        counts = {kind: len(self.of(kind)) for kind in words}
        word = REGRESSION if counts[REGRESSION] else UNCERTAIN if counts[UNCERTAIN] else PASSED
        told = [f"{len(self.outcomes)} metrics", *(f"{n} {words[kind]}" for kind, n in counts.items() if n)]
        stale = "; baseline stale: --update it" if word == PASSED and counts[STALE] else ""
        return f"{word}: {', '.join(told)}{stale}"


def parse_limits(given: Sequence[str], known: Sequence[str]) -> Limits:
    """From "5%", "ttft=5%" or "ttft.p99=0.05". UsageError: not a share, a metric that no run has."""
    default, by_name = None, {}
    names = sorted({*known, *(metric.partition(".")[0] for metric in known)})
    for text in given:
        name, equals, share = text.rpartition("=")
        limit = _share(share, text)
        if not equals:
            default = limit
        elif name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise UsageError(f"{OPTION} {text}: no metric {name}{f'; nearest is {near[0]}' if near else ''}")
        else:
            by_name[name] = limit
    return Limits(default, by_name)


def _share(text: str, where: str) -> float:
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        limit = math.nan
    if not 0 <= limit < math.inf:
        raise UsageError(f"{OPTION} {where}: write it as 5%, ttft=5% or ttft.p99=0.05")
    return limit


def gate(baseline: Sequence[Run], candidate: Sequence[Run], given: Sequence[str], exact: bool) -> Report:
    """Judge every metric of the candidate.

    given    limits as parse_limits takes them
    exact    any difference is a regression
    raises   NotComparable; KvbenchError: the baseline is empty, or nothing was measured; UsageError: a wrong limit
    """
    for side, runs in (("baseline", baseline), ("candidate", candidate)):
        if not any(value is not None for run in runs for value in run.values.values()):
            raise KvbenchError(f"the {side} is empty: a gate that measured nothing fails")
    limits = parse_limits(given, [metric for run in baseline for metric in run.values])
    groups = pair_up(baseline, candidate, by_preset=True)
    clocks = {group.clock for group in groups}
    if exact and clocks != {MODELLED}:
        raise UsageError("--exact: measured times never repeat exactly; leave it out")
    outcomes = [
        Outcome(group.name, compared, limits.of(compared.metric, group.clock), outcome)
        for group in groups
        for compared in compare_group(group)
        for outcome in [judge(compared, limits.of(compared.metric, group.clock), group.clock, exact)]
    ]
    return Report(tuple(outcomes), ", ".join(sorted(clocks)), tuple(_candidates(groups)))


def _candidates(groups: Sequence[Group]) -> list[Run]:
    return [second for group in groups for _, second in group.pairs]


def judge(compared: Comparison, limit: float, clock: str, exact: bool) -> str:
    """What one metric means for the gate."""
    if compared.verdict == SAME:
        return PASSED
    if exact:
        return REGRESSION
    if clock != MODELLED:
        return PASSED if compared.direction == NEITHER else _by_interval(compared, limit)
    within = all(_loss(a, b, compared.direction) <= limit for a, b in compared.pairs)
    if within or compared.verdict in (BETTER, CHANGED):
        return STALE
    return REGRESSION if compared.verdict == WORSE else UNCERTAIN


def _by_interval(compared: Comparison, limit: float) -> str:
    """Measured: the whole interval beyond the limit is a regression, all of it within is none."""
    if compared.low is None or compared.high is None:
        return UNCERTAIN
    low, high = compared.low - 1, compared.high - 1
    if compared.direction == HIGHER:
        low, high = -high, -low
    return REGRESSION if low > limit else PASSED if high <= limit else UNCERTAIN


def _loss(a: float | None, b: float | None, direction: int) -> float:
    """By which share of the baseline the candidate is worse; at most 0 where it is not."""
    if a == b:
        return 0.0
    if a is None or b is None:
        return math.inf if b is None else 0.0
    worse = (a - b) * direction
    return worse / abs(a) if a else math.copysign(math.inf, worse)
