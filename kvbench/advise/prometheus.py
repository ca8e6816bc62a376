"""The text that a server shows at /metrics: samples by name, and histograms read from their buckets.

Format: one sample a line, `name{label="value",...} value [timestamp]`; lines that begin with # are comments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import UsageError

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*,?\s*')

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[str, Mapping[Labels, float]]
"""Name -> sorted labels -> value."""


def parse(text: str, where: str) -> dict[str, dict[Labels, float]]:
    """UsageError: a line that is no sample, named by its number."""
    found: dict[str, dict[Labels, float]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line.strip())
        value = _number(match[3]) if match else None
        if match is None or value is None:
            raise UsageError(f"{where}: line {number} is no sample of Prometheus text: {line.strip()[:60]}")
        labels = tuple(sorted((m[1], m[2]) for m in _LABEL.finditer(match[2] or "")))
        found.setdefault(match[1], {})[labels] = value
    return found


def since(later: Samples, earlier: Samples) -> dict[str, dict[Labels, float]]:
    """Counters and histograms less what they were: of the time in between. A server that was restarted begins at 0."""
    return {
        name: {
            labels: value - old if name.endswith(("_total", "_sum", "_count", "_bucket")) and old <= value else value
            for labels, value in own.items()
            for old in (earlier.get(name, {}).get(labels, 0.0),)
        }
        for name, own in later.items()
    }


def total(samples: Samples, *names: str) -> float | None:
    """Of all label sets of the first of these names that is there; None: none is."""
    return next((math.fsum(samples[name].values()) for name in names if name in samples), None)


def by_label(samples: Samples, name: str, label: str) -> dict[str, float]:
    """Sums by the value of one label."""
    found: dict[str, float] = {}
    for labels, value in samples.get(name, {}).items():
        key = dict(labels).get(label)
        if key is not None:
            found[key] = found.get(key, 0.0) + value
    return found


@dataclass(frozen=True)
class Distribution:
    """count samples with this sum. bounds, ends: upper bounds of the buckets, and how many samples lie at or below."""

    count: float
    sum: float
    bounds: tuple[float, ...]
    ends: tuple[float, ...]

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def between(self, share: float) -> tuple[float, float]:
        """The bounds of the bucket in which a quantile lies; inf where it is the last."""
        i = next((i for i, end in enumerate(self.ends) if end >= share * self.count), len(self.ends) - 1)
        return (self.bounds[i - 1] if i else 0.0), self.bounds[i]


def histogram(samples: Samples, *names: str) -> Distribution | None:
    """The first of these names that has samples, all label sets together; None: none has."""
    for name in names:
        count, buckets = total(samples, f"{name}_count"), by_label(samples, f"{name}_bucket", "le")
        if count is None and buckets:
            count = max(buckets.values())
        if not count or not buckets:
            continue
        ordered = sorted((_number(le) or math.inf, end) for le, end in buckets.items())
        return Distribution(
            count, total(samples, f"{name}_sum") or 0.0, tuple(b for b, _ in ordered), tuple(e for _, e in ordered)
        )
    return None


def of_samples(values: Sequence[float]) -> Distribution | None:
    """Single samples: each is a bucket of its own."""
    ordered = tuple(sorted(values))
    if not ordered:
        return None
    return Distribution(len(ordered), math.fsum(ordered), ordered, tuple(map(float, range(1, len(ordered) + 1))))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
