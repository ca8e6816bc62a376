"""What each lever makes of a tail: a bar for now, one for the best change of each lever, and the promise as a line.

Drawn from the document that `kvbench advise` writes (advice.json), so that a page can show it later.
"""

from __future__ import annotations

from typing import Any

from ..advice import BETTER, title_of
from .chart import GREY, Axis, Bar, Chart, Rule, axis, duration

NAME = "advice.json"
MOST_ROWS = 10
_HELPS, _DOES_NOT = 0, 1
"""Colours."""
_LEGEND = (("now", GREY), ("helps", _HELPS), ("does not", _DOES_NOT))

Document = dict[str, Any]


def advice_charts(found: Document) -> list[Chart]:
    """One for each tail that is to become better; none where no lever was tried."""
    return [chart for metric in found["target"] if (chart := _chart(found, metric)) is not None]


def lever_rows(found: Document) -> list[list[str]]:
    """rank, lever, keys, cost, verdict, then the change of each tail that is to become better, and what got worse."""
    rows = []
    for rank, line in enumerate(found["levers"], 1):
        effects = {e["metric"]: e for e in line["effects"]}
        changes = [_change(effects.get(metric)) for metric in found["target"]]
        worse = "; ".join([*line["worse"], *([line["error"]] if line["error"] else [])])
        rows.append(
            [str(rank), line["lever"], " ".join(line["changes"]), line["cost"], line["verdict"], *changes, worse]
        )
    return rows


def lever_header(found: Document) -> list[str]:
    return ["", "lever", "keys", "cost", "verdict", *map(title_of, found["target"]), "worse"]


def _change(effect: Document | None) -> str:
    """With its 95 % interval."""
    if effect is None or effect["ratio"] is None:
        return "-"
    text = f"{100 * (effect['ratio'] - 1):+.1f} %"
    if effect["low"] is None or effect["high"] is None:
        return text
    return f"{text} ({100 * (effect['low'] - 1):+.1f} .. {100 * (effect['high'] - 1):+.1f})"


def _chart(found: Document, metric: str) -> Chart | None:
    """Rows in the order of the answer; what cannot run is left out."""
    tried = [(line, after) for line in _one_of_each(found) if (after := _of(line, metric, "after")) is not None]
    tried = tried[:MOST_ROWS]
    before = next((_of(line, metric, "before") for line, _ in tried), None)
    if before is None:
        return None
    rows = [("now", before, GREY)]
    rows += [(line["lever"], after, _HELPS if line["verdict"] == BETTER else _DOES_NOT) for line, after in tried]
    bound = _bound(found, metric)
    notes = [*([f"The line is the promise, {duration(bound)}."] if bound else [])]
    if found["best"]:
        notes.append(f"Best: {' '.join(found['best'])}.")
    return Chart(
        f"advice-{metric}",
        f"{title_of(metric)} of {found['run']}: what each change makes of it",
        axis(title_of(metric), [0.0, bound or 0.0, *(ms for _, ms, _ in rows)], "ms", zero=True),
        Axis("", low=0, high=len(rows)),
        (),
        ("change", title_of(metric), "keys"),
        tuple((name, duration(ms), keys) for (name, ms, _), keys in zip(rows, _keys(tried), strict=True)),
        note=" ".join(notes),
        rules=(Rule(bound, "promise", "x"),) if bound else (),
        rows=tuple(name for name, _, _ in rows),
        bars=tuple(Bar(i, 0.0, ms, colour) for i, (_, ms, colour) in enumerate(rows)),
        legend=tuple(entry for entry in _LEGEND if entry[1] in {colour for _, _, colour in rows}),
        wide=True,
    )


def _one_of_each(found: Document) -> list[Document]:
    return list({line["lever"]: line for line in reversed(found["levers"])}.values())[::-1]


def _of(line: Document, metric: str, side: str) -> float | None:
    """before or after, ms."""
    return next((e[side] for e in line["effects"] if e["metric"] == metric), None)


def _keys(tried: list[tuple[Document, float]]) -> list[str]:
    return ["", *(" ".join(line["changes"]) for line, _ in tried)]


def _bound(found: Document, metric: str) -> float | None:
    """Of a promise about this latency, ms."""
    name = metric.partition(".")[0]
    bounds = [text.rpartition(":") for text in found["promises"]]
    return next((float(ms) for promised, _, ms in bounds if promised in (name, metric)), None)
