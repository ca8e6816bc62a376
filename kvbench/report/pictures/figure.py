"""A chart as PNG, by matplotlib (extra `plot`). The same chart gives the same bytes."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

from ..curves import Line
from .chart import Chart, Series
from .ends import apart
from .style import LIGHT_INK, on_white

INK, SOFT, RULE = LIGHT_INK["ink"], LIGHT_INK["soft"], LIGHT_INK["rule"]
LABEL_HEIGHT = 0.06
"""Of a line of text, as a share of a panel's height."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "kvbench",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.edgecolor": LIGHT_INK["grey"],
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}
_DASHES: dict[str, Any] = {"dash": (0, (5, 2)), "dots": "none"}


def to_png(charts: Sequence[Chart]) -> bytes:
    """The whole picture: titles, legends, axes, notes; several charts are panels below each other."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        heights = [1.5 + 0.17 * len(chart.rows) if chart.rows else 4.2 for chart in charts]
        wide = any(chart.wide for chart in charts)
        figure = Figure(figsize=(9.5 if wide else 7.5, sum(heights) + 0.4), layout="constrained")
        panels = figure.subplots(len(charts), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axes, chart in zip(panels, charts, strict=True):
            _draw(axes, chart)
            axes.set_title(
                chart.heading, loc="left", weight="bold", size=12, pad=26 if chart.legend or chart.twin else 8
            )
        note = "\n".join(textwrap.fill(chart.note, 130 if wide else 100) for chart in charts if chart.note)
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
    if chart.twin:
        twin = chart.twin.round_ticks(8)
        above = axes.secondary_xaxis("top")
        above.set_xticks([float(chart.twin.place(value)) for value, _ in twin], [text for _, text in twin])
        above.set_xlabel(chart.twin.label)
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
        axes.fill_between(
            x, chart.y.place(line.base), y, color=colour, alpha=0.2 if line.style == "faint" else 0.75, linewidth=0
        )
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


def label_ends(axes: Any, ends: Sequence[tuple[Line, str]]) -> None:
    """Names at the right ends, moved apart where the ends meet; a thin line leads back to each."""
    axes.autoscale_view()  # limits are final only now
    to_axes = axes.transData + axes.transAxes.inverted()
    named = [(line.name, colour, tuple(to_axes.transform(line.points[-1]))) for line, colour in ends if line.points]
    places = apart([end[1] for _, _, end in named], LABEL_HEIGHT)
    for (name, colour, end), place in zip(named, places, strict=True):
        lead = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.6, "shrinkA": 2, "shrinkB": 4}
        axes.annotate(
            name,
            end,
            (1.045, place),
            xycoords="axes fraction",
            color=colour,
            va="center",
            arrowprops={**lead, "relpos": (0, 0.5)},
        )
