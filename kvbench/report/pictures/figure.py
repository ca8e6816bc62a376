"""A chart as PNG, by matplotlib (extra `plot`). The same chart gives the same bytes."""

from __future__ import annotations

import io
import textwrap
from typing import Any

from ..curves import Line
from ..plot import STYLE, label_ends
from .chart import Chart, Series
from .style import LIGHT_INK, on_white

INK, SOFT, RULE = LIGHT_INK["ink"], LIGHT_INK["soft"], LIGHT_INK["rule"]
_DASHES: dict[str, Any] = {"dash": (0, (5, 2)), "dots": "none"}


def to_png(chart: Chart) -> bytes:
    """The whole picture: title, legend, axes, note."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        height = 1.5 + 0.17 * len(chart.rows) if chart.rows else 4.2
        figure = Figure(figsize=(9.5 if chart.wide else 6.5, height + 0.4), layout="constrained")
        axes = figure.subplots()
        _draw(axes, chart)
        figure.suptitle(chart.title, x=0.012, ha="left", weight="bold", size=12)
        note = textwrap.fill(chart.note, 130 if chart.wide else 88)
        figure.supxlabel(note, x=0.012, ha="left", size=8, color=SOFT)
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=160, metadata={"Software": None})
    return out.getvalue()


def _draw(axes: Any, chart: Chart) -> None:
    """Values are placed by the chart's own axes, from 0 to 1, as in the SVG."""
    axes.set_xlim(0, 1)
    axes.set_ylim(*((len(chart.rows), 0) if chart.rows else (0, 1)))
    ticks = chart.x.ticks(8)
    axes.set_xticks([float(chart.x.place(value)) for value, _ in ticks], [text for _, text in ticks])
    axes.set_xlabel(chart.x.label)
    axes.grid(axis="x" if chart.rows else "y", color=RULE, linewidth=0.7)
    if chart.rows:
        axes.set_yticks([i + 0.5 for i in range(len(chart.rows))], list(chart.rows), fontsize=8)
    else:
        up = chart.y.ticks()
        axes.set_yticks([float(chart.y.place(value)) for value, _ in up], [text for _, text in up])
        axes.set_ylabel(chart.y.label)
    for bar in chart.bars:
        start, end = float(chart.x.place(bar.start)), float(chart.x.place(bar.end))
        axes.barh(bar.row + 0.5, end - start, 0.7, start, color=on_white(bar.colour))
    for line in chart.series:
        _draw_series(axes, chart, line)
    _draw_rules(axes, chart)
    if chart.legend:
        handles = [axes.scatter([], [], marker="s", color=on_white(colour)) for _, colour in chart.legend]
        names = [name for name, _ in chart.legend]
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": len(names), "frameon": False, "fontsize": 8}
        axes.legend(handles, names, **place)
    elif not chart.rows:
        label_ends(axes, [(_end(chart, line), on_white(line.colour)) for line in chart.series if line.name])


def _draw_series(axes: Any, chart: Chart, line: Series) -> None:
    colour, x = on_white(line.colour), chart.x.place(line.x)
    y = line.y if chart.rows else chart.y.place(line.y)
    if line.base is not None:
        axes.fill_between(x, chart.y.place(line.base), y, color=colour, alpha=0.75, linewidth=0)
        return
    axes.plot(
        x,
        y,
        color=colour,
        linewidth=0.8 if line.style == "thin" else 1.6,
        linestyle=_DASHES.get(line.style, "-"),
        marker="o" if line.style in ("dots", "joined") else None,
        markersize=5.5,
        markeredgecolor="white",
        markeredgewidth=0.6,
    )


def _draw_rules(axes: Any, chart: Chart) -> None:
    for rule in chart.rules:
        along = chart.x if rule.across == "x" else chart.y
        if not along.low <= rule.at <= along.high:
            continue
        at = float(along.place(rule.at))
        if rule.across == "x":
            axes.axvline(at, color=SOFT, linestyle="-" if chart.rows else (0, (2, 2)), linewidth=0.9)
            if not chart.rows:
                axes.text(at - 0.01, 0.98, rule.name, ha="right", va="top", fontsize=8)
        else:
            axes.axhline(at, color=INK, linestyle=(0, (2, 2)), linewidth=0.9)
            axes.text(0.01, at + 0.01 if at < 0.9 else at - 0.05, rule.name, fontsize=8)


def _end(chart: Chart, line: Series) -> Line:
    """Its last point, in the middle of an area, for its name."""
    x, y = float(chart.x.place(line.x[-1])), float(chart.y.place(line.y[-1]))
    if line.base is not None:
        y = (y + float(chart.y.place(line.base[-1]))) / 2
    return Line(line.name, ((x, y),))
