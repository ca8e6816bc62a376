"""What a rule about a run says: a symptom, present where its signal reaches its threshold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .evidence import Evidence

TTFT, DECODE = ("ttft",), ("itl", "tpot")


@dataclass(frozen=True)
class Symptom:
    """name: as levers know it. signal: share of the latencies in `hurts`. weight: of the time from arrival to end.
    evidence: one line each.
    """

    name: str
    title: str
    signal: float
    threshold: float
    weight: float
    hurts: tuple[str, ...]
    evidence: tuple[str, ...]


Rule = Callable[[Evidence], Symptom]


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"
