"""The gate: comparisons against limits, and what comes out of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import EXIT_FAILED, EXIT_INCONCLUSIVE, EXIT_OK, EXIT_REGRESSION, KvbenchError, UsageError
from ..metrics.catalogue import HIGHER, NEITHER
from .limits import Limits, parse_limits
from .metrics import NEED_NOT_BE
from .pairing import compare_group, pair_up
from .runs import Run
from .verdict import BETTER, CHANGED, MODELLED, NOT_MEASURED, SAME, WORSE, Comparison

PASSED, STALE, REGRESSION, UNCERTAIN = "pass", "stale", "regression", "inconclusive"
UNMEASURED, UNJUDGED = "not measured", "not judged"
"""Of one metric. stale: it changed, and not for worse than it may: the baseline is out of date. not measured: a side
has no samples of it, so there is nothing to judge, and the gate fails. not judged: nobody named it."""

_EXIT_CODES = {UNMEASURED: EXIT_FAILED, REGRESSION: EXIT_REGRESSION, UNCERTAIN: EXIT_INCONCLUSIVE}
"""The first of these that occurred is the verdict."""

_COUNTED = {UNMEASURED: "not measured", REGRESSION: "worse", UNCERTAIN: "inconclusive", STALE: "changed"}


@dataclass(frozen=True)
class Outcome:
    """One metric of one group, and what the gate makes of it. limit: None where it is not judged."""

    group: str
    compared: Comparison
    limit: float | None
    outcome: str

    @property
    def reason(self) -> str:
        """Why there is nothing to judge."""
        return f"no samples in the {' and the '.join(self.compared.without)}" if self.outcome == UNMEASURED else ""

    @property
    def changed(self) -> bool:
        """A side has another value than the other, or none."""
        return self.compared.exists and self.compared.verdict != SAME


@dataclass(frozen=True)
class Report:
    """All that was gated, in order.

    clock        of the groups
    candidates   their runs
    refusal      why nothing was compared; `code` is its exit code then
    """

    outcomes: tuple[Outcome, ...]
    clock: str
    candidates: tuple[Run, ...]
    refusal: str = ""
    code: int = EXIT_OK

    def of(self, outcome: str) -> list[Outcome]:
        return [one for one in self.outcomes if one.outcome == outcome]

    @property
    def judged(self) -> list[Outcome]:
        return [one for one in self.outcomes if one.outcome != UNJUDGED]

    @property
    def verdict(self) -> str:
        return next((kind for kind in _EXIT_CODES if self.of(kind)), PASSED)

    @property
    def exit_code(self) -> int:
        return self.code or _EXIT_CODES.get(self.verdict, EXIT_OK)

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.refusal:
            return f"no verdict: {self.refusal}"
        told = [f"{len(self.judged)} judged", *(f"{len(self.of(k))} {w}" for k, w in _COUNTED.items() if self.of(k))]
        if unjudged := self.of(UNJUDGED):
            told.append(f"{len(unjudged)} not judged, {sum(one.changed for one in unjudged)} of them changed")
        more = [f"; {one.compared.metric}: {one.reason}" for one in self.of(UNMEASURED)[:1]]
        if self.verdict == PASSED and self.of(STALE):
            more.append("; baseline stale: --update it")
        return f"{self.verdict}: {', '.join(told)}{''.join(more)}"


def refused(error: KvbenchError, candidates: Sequence[Run]) -> Report:
    """The report of a gate that could not compare: the reason in place of outcomes."""
    return Report((), "", tuple(candidates), " ".join(str(error).split()), error.exit_code)


def gate(
    baseline: Sequence[Run],
    candidate: Sequence[Run],
    given: Sequence[str],
    everything: bool = False,
    exact: bool = False,
) -> Report:
    """Judge the metrics of the candidate that are named, or all.

    given, everything, exact   as parse_limits takes them
    raises   NotComparable; KvbenchError: the baseline is empty, or nothing was measured; UsageError: a wrong limit
    """
    for side, runs in (("baseline", baseline), ("candidate", candidate)):
        if not any(value is not None for run in runs for value in run.values.values()):
            raise KvbenchError(f"the {side} is empty: a gate that measured nothing fails")
    known = list(dict.fromkeys(metric for run in (*baseline, *candidate) for metric in run.values))
    limits = parse_limits(given, known, everything, exact)
    groups = pair_up(baseline, candidate, by_preset=True)
    clocks = {group.clock for group in groups}
    if exact and clocks != {MODELLED}:
        raise UsageError("--exact: measured times never repeat exactly; leave it out")
    outcomes = [
        Outcome(group.name, compared, limits.of(compared.metric, group.clock), judge(compared, limits, group.clock))
        for group in groups
        for compared in compare_group(group, known)
    ]
    if all(one.outcome == UNJUDGED for one in outcomes):
        raise KvbenchError("nothing was judged: no side measured a metric that has a limit")
    candidates = [second for group in groups for _, second in group.pairs]
    return Report(tuple(outcomes), ", ".join(sorted(clocks)), tuple(candidates))


def judge(compared: Comparison, limits: Limits, clock: str) -> str:
    """What one metric means for the gate."""
    metric = compared.metric
    limit = limits.of(metric, clock)
    if limit is None or (not compared.exists and metric in NEED_NOT_BE and not limits.named(metric)):
        return UNJUDGED
    if compared.verdict in (NOT_MEASURED, SAME):
        return PASSED if compared.verdict == SAME else UNMEASURED
    if limits.exact:
        return REGRESSION
    if clock != MODELLED:
        return _by_interval(compared, limit)
    losses = [_loss(a, b, compared.direction) for a, b in compared.pairs if a is not None and b is not None]
    if all(loss <= limit for loss in losses) or compared.verdict == BETTER:
        return STALE
    return REGRESSION if compared.verdict in (WORSE, CHANGED) else UNCERTAIN


def _by_interval(compared: Comparison, limit: float) -> str:
    """Measured: the whole interval beyond the limit is a regression, all of it within is none."""
    if compared.low is None or compared.high is None:
        return UNCERTAIN
    low, high = compared.low - 1, compared.high - 1
    if compared.direction == HIGHER:
        low, high = -high, -low
    if compared.direction == NEITHER:  # away from the baseline is worse on both sides
        low, high = max(low, -high, 0.0), max(high, -low)
    return REGRESSION if low > limit else PASSED if high <= limit else UNCERTAIN


def _loss(a: float, b: float, direction: int) -> float:
    """By which share of the baseline the candidate is worse; at most 0 where it is not.

    Of a metric without a better side: how far it is from the baseline.
    """
    if a == b:
        return 0.0
    worse = abs(a - b) if direction == NEITHER else (a - b) * direction
    return worse / abs(a) if a else math.copysign(math.inf, worse)
