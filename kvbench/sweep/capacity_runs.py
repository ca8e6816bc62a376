"""The runs behind a search for the capacity: loads and seeds on top of a configuration, judged by their promises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..bench.configure import Configured
from ..bench.run import Result, run
from ..metrics.latency import broken_most, promised_value
from ..metrics.slo import Promise, Slo
from ..report.grid import run_figures
from ..workload.retime import recorded_rate
from .capacity import Capacity, Point, Scale, rounded, search

LEAST_SHARE, MOST_RATE = 1 / 256, 1e6
"""Of the first rate: what breaks at less breaks without any load."""
FIRST_RATE, FIRST_CONCURRENCY = 1.0, 8

Change = tuple[str, str]


@dataclass(frozen=True)
class Sought:
    """What is looked for. over: rate or concurrency. share: of sequences that keep the joint promise."""

    over: str
    share: float
    precision: float
    promises: tuple[Promise, ...]


@dataclass
class Found:
    """searches: seed -> its search. poisson: the failing load of the first one with arrivals drawn anew, None: not
    tried. first: the first run of all, for a head.
    """

    searches: dict[int, Capacity] = field(default_factory=dict)
    poisson: Point | None = None
    first: Result | None = None

    @property
    def lows(self) -> list[float]:
        """Capacities of the seeds, from the least; 0 where no load met the promises."""
        return sorted(one.low or 0.0 for one in self.searches.values())

    @property
    def middle(self) -> float:
        return median(self.lows)


class LoadRuns:
    """A run for each load and seed."""

    def __init__(
        self, configure: Callable[[list[Change]], Configured], sought: Sought, tell: Callable[[Point], None]
    ) -> None:
        self.configure, self.sought, self.tell = configure, sought, tell
        self.first: Result | None = None

    def try_load(self, load: float, seed: int, more: Sequence[Change] = ()) -> Point:
        """KeyboardInterrupt: the run was interrupted."""
        result = run(self.configure([*self._changes(load), ("--seeds", f"seed={seed}"), *more]))
        if not result.record.complete:
            raise KeyboardInterrupt
        self.first = self.first or result
        point = self._judged(load, result)
        self.tell(point)
        return point

    def _judged(self, load: float, result: Result) -> Point:
        summary = result.record.summary
        slo = Slo(**{n: float(v) for n, v in result.document["config"]["slo"].items()})
        share = float(summary["slo_share"] or 0.0) if slo else math.nan
        values = {str(p): promised_value(p, result.journal, result.requests) for p in self.sought.promises}
        over = {p.name: values[str(p)] / p.bound for p in self.sought.promises if values[str(p)] > p.bound}
        broke = max(over, key=lambda name: over[name], default="")
        joint = not slo or share >= self.sought.share
        if not joint and not broke:
            broke = broken_most(slo, result.journal, result.requests).upper() or "sequences that did not finish"
        served = float(summary["request_throughput"] or 0.0)
        return Point(load, share, joint and not over, run_figures(result.record), served, broke, values)

    def _changes(self, load: float) -> list[Change]:
        """Concurrency: clients that ask again when they have their answer, so nobody waits behind the cap unseen."""
        if self.sought.over == "rate":
            return [("--request-rate", f"arrivals.rate={load}")]
        return [("--over", "arrivals.process=closed"), ("--over", f"arrivals.concurrency={int(load)}")]


def find_capacity(runs: LoadRuns, seeds: Sequence[int], start: float, is_trace: bool, recorded: bool) -> Found:
    """A search for each seed, the later ones from where the first one ended.

    recorded  arrivals are those of a trace: the load above its capacity is also run as Poisson
    """
    found = Found()
    for seed in seeds:
        begin = runs.try_load(start, seed)
        if found.searches and _is_same(found, begin, is_trace):
            break  # nothing in this workload is drawn: the seeds are no replicates
        found.searches[seed] = search(_scale(runs, start), _remembering(runs, seed, begin))
        if found.searches[seed].low is None:
            break  # a promise that no load keeps is kept under no seed
        start = found.searches[seed].low or start
    found.first = runs.first
    first = found.searches[seeds[0]]
    if recorded and runs.sought.over == "rate" and first.high is not None:
        load = first.high if first.low is not None else first.points[0].load
        found.poisson = runs.try_load(load, seeds[0], [("--arrivals", "trace.arrivals=poisson")])
    return found


def _remembering(runs: LoadRuns, seed: int, first: Point) -> Callable[[float], Point]:
    return lambda load: first if load == first.load else runs.try_load(load, seed)


def _is_same(found: Found, point: Point, is_trace: bool) -> bool:
    before = next(iter(found.searches.values())).points
    return is_trace and any(p.load == point.load and p.figures == point.figures for p in before)


def _scale(runs: LoadRuns, start: float) -> Scale:
    if runs.sought.over == "rate":
        return Scale(start, rounded(LEAST_SHARE * start), MOST_RATE, False, runs.sought.precision)
    requests = len(runs.first.requests) if runs.first else FIRST_CONCURRENCY
    return Scale(start, 1, max(requests, FIRST_CONCURRENCY), True, 0)


def starting_load(configured: Configured, over: str) -> float:
    """The rate of the trace as recorded, or of the scenario; 8 requests in flight."""
    from ..bench.system import build_system
    from ..workload.build import build_workload

    if over != "rate":
        return FIRST_CONCURRENCY
    config = configured.config
    if config["trace.path"]:
        requests, _ = build_workload(build_system(config).config.tree())
        return rounded(recorded_rate(requests)) or FIRST_RATE
    rate = float(config["arrivals.rate"])
    return rounded(rate) if rate and math.isfinite(rate) else FIRST_RATE
