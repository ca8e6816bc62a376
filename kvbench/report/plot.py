"""The curves of a grid as a picture. matplotlib comes with the extra `plot` and is imported when something is drawn.

One line for each combination of the other axes over the one that is a number (cache.blocks, where it is there). The
bounds are lines of their own; what lies below the optimum is shaded: no cache gets there. The same grid gives the same
bytes.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .curves import Line, apart, horizontal, lines_of, lowest, short_number
from .files import check_file
from .grid import CAPACITY, Grid, GridRow, miss

SUFFIXES = (".svg", ".png")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#6B6B6B")
"""Okabe and Ito: told apart by colour-blind readers too; then two more. Markers tell them apart in grey."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT, SHADE, RULE = "#222222", "#8A8A8A", "#F1F1EF", "#E4E4E4"

LOG_FROM = 10
"""An axis is logarithmic when its values span at least this factor."""
LABEL_HEIGHT = 0.06
"""Of a line of text, as a share of a panel's height."""
MARGIN = 0.12
"""Room below the lowest line, as a share of the span of all."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "kvbench",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


def check_plot(path: Path, axes: Mapping[str, Sequence[str]]) -> None:
    """UsageError: another kind of file, no folder, no axis to draw over, no matplotlib."""
    check_place(path)
    if horizontal(axes) is None:
        raise UsageError("--plot needs an axis of numbers, for example --grid cache.blocks=1000..64000*4")
    check_library()


def check_place(path: Path) -> None:
    """UsageError: another kind of file, no folder, no right to write."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: write it as FILE.svg or FILE.png")
    check_file("--plot", path)


def check_library() -> None:
    """UsageError: no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'kvbench[plot]'") from None


def draw(result: Grid, suffix: str) -> bytes:
    """The picture in a format of SUFFIXES. Full runs have a second panel: the tail of TTFT."""
    import matplotlib
    from matplotlib.figure import Figure

    over = horizontal({key: [row.values[i] for row in result.rows] for i, key in enumerate(result.keys)})
    if over is None or all(row.figures.get(_rate(result)) is None for row in result.rows):
        raise UsageError("--plot: too few points gave a hit rate to draw a line")
    with matplotlib.rc_context(STYLE):
        panels = 1 if result.cache_only else 2
        figure = Figure(figsize=(8, 1.2 + 3.5 * panels), layout="constrained")
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        labelled = [_draw_misses(axes[0], result, over)]
        if panels == 2:
            labelled.append(_draw_latency(axes[1], result, over))
        _scale_x(axes[-1], [x for line, _ in labelled[0] for x, _ in line.points])
        axes[-1].set_xlabel(_x_label(result, over))
        for panel, ends in zip(axes, labelled, strict=True):
            label_ends(panel, ends)
        figure.align_ylabels()
        figure.suptitle(result.run, x=0.012, ha="left", weight="bold", size=12)
        out = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], dpi=160, metadata=metadata)
    return out.getvalue()


def _draw_misses(axes: Any, result: Grid, over: str) -> list[tuple[Line, str]]:
    """Returns the lines that want a name, with their colours."""
    name = _rate(result)
    lines = _misses(result, over, name)
    optimum = lowest(_misses(result, over, f"{name}_optimum"), "optimum")
    infinite = lowest(_misses(result, over, f"{name}_infinite"), "infinite cache")
    heights = [y for line in (*lines, optimum, infinite) for _, y in line.points]
    bottom = max(min(heights) - MARGIN * (max(heights) - min(heights)), 0)
    x, y = zip(*optimum.points, strict=True)
    axes.fill_between(x, bottom, y, color=SHADE, linewidth=0, zorder=0)
    axes.text(0.03, 0.03, "no cache gets here", transform=axes.transAxes, color=FAINT, style="italic")
    axes.plot(*zip(*infinite.points, strict=True), color=FAINT, linestyle=(0, (1, 1.6)), linewidth=1.8)
    axes.plot(x, y, color=INK, linestyle=(0, (5, 2)), linewidth=1.6)
    _draw_lines(axes, lines)
    axes.set_ylabel("miss ratio (% of prompt tokens)")
    axes.set_ylim(bottom=bottom)
    return [*((line, _colour(line)) for line in lines), (optimum, INK), (infinite, FAINT)]


def _draw_latency(axes: Any, result: Grid, over: str) -> list[tuple[Line, str]]:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    lines = lines_of(result, over, lambda row: row.figures.get("p99_ttft_ms"))
    _draw_lines(axes, lines)
    axes.set_ylabel("TTFT p99 (ms)")
    if _is_wide([y for line in lines for _, y in line.points]):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(bottom=0)
    return [(line, _colour(line)) for line in lines]


def _rate(result: Grid) -> str:
    return "hit_rate_tokens" if result.cache_only else "hit_rate"


def _misses(result: Grid, over: str, rate: str) -> list[Line]:
    """In per cent."""

    def missed(row: GridRow) -> float | None:
        share = miss(row.figures, rate)
        return None if share is None else 100 * share

    return lines_of(result, over, missed)


def _draw_lines(axes: Any, lines: Sequence[Line]) -> None:
    axes.grid(axis="y", color=RULE, linewidth=0.7)
    for line in lines:
        axes.plot(
            *zip(*line.points, strict=True),
            color=_colour(line),
            linewidth=1.6,
            linestyle="-" if line.look < len(COLOURS) else "-.",
            marker=MARKERS[line.look % len(MARKERS)],
            markersize=5.5,
            markeredgecolor="white",
            markeredgewidth=0.6,
        )


def _scale_x(axes: Any, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if _is_wide(values):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.margins(x=0.02)


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


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) >= LOG_FROM * min(values)


def _colour(line: Line) -> str:
    return COLOURS[line.look % len(COLOURS)]


def _x_label(result: Grid, over: str) -> str:
    if over == CAPACITY:
        return f"cache capacity (blocks of {result.block_tokens} tokens)"
    unit = result.units.get(over, "")
    return f"{over} ({unit})" if unit else over
