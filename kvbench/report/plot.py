"""The curves of a grid as a picture. matplotlib comes with the extra `plot` and is imported when something is drawn.

One line for each combination of the other axes over the one that is a number (cache.blocks, where it is there). The
bounds are lines of their own; what lies below the optimum is shaded: no cache gets there. The same grid gives the same
bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .grid import CAPACITY, POLICY, Grid, GridRow, miss

SUFFIXES = (".svg", ".png")

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#6B6B6B")
"""Okabe and Ito: told apart by colour-blind readers too; then two more. Markers tell them apart in grey."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
INK, FAINT, SHADE = "#222222", "#8A8A8A", "#F1F1EF"

LOG_FROM = 10
"""An axis is logarithmic when its values span at least this factor."""

LABEL_HEIGHT = 0.06
"""Of a line of text, as a share of a panel's height."""

RC = {
    "svg.hashsalt": "kvbench",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
}


@dataclass(frozen=True)
class Line:
    """A name, and points in order of x; y is nan where there is no figure."""

    name: str
    x: list[float]
    y: list[float]


def check_plot(path: Path, axes: Mapping[str, Sequence[str]]) -> None:
    """UsageError: another kind of file, no folder, no axis to draw over, no matplotlib."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: write it as FILE.svg or FILE.png")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if horizontal(axes) is None:
        raise UsageError("--plot needs an axis of numbers, for example --grid cache.blocks=1000..64000*4")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib; install it with: pip install 'kvbench[plot]'") from None


def horizontal(axes: Mapping[str, Sequence[str]]) -> str | None:
    """The axis to draw over: the capacity, else the first one of several numbers."""
    numeric = [key for key, values in axes.items() if len(values) > 1 and all(map(_is_number, values))]
    return CAPACITY if CAPACITY in numeric else next(iter(numeric), None)


def draw(result: Grid, suffix: str) -> bytes:
    """The picture in the format of SUFFIXES."""
    import matplotlib
    from matplotlib.figure import Figure

    over = horizontal({key: [row.values[i] for row in result.rows] for i, key in enumerate(result.keys)})
    if over is None:
        raise UsageError("--plot: too few points were run to draw a line")
    with matplotlib.rc_context(RC):
        panels = 1 if result.cache_only else 2
        figure = Figure(figsize=(8, 1.2 + 3.5 * panels), layout="constrained")
        axes = figure.subplots(panels, 1, sharex=True, squeeze=False)[:, 0]
        _draw_misses(axes[0], result, over)
        if panels == 2:
            _draw_latency(axes[1], result, over)
        axes[-1].set_xlabel(_x_label(result, over))
        figure.suptitle(result.run, x=0.012, ha="left", weight="bold", size=12)
        out = io.BytesIO()
        metadata = {"Date": None} if suffix == ".svg" else {"Software": None}
        figure.savefig(out, format=suffix[1:], dpi=160, metadata=metadata)
    return out.getvalue()


def _draw_misses(axes: Any, result: Grid, over: str) -> None:
    name = "hit_rate_tokens" if result.cache_only else "hit_rate"
    lines = _merged(_misses(result, over, name))
    optimum = lowest(_misses(result, over, f"{name}_optimum"), "optimum")
    infinite = lowest(_misses(result, over, f"{name}_infinite"), "infinite cache")
    lowest_y, highest_y = min([*optimum.y, *infinite.y]), max(y for line in [*lines, optimum] for y in line.y if y == y)
    bottom = max(lowest_y - 0.12 * (highest_y - lowest_y), 0)
    axes.fill_between(optimum.x, bottom, optimum.y, color=SHADE, linewidth=0, zorder=0)
    axes.text(0.03, 0.03, "no cache gets here", transform=axes.transAxes, color=FAINT, style="italic")
    axes.plot(infinite.x, infinite.y, color=FAINT, linestyle=(0, (1, 1.6)), linewidth=1.8)
    axes.plot(optimum.x, optimum.y, color=INK, linestyle=(0, (5, 2)), linewidth=1.6)
    _draw_lines(axes, lines)
    _scale(axes, [x for line in lines for x in line.x])
    axes.set_ylabel("miss ratio (% of prompt tokens)")
    axes.set_ylim(bottom=bottom)
    _label_ends(axes, [*lines, optimum, infinite], [*map(_colour, range(len(lines))), INK, FAINT])


def _draw_latency(axes: Any, result: Grid, over: str) -> None:
    lines = lines_of(result, over, lambda row: row.figures.get("p99_ttft_ms"))
    _draw_lines(axes, lines)
    axes.set_ylabel("TTFT p99 (ms)")
    values = [y for line in lines for y in line.y if y == y]
    if values and min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    _label_ends(axes, lines, list(map(_colour, range(len(lines)))))


def _misses(result: Grid, over: str, rate: str) -> list[Line]:
    """In per cent."""

    def missed(row: GridRow) -> float | None:
        share = miss(row.figures, rate)
        return None if share is None else 100 * share

    return lines_of(result, over, missed)


def lines_of(result: Grid, over: str, figure: Callable[[GridRow], float | None]) -> list[Line]:
    """One line for each combination of the other axes, its points in order of x; nan where there is no figure."""
    at = result.keys.index(over)
    found: dict[str, list[tuple[float, float]]] = {}
    for row in result.rows:
        others = [(key, value) for key, value in zip(result.keys, row.values, strict=True) if key != over]
        value = figure(row)
        found.setdefault(_name(result, others), []).append((float(row.values[at]), nan if value is None else value))
    return [
        Line(name, [x for x, _ in sorted(points)], [y for _, y in sorted(points)]) for name, points in found.items()
    ]


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Lines that lie on one another as one, with all their names."""
    same: dict[tuple[float, ...], list[Line]] = {}
    for line in lines:
        same.setdefault((*line.x, *line.y), []).append(line)
    return [Line(", ".join(line.name for line in group), group[0].x, group[0].y) for group in same.values()]


def lowest(lines: Sequence[Line], name: str) -> Line:
    """The least of several lines at each x."""
    best: dict[float, float] = {}
    for line in lines:
        for x, y in zip(line.x, line.y, strict=True):
            best[x] = min(best.get(x, y), y)
    order = sorted(best)
    return Line(name, order, [best[x] for x in order])


def _name(result: Grid, others: Sequence[tuple[str, str]]) -> str:
    """Values alone where one axis is left, or where a policy says what it is."""
    if not others:
        return result.policy
    if len(others) == 1 and others[0][0] == POLICY:
        return others[0][1]
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in others)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _draw_lines(axes: Any, lines: Sequence[Line]) -> None:
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.7)
    axes.set_axisbelow(True)
    for i, line in enumerate(lines):
        style = {"color": _colour(i), "marker": MARKERS[i % len(MARKERS)], "markersize": 5}
        dash = "-" if i < len(COLOURS) else "-."
        axes.plot(line.x, line.y, linewidth=1.6, linestyle=dash, markeredgecolor="white", markeredgewidth=0.6, **style)


def _scale(axes: Any, values: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if min(values) > 0 and max(values) / min(values) >= LOG_FROM:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axes.margins(x=0.02)


def short_number(value: float) -> str:
    """1000 -> 1k, 2500000 -> 2.5M."""
    for unit, factor in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _x_label(result: Grid, over: str) -> str:
    if over == CAPACITY:
        return f"cache capacity (blocks of {result.block_tokens} tokens)"
    unit = result.units.get(over, "")
    return f"{over} ({unit})" if unit else over


def _label_ends(axes: Any, lines: Sequence[Line], colours: Sequence[str]) -> None:
    """Names at the right ends, moved apart where the ends meet; a thin line leads back to an end."""
    to_axes = axes.transData + axes.transAxes.inverted()
    ends = []
    for line, colour in zip(lines, colours, strict=True):
        known = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y == y]
        if known:
            ends.append((*to_axes.transform(known[-1]), line.name, colour))
    places = apart([y for _, y, _, _ in ends], LABEL_HEIGHT)
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            (1.045, place),
            xycoords="axes fraction",
            color=colour,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 2,
                "shrinkB": 4,
                "relpos": (0, 0.5),
            },
        )


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The heights moved so that no two are nearer than `least`, in their order and around where they were."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[tuple[float, list[int]]] = []  # (middle, members from below)
    for i in order:
        groups.append((heights[i], [i]))
        while len(groups) > 1 and _bottom(groups[-1], least) < _bottom(groups[-2], least) + least * len(groups[-2][1]):
            (high, above), (low, below) = groups.pop(), groups.pop()
            members = below + above
            groups.append(((low * len(below) + high * len(above)) / len(members), members))
    placed = [0.0] * len(heights)
    lowest_bottom = 0.0
    for group in groups:
        bottom = max(_bottom(group, least), lowest_bottom)
        for n, i in enumerate(group[1]):
            placed[i] = bottom + n * least
        lowest_bottom = bottom + least * len(group[1])
    return placed


def _bottom(group: tuple[float, list[int]], least: float) -> float:
    return group[0] - least * (len(group[1]) - 1) / 2


def _is_number(text: str) -> bool:
    try:
        return isfinite(float(text))
    except ValueError:
        return False
