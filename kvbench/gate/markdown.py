"""A gate's report as Markdown, for a step summary of GitHub Actions.

source: GitHub's documentation of job summaries: GitHub-flavoured Markdown, at most 1 MiB a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..core.printable import printable
from .judge import PASSED, REGRESSION, STALE, UNCERTAIN, UNJUDGED, UNMEASURED, Outcome, Report
from .table import comparison_cells, limit

MOST_BYTES = 1 << 20

_SIGNS = {UNMEASURED: "🚫", REGRESSION: "❌", UNCERTAIN: "❔", STALE: "🔶", PASSED: "✅", UNJUDGED: "·"}
_TAIL = "\n_More rows were left out: a step summary holds 1 MiB._\n"


def markdown(report: Report, used: int = 0) -> str:
    """The verdict, then a table: what failed, what changed, what passed, what nobody judges and changed; 1 MiB at most.

    used   bytes that the step's summary holds already
    """
    head = f"## kvbench gate: {_safe(report.headline)}\n"
    if report.refusal:
        return head
    head += f"\nclock {report.clock}\n"
    rows = [one for kind in _SIGNS for one in report.of(kind) if kind != UNJUDGED or one.changed]
    if not rows:
        return head
    head += "\n| | run | metric | unit | baseline | candidate | ratio | 95 % | limit |\n|-|-|-|-|-:|-:|-:|-:|-:|\n"
    return head + "".join(_within(map(_row, rows), MOST_BYTES - used - len((head + _TAIL).encode())))


def _within(rows: Iterator[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row.encode())
        if room < 0:
            yield _TAIL
            return
        yield row


def _row(one: Outcome) -> str:
    *cells, _ = comparison_cells(one.compared)
    return f"| {' | '.join(map(_safe, [_SIGNS[one.outcome], one.group, *cells, limit(one)]))} |\n"


def _safe(text: str) -> str:
    """Names come from files: no new cell, no line, no tag."""
    return printable(" ".join(text.split())).replace("|", "&#124;").replace("<", "&lt;")
