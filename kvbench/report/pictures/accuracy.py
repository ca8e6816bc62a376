"""fidelity.csv of `kvbench validate` as charts: measured against predicted, a chart for each metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .chart import INK, Chart, Series, axis, duration

NAME = "fidelity.csv"
NEEDED = ("name", "kind", "engine", "model", "device", "metric", "statistic", "measured_ms", "predicted_ms", "error")

_TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2EL"}


@dataclass(frozen=True)
class Accuracy:
    """Rows of one fidelity.csv."""

    path: Path
    rows: Sequence[dict[str, str]]


def accuracy_charts(tables: Sequence[Accuracy]) -> list[Chart]:
    """Means of every case, by server; the line is where both are equal."""
    return [
        chart
        for table in tables
        for metric in _TITLES
        if (chart := _chart([r for r in table.rows if (r["metric"], r["statistic"]) == (metric, "mean")], metric))
    ]


def _chart(rows: Sequence[dict[str, str]], metric: str) -> Chart | None:
    if not rows:
        return None
    groups = dict.fromkeys(_group(row) for row in rows)
    points = [
        np.array(
            [(float(r["measured_ms"]), float(r["predicted_ms"])) for r in rows if _group(r) == group], np.float64
        ).T
        for group in groups
    ]
    values = [float(v) for both in points for v in both.ravel()]
    ends = np.array([min(values), max(values)], np.float64)
    series = [Series("equal", ends, ends, INK, "dash")]
    series += [
        Series(group, both[0], both[1], i, "dots") for i, (group, both) in enumerate(zip(groups, points, strict=True))
    ]
    ranked = sorted(rows, key=lambda row: -abs(float(row["error"])))
    table = tuple(
        (r["name"], duration(float(r["measured_ms"])), duration(float(r["predicted_ms"])), _percent(r)) for r in ranked
    )
    errors = np.abs([float(row["error"]) for row in rows]) * 100
    median, p90 = np.percentile(errors, [50, 90])
    return Chart(
        f"accuracy-{metric}",
        f"{_TITLES[metric]}: predicted against measured",
        axis("measured", values, unit="ms", log=True),
        axis("predicted", values, unit="ms", log=True),
        tuple(series),
        ("case", "measured", "predicted", "error"),
        table,
        note=f"Means of {len(rows)} cases; error: median {median:.1f} %, p90 {p90:.1f} %.",
    )


def _group(row: dict[str, str]) -> str:
    return f"{row['engine']}, {row['model']}, {row['device']}"


def _percent(row: dict[str, str]) -> str:
    return f"{100 * float(row['error']):+.1f} %"
