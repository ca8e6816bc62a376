"""Policies on workloads as one Markdown table, and a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from .record import SCHEMA

ROUTERS = "router.policy"
"""The key of policies that are ranked by their tails, the others by their hits."""


@dataclass(frozen=True)
class Row:
    """A policy: for each workload hit_rate, its bounds, and ttft (p99, ms)."""

    policy: str
    figures: tuple[Mapping[str, float], ...]


@dataclass(frozen=True)
class Comparison:
    """key: whose policies. own: the user's. settings: workload -> the keys it ran under. left_out: policy -> why it
    did not run.

    An eviction policy is judged by its hits: points behind the optimum of the same memory. A router may pay for hits
    with queues, so it is judged by its tail: p99 of TTFT as a multiple of the best one's. Both are means over the
    workloads.
    """

    key: str
    own: str
    workloads: tuple[str, ...]
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def behind(self, row: Row) -> float:
        """Share of prompt tokens behind the optimum, or how many times the best tail."""
        if self.key != ROUTERS:
            return fmean(f["hit_rate_optimum"] - f["hit_rate"] for f in row.figures)
        best = [min(other.figures[i]["ttft"] for other in self.rows) for i in range(len(row.figures))]
        return fmean(f["ttft"] / b if b else 1.0 for f, b in zip(row.figures, best, strict=True))

    @property
    def ranked(self) -> list[Row]:
        return sorted(self.rows, key=self.behind)

    @property
    def place(self) -> int:
        """Of the user's own, from 1."""
        return [row.policy for row in self.ranked].index(self.own) + 1


def policy_markdown(found: Comparison) -> str:
    """The best policy first; the user's own in bold; hit rate and p99 of TTFT for each workload."""
    titles = [f"{name}: hit %, TTFT p99 ms" for name in found.workloads]
    by_tail = found.key == ROUTERS
    behind = "TTFT p99, times the best" if by_tail else "behind the optimum"
    lines = [_line(["policy", behind, *titles]), _line(["---", *["---:"] * (len(titles) + 1)])]
    for row in found.ranked:
        name = f"**{_name(row.policy)}**" if row.policy == found.own else _name(row.policy)
        cells = [f"{100 * f['hit_rate']:.1f}, {f['ttft']:,.0f}" for f in row.figures]
        score = f"{found.behind(row):.2f}" if by_tail else f"{100 * found.behind(row):.1f} points"
        lines.append(_line([name, score, *cells]))
    bounds = found.rows[0].figures
    for title, bound in (("optimum of this memory", "hit_rate_optimum"), ("endless memory", "hit_rate_infinite")):
        if not by_tail:  # a bound of one engine's memory says nothing of several
            lines.append(_line([title, "", *(f"{100 * f[bound]:.1f}" for f in bounds)]))
    without = [f"Without {policy}: {why}." for policy, why in found.left_out.items()]
    return "\n".join([*lines, "", sentence(found), *without])


_IDLE = ("nothing was evicted; run more requests, or lower cache.blocks", "every request went the same way; run more")


def sentence(found: Comparison) -> str:
    """Where the user's own stands."""
    own, best = next(row for row in found.rows if row.policy == found.own), found.ranked[0]
    name, of = _name(found.own), f"of {len(found.rows)}"
    if all(row.figures == own.figures for row in found.rows):
        return f"No policy differs from another: {_IDLE[found.key == ROUTERS]}."
    if found.key == ROUTERS:
        return f"{name} is number {found.place} {of}: its TTFT p99 is {found.behind(own):.2f} times the best one's."
    if best is own:
        return f"{name} is first {of}, {100 * found.behind(own):.1f} points behind the optimum."
    lost = 100 * (found.behind(own) - found.behind(best))
    return f"{name} is number {found.place} {of}, {lost:.1f} points behind {best.policy}."


def policy_document(found: Comparison) -> dict[str, Any]:
    """What `--json` prints."""
    rows = []
    for row in found.ranked:
        figures = {name: dict(own) for name, own in zip(found.workloads, row.figures, strict=True)}
        rows.append({"policy": row.policy, "behind": found.behind(row), **figures})
    return {
        "schema": SCHEMA,
        "key": found.key,
        "own": found.own,
        "place": found.place,
        "settings": dict(found.settings),
        "policies": rows,
        "left_out": dict(found.left_out),
        "answer": sentence(found),
    }


def _name(policy: str) -> str:
    """Of a file its function."""
    return policy.rpartition(":")[2].replace("|", "\\|")


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
