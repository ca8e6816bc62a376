"""What the proof by tokens came to: a row for each variation."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .table import WIDTH, grid


@dataclass(frozen=True)
class Outcome:
    """What a variation came to. equal of `sequences` said the same; first: one that did not, or -1.

    error   the run did not end, and why
    """

    name: str
    kv_dtype: str
    sequences: int
    equal: int
    first: int
    steps: int
    hit_rate: float
    preemptions: int
    evicted: int
    copied: int
    """Blocks, on write; moved: to other memory."""
    moved: int = 0
    error: str = ""

    @property
    def passed(self) -> bool:
        return not self.error and self.equal == self.sequences


def tokens_report(lines: Sequence[Outcome], diverged: Mapping[str, int], numerics: str) -> str:
    """The whole report, at most 100 columns wide."""
    header = ["variation", "KV", "same", "hit %", "preempt", "evict", "copy"]
    rows = [
        [
            line.name,
            line.kv_dtype,
            "FAILS" if line.error else f"{line.equal}/{line.sequences}",
            f"{100 * line.hit_rate:.1f}",
            f"{line.preemptions:,}",
            f"{line.evicted:,}",
            f"{line.copied + line.moved:,}",
        ]
        for line in lines
    ]
    parts = [grid(header, rows)]
    told = [_said(line) for line in lines if not line.passed]
    if told:
        parts.append("\n".join(told))
    others = [f"{kind}: {count}" for kind, count in diverged.items() if kind != "float32"]
    if others and "float32" in diverged:
        parts.append(
            f"sequences whose plain run says something else than under float32 KV: {', '.join(others)}\n"
            "(rounding KV moves logits; with random weights many tokens are near ties. It is no fault.)"
        )
    same = sum(line.passed for line in lines)
    parts.append(f"{len(lines)} runs in {numerics} numerics: {same} say the same in every sequence")
    return "\n\n".join(parts) + "\n"


def _said(line: Outcome) -> str:
    what = line.error or f"{line.sequences - line.equal} sequences differ, the first is {line.first}"
    return textwrap.fill(f"{line.name}, {line.kv_dtype}: {what}", WIDTH, subsequent_indent="  ")
