"""Policies on workloads as one Markdown table, and a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from .record import SCHEMA


@dataclass(frozen=True)
class Row:
    """A policy: for each workload hit_rate, its bounds, and ttft (p99, ms)."""

    policy: str
    figures: tuple[Mapping[str, float], ...]

    @property
    def behind(self) -> float:
        """Hit rate behind the optimum of the same memory, mean over the workloads."""
        return fmean(f["hit_rate_optimum"] - f["hit_rate"] for f in self.figures)


@dataclass(frozen=True)
class Comparison:
    """key: whose policies. own: the user's. settings: workload -> the keys it ran under. left_out: policy -> why it
    did not run.
    """

    key: str
    own: str
    workloads: tuple[str, ...]
    settings: Mapping[str, str]
    rows: tuple[Row, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def ranked(self) -> list[Row]:
        return sorted(self.rows, key=lambda row: row.behind)

    @property
    def place(self) -> int:
        """Of the user's own, from 1."""
        return [row.policy for row in self.ranked].index(self.own) + 1


def policy_markdown(found: Comparison) -> str:
    """The best policy first; the user's own in bold; hit rate and p99 of TTFT for each workload."""
    titles = [f"{name}: hit %, TTFT p99 ms" for name in found.workloads]
    lines = [_line(["policy", "behind the optimum", *titles]), _line(["---", *["---:"] * (len(titles) + 1)])]
    for row in found.ranked:
        name = f"**{_name(row.policy)}**" if row.policy == found.own else _name(row.policy)
        cells = [f"{100 * f['hit_rate']:.1f}, {f['ttft']:,.0f}" for f in row.figures]
        lines.append(_line([name, f"{100 * row.behind:.1f} points", *cells]))
    bounds = found.rows[0].figures
    for title, bound in (("optimum of this memory", "hit_rate_optimum"), ("endless memory", "hit_rate_infinite")):
        lines.append(_line([title, "", *(f"{100 * f[bound]:.1f}" for f in bounds)]))
    without = [f"Without {policy}: {why}." for policy, why in found.left_out.items()]
    return "\n".join([*lines, "", sentence(found), *without])


def sentence(found: Comparison) -> str:
    """Where the user's own stands."""
    best = found.ranked[0]
    own = next(row for row in found.rows if row.policy == found.own)
    if best is own:
        return f"{_name(found.own)} is first of {len(found.rows)}, {100 * own.behind:.1f} points behind the optimum."
    lost = 100 * (own.behind - best.behind)
    return f"{_name(found.own)} is number {found.place} of {len(found.rows)}, {lost:.1f} points behind {best.policy}."


def policy_document(found: Comparison) -> dict[str, Any]:
    """What `--json` prints."""
    rows = []
    for row in found.ranked:
        figures = {name: dict(own) for name, own in zip(found.workloads, row.figures, strict=True)}
        rows.append({"policy": row.policy, "behind": row.behind, **figures})
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
