"""A gate's report as Markdown, for a step summary of GitHub Actions.

source: GitHub's documentation of job summaries: GitHub-flavoured Markdown, at most 1 MiB a step.
"""

from __future__ import annotations

from collections.abc import Iterator

from .judge import PASSED, REGRESSION, STALE, UNCERTAIN, Outcome, Report
from .table import comparison_cells

MOST_BYTES = 1 << 20

_SIGNS = {REGRESSION: "❌", UNCERTAIN: "❔", STALE: "🔶", PASSED: "✅"}
_TAIL = "\n_More rows were left out: a step summary holds 1 MiB._\n"


def markdown(report: Report, used: int = 0) -> str:
    """The verdict, then a table of what changed, regressions first; rows are left out, and it says so, above 1 MiB.

    used   bytes that the step's summary holds already
    """
    head = f"## kvbench gate: {report.headline}\n\nclock {report.clock}\n"
    changed = [one for kind in (REGRESSION, UNCERTAIN, STALE) for one in report.of(kind)]
    if not changed:
        return head
    head += "\n| | run | metric | unit | baseline | candidate | ratio | 95 % | limit |\n|-|-|-|-|-:|-:|-:|-:|-:|\n"
    return head + "".join(_within(map(_row, changed), MOST_BYTES - used - len((head + _TAIL).encode())))


def _within(rows: Iterator[str], room: int) -> Iterator[str]:
    for row in rows:
        room -= len(row.encode())
        if room < 0:
            yield _TAIL
            return
        yield row


def _row(one: Outcome) -> str:
    *cells, _ = comparison_cells(one.compared)
    cells = [_SIGNS[one.outcome], one.group, *cells, f"{100 * one.limit:g} %"]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |\n"
