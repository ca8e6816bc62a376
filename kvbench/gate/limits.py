"""What a gate judges, and how much worse it may be: `--max-regression`, `--all`, `--exact`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..core.errors import UsageError
from ..metrics.catalogue import NEITHER
from .metrics import direction
from .verdict import MODELLED

DEFAULT_LIMIT = {MODELLED: 0.0, "measured": 0.05}
"""Under --all: how much worse, as a share of the baseline, a metric may be. Modelled values are exact."""

OPTION = "--max-regression"


@dataclass(frozen=True)
class Limits:
    """What is judged.

    by_name      "ttft.p99", or a whole latency "ttft" -> share of the baseline
    everything   --all: metrics that have a better side and no limit of their own too
    default      of those; None: DEFAULT_LIMIT of the clock
    exact        any difference of any metric is a regression
    """

    by_name: dict[str, float]
    everything: bool = False
    default: float | None = None
    exact: bool = False

    def named(self, metric: str) -> bool:
        return metric in self.by_name or metric.partition(".")[0] in self.by_name

    def of(self, metric: str, clock: str) -> float | None:
        """The limit of a metric; None: it is reported and not judged."""
        if self.exact:
            return 0.0
        for name in (metric, metric.partition(".")[0]):
            if name in self.by_name:
                return self.by_name[name]
        if not self.everything or direction(metric) == NEITHER:
            return None
        return DEFAULT_LIMIT[clock] if self.default is None else self.default


def parse_limits(given: Sequence[str], known: Sequence[str], everything: bool, exact: bool) -> Limits:
    """From "ttft=5%", "ttft.p99=0.05", and "5%" beside --all.

    known    metrics of the runs
    raises   UsageError: nothing is judged, not a share, a metric that no run has, options that exclude each other
    """
    if exact and given:
        raise UsageError(f"--exact allows no difference of any metric; leave {OPTION} out")
    if not (given or everything or exact):
        raise UsageError(f"nothing would be judged: name metrics ({OPTION} ttft.p99=5%), or add --all or --exact")
    default, by_name = None, {}
    names = sorted({*known, *(metric.partition(".")[0] for metric in known)})
    for text in given:
        name, equals, share = text.rpartition("=")
        limit = _share(share, text)
        if equals and name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise UsageError(f"{OPTION} {text}: no metric {name}{f'; nearest is {near[0]}' if near else ''}")
        if equals:
            by_name[name] = limit
        elif not everything:
            raise UsageError(f"{OPTION} {text} names no metric; write ttft.p99={text}, or add --all")
        else:
            default = limit
    return Limits(by_name, everything, default, exact)


def _share(text: str, where: str) -> float:
    percent = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{OPTION} {where}: write it as ttft=5% or ttft.p99=0.05")
    if number >= 1 and not percent:
        raise UsageError(f"{OPTION} {where}: a share of the baseline is below 1; write {text}%")
    return number / 100 if percent else number
