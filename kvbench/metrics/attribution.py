"""Where the time went, over all finished sequences: from Journal.parts_ns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.journal import FINISHED, Journal
from ..core.units import NS_PER_MS
from .percentiles import distribution


@dataclass(frozen=True)
class Part:
    """One part of the time from arrival to end, in ms over finished sequences. slow: its mean in the slowest 1 %."""

    mean: float
    p99: float
    share: float
    slow: float


def breakdown(journal: Journal) -> dict[str, Part]:
    """Part -> figures; means add up to the mean E2EL. Empty where the engine does not tell, or nothing finished."""
    done = journal.status == FINISHED
    if journal.parts_ns.shape[0] != done.size or not done.any():
        return {}
    parts = journal.parts_ns[done]
    life = parts.sum(axis=1)
    slowest = parts[np.argsort(life, kind="stable")[-max(life.size // 100, 1) :]]
    total = max(int(life.sum()), 1)
    found = {}
    for i, name in enumerate(journal.part_names):
        p99 = distribution(parts[:, i]).p99 or 0.0
        own = int(parts[:, i].sum())
        found[name] = Part(
            own / life.size / NS_PER_MS, p99 / NS_PER_MS, own / total, float(slowest[:, i].mean()) / NS_PER_MS
        )
    return found
