"""What each lever makes of a tail: a bar for now, one for the best change of each lever, and the promise as a line."""

from __future__ import annotations

from ..advice import BETTER, Advice, LeverLine, title_of
from .chart import GREY, Axis, Bar, Chart, Rule, axis, duration

MOST_ROWS = 10
_HELPS, _DOES_NOT = 0, 1
"""Colours."""
_LEGEND = (("now", GREY), ("helps", _HELPS), ("does not", _DOES_NOT))


def advice_charts(found: Advice) -> list[Chart]:
    """One for each tail that is to become better; none where no lever was tried."""
    return [chart for metric in found.target if (chart := _chart(found, metric)) is not None]


def _chart(found: Advice, metric: str) -> Chart | None:
    """Rows in the order of the answer; what cannot run is left out."""
    tried = [(line, after) for line in _one_of_each(found) if (after := _after(line, metric)) is not None][:MOST_ROWS]
    before = next((e.before for line, _ in tried for e in line.effects if e.metric == metric), None)
    if before is None:
        return None
    rows = [("now", before, GREY)]
    rows += [(line.lever, after, _HELPS if line.verdict == BETTER else _DOES_NOT) for line, after in tried]
    bound = _bound(found, metric)
    rules = (Rule(bound, "promise", "x"),) if bound else ()
    best = found.best
    return Chart(
        f"advice-{metric}",
        f"{title_of(metric)} of {found.record.run}: what each change makes of it",
        axis(title_of(metric), [0.0, bound or 0.0, *(ms for _, ms, _ in rows)], "ms", zero=True),
        Axis("", low=0, high=len(rows)),
        (),
        ("change", title_of(metric), "keys"),
        tuple((name, duration(ms), keys) for (name, ms, _), keys in zip(rows, _keys(tried), strict=True)),
        note=" ".join([*([f"The line is the promise, {duration(bound)}."] if bound else []), *_best(best)]),
        rules=rules,
        rows=tuple(name for name, _, _ in rows),
        bars=tuple(Bar(i, 0.0, ms, colour) for i, (_, ms, colour) in enumerate(rows)),
        legend=tuple(entry for entry in _LEGEND if entry[1] in {colour for _, _, colour in rows}),
        wide=True,
    )


def _best(best: LeverLine | None) -> list[str]:
    return [] if best is None else [f"Best: {' '.join(best.changes)}."]


def _one_of_each(found: Advice) -> list[LeverLine]:
    return list({line.lever: line for line in reversed(found.levers)}.values())[::-1]


def _after(line: LeverLine, metric: str) -> float | None:
    return next((e.after for e in line.effects if e.metric == metric), None)


def _keys(tried: list[tuple[LeverLine, float]]) -> list[str]:
    return ["", *(" ".join(line.changes) for line, _ in tried)]


def _bound(found: Advice, metric: str) -> float | None:
    """Of a promise about this latency, ms."""
    name = metric.partition(".")[0]
    bounds = [text.rpartition(":") for text in found.promises]
    return next((float(ms) for promised, _, ms in bounds if promised in (name, metric)), None)
