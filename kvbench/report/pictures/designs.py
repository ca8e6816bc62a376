"""Where each design wins: a row for each combination of the other axes, a dot for each value of the first."""

from __future__ import annotations

import numpy as np

from ..sweep import Point, Sweep, points
from .chart import Axis, Chart, Series
from .style import LIGHT

MOST_DESIGNS = len(LIGHT)


def designs_chart(sweep: Sweep, num_keys: int) -> Chart | None:
    """Goodput of each design beside the best of its row. num_keys: of the first axis. None: no point has a goodput."""
    by_row: dict[tuple[str, ...], dict[tuple[str, ...], Point]] = {}
    for point in points(sweep):
        values = point.rows[0].values
        if point.whole(sweep) and point.mean("goodput") is not None:
            by_row.setdefault(values[num_keys:], {})[values[:num_keys]] = point
    designs = list(dict.fromkeys(design for row in by_row.values() for design in row))
    if not designs:
        return None
    keys = [key.rpartition(".")[2] for key in sweep.keys]
    names = [":".join(design) for design in designs]
    rows = [", ".join(f"{key} {value}" for key, value in zip(keys[num_keys:], row, strict=True)) for row in by_row]
    left_out = f" {MOST_DESIGNS} of {len(designs)} are drawn." if len(designs) > MOST_DESIGNS else ""
    goodput = [[_goodput(row.get(design)) for design in designs] for row in by_row.values()]
    best = [max(values) for values in goodput]
    share = np.array([[100 * v / most if most else 0.0 for v in row] for row, most in zip(goodput, best, strict=True)])
    # designs of one row that lie together would hide each other: each has a height of its own
    drawn = range(min(len(designs), MOST_DESIGNS))
    height = np.linspace(0.25, 0.75, len(drawn)) if len(drawn) > 1 else np.array([0.5])
    return Chart(
        "designs",
        f"Goodput of each design: {sweep.run}",
        Axis("goodput, % of the best of the row", unit="%", high=100.0),
        Axis("", low=0, high=len(rows)),
        tuple(Series(names[i], share[:, i], np.arange(len(rows)) + height[i], i, "dots") for i in drawn),
        ("", *names, "best"),
        tuple(
            (name, *(f"{v:,.3f}" for v in values), names[int(np.argmax(values))])
            for name, values in zip(rows, goodput, strict=True)
        ),
        note=f"A dot for each {':'.join(keys[:num_keys])}; at the right edge, the best of its row.{left_out}",
        rows=tuple(rows),
        legend=tuple((names[i], i) for i in drawn),
        wide=True,
    )


def _goodput(point: Point | None) -> float:
    return (point.mean("goodput") if point else None) or 0.0
