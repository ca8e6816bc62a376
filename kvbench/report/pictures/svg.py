"""A chart as SVG. Sizes are in pixels of the picture's own width; the page scales it. Colours come from the style."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise

import numpy as np

from .chart import F64, INK, Axis, Chart, Rule, Series, runs_of_finite
from .ends import apart, clear_place
from .style import CHART, THEME, named, named_text

CHARACTER = 7.2
"""Width of a character of a label: that of the widest usual font, so that no label touches another."""
MOST_FOR_ROWS = 0.45
"""Share of the width that names of rows may take."""
_LINE, _ROW, _DOT_ROW = 15, 14, 21
_TOP, _BOTTOM = 26, 42
_HEIGHTS = ((1000, 340), (600, 270), (0, 220))
"""Of the axes, by the width of the picture."""


class Frame:
    """Where a chart lies in its picture: left, right, top and bottom of its axes. ends: names stand at the right."""

    def __init__(self, chart: Chart, width: int, top: float = 0, ends: bool = True) -> None:
        self.chart = chart
        self.named = (
            [s for s in chart.series if s.name and runs_of_finite(s.x, s.y)] if ends and _has_ends(chart) else []
        )
        rules = [rule.name for rule in chart.rules if rule.across == "y"]
        most = int(MOST_FOR_ROWS * width / CHARACTER)
        self.rows = [text if len(text) <= most else text[: most - 1] + "…" for text in chart.rows]
        ticks = self.rows or [text for _, text in chart.y.ticks()]
        self.left = 14 + max((len(text) for text in ticks), default=0) * CHARACTER
        longest = max((len(name) for name in [*(s.name for s in self.named), *rules]), default=0) * CHARACTER
        self.right = width - max(longest + 14, 24)
        self.top = top + (8 if chart.rows else _TOP) + (30 if chart.twin else 0)
        row = _ROW if len(chart.rows) > 20 else _DOT_ROW
        self.bar = row - 4
        height = len(chart.rows) * row if chart.rows else next(h for least, h in _HEIGHTS if width >= least)
        self.bottom = self.top + height
        self.height = self.bottom + _BOTTOM

    def x(self, values: F64 | float) -> F64:
        return self.left + self.chart.x.place(values) * (self.right - self.left)

    def y(self, values: F64 | float) -> F64:
        share = self.chart.y.place(values)
        return self.top + (share if self.chart.rows else 1 - share) * (self.bottom - self.top)

    def ticks(self, axis: Axis, inner: bool = False) -> list[tuple[float, str]]:
        """(place, text) along the width: as many as stand apart. inner: at round values within."""
        for most in range(14, 1, -1):
            ticks = axis.round_ticks(most) if inner else axis.ticks(most)
            found = [(self.left + float(axis.place(v)) * (self.right - self.left), t) for v, t in ticks]
            if _stand_apart(found):
                return found
        return _thinned(found)


def _has_ends(chart: Chart) -> bool:
    return not chart.rows and not chart.legend


def _stand_apart(ticks: Sequence[tuple[float, str]]) -> bool:
    ends = [(x - len(t) * CHARACTER / 2, x + len(t) * CHARACTER / 2) for x, t in ticks]
    return all(right + 8 <= left for (_, right), (left, _) in pairwise(ends))


def _thinned(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """First and last stay; of the others those with room."""
    kept = [*ticks[:1]]
    for tick in ticks[1:-1]:
        if _stand_apart([kept[-1], tick, ticks[-1]]):
            kept.append(tick)
    return [*kept, ticks[-1]] if len(ticks) > 1 else kept


def to_svg(chart: Chart, width: int, name: str = "chart", css: str = "", ends: bool = True) -> str:
    """An <svg> element with a title and a description. name: unique in its page. ends: with names at the right."""
    frame = Frame(chart, width, ends=ends)
    return _wrapped(chart.heading, chart.said, width, frame.height, name, css, [*_drawing(chart, frame)])


def standalone(charts: Sequence[Chart]) -> str:
    """A whole SVG file: style, titles, legends and notes within; several charts are panels below each other."""
    width = 900 if any(chart.wide for chart in charts) else 720
    height, parts = 0.0, []
    for chart in charts:
        panel, height = _panel(chart, width, height)
        parts += panel
    first = charts[0]
    paper = f'<rect width="{width}" height="{height:.0f}" fill="var(--paper)"/>'
    body = [f"<style>{THEME}{CHART}</style>", paper, *parts]
    said = " ".join(chart.said for chart in charts)
    return _wrapped(first.heading, said, width, height, first.key, "", body, whole=True) + "\n"


def _panel(chart: Chart, width: int, top: float) -> tuple[list[str], float]:
    """A chart with its title, legend and note from `top` down, and where it ends."""
    parts = [f'<text class="title" x="8" y="{top + 22:.0f}">{escape(chart.heading)}</text>']
    at, line = 8.0, top + 43
    for label, colour in chart.legend:
        wide = 24 + len(label) * CHARACTER
        if at > 8 and at + wide > width:
            at, line = 8.0, line + 18
        parts.append(f'<rect x="{at:.1f}" y="{line - 9:.0f}" width="10" height="10" rx="2" fill="{named(colour)}"/>')
        parts.append(f'<text x="{at + 15:.1f}" y="{line:.0f}">{escape(label)}</text>')
        at += wide
    frame = Frame(chart, width, line - 8 if chart.legend else top + 30)
    parts += _drawing(chart, frame)
    notes = textwrap.wrap(chart.note, int((width - 16) / (0.92 * CHARACTER)))
    parts += [f'<text x="8" y="{frame.height + 16 + 17 * i:.0f}">{escape(text)}</text>' for i, text in enumerate(notes)]
    return parts, frame.height + 17 * len(notes) + 12


def _drawing(chart: Chart, frame: Frame) -> Iterator[str]:
    yield from _grid(chart, frame)
    yield from _bars(chart, frame)
    yield from _series(chart, frame)
    yield from _rules(chart, frame)
    yield from _names(frame)


def _wrapped(
    title: str, said: str, width: int, height: float, name: str, css: str, parts: Sequence[str], whole: bool = False
) -> str:
    size = f' width="{width}" height="{height:.0f}"' if whole else ""
    kind = f' class="{css}"' if css else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}"{size}{kind} role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(title)}</title>'
        f'<desc id="{name}-d">{escape(said)}</desc>{"".join(parts)}</svg>'
    )


def _grid(chart: Chart, f: Frame) -> Iterator[str]:
    for x, text in f.ticks(chart.x):
        if chart.rows:
            yield f'<path class="grid" d="M{x:.1f} {f.top:.1f}V{f.bottom:.1f}"/>'
        yield f'<path class="axis" d="M{x:.1f} {f.bottom:.1f}v5"/>'
        yield f'<text x="{x:.1f}" y="{f.bottom + 19:.1f}" text-anchor="middle">{escape(text)}</text>'
    if chart.twin:
        for x, text in f.ticks(chart.twin, inner=True):
            yield f'<path class="axis" d="M{x:.1f} {f.top:.1f}v-5"/>'
            yield f'<text x="{x:.1f}" y="{f.top - 10:.1f}" text-anchor="middle">{escape(text)}</text>'
        yield f'<path class="axis" d="M{f.left:.1f} {f.top:.1f}H{f.right:.1f}"/>'
        yield f'<text x="{f.right:.1f}" y="{f.top - 27:.1f}" text-anchor="end">{escape(chart.twin.label)}</text>'
    if chart.rows:
        step = (f.bottom - f.top) / len(chart.rows)
        for i, text in enumerate(f.rows):
            y = f.top + (i + 0.5) * step + 4
            yield f'<text x="{f.left - 8:.1f}" y="{y:.1f}" text-anchor="end">{escape(text)}</text>'
    else:
        for value, text in chart.y.ticks():
            y = float(f.y(value))
            yield f'<path class="grid" d="M{f.left:.1f} {y:.1f}H{f.right:.1f}"/>'
            yield f'<text x="{f.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        above = f.top - (27 if chart.twin else 13)
        yield f'<text x="2" y="{above:.1f}">{escape(chart.y.label)}</text>'
    yield f'<path class="axis" d="M{f.left:.1f} {f.bottom:.1f}H{f.right:.1f}"/>'
    yield f'<text x="{f.right:.1f}" y="{f.bottom + 37:.1f}" text-anchor="end">{escape(chart.x.label)}</text>'


def _bars(chart: Chart, f: Frame) -> Iterator[str]:
    for bar in chart.bars:
        a, b = float(f.x(bar.start)), float(f.x(bar.end))
        y = float(f.y(bar.row)) + 2
        size = f'width="{max(b - a, 0.3):.2f}" height="{f.bar}"'
        yield f'<rect x="{a:.2f}" y="{y:.1f}" {size} fill="{named(bar.colour)}"/>'


def _series(chart: Chart, f: Frame) -> Iterator[str]:
    for line in chart.series:
        colour = named(line.colour)
        for part in runs_of_finite(line.x, line.y):
            x, y = f.x(line.x[part]), f.y(line.y[part])
            if line.base is not None:
                edge = _path(x, y) + "L" + _path(x[::-1], f.y(line.base[part])[::-1])[1:]
                kind = " faint" if line.style == "faint" else ""
                yield f'<path class="area{kind}" fill="{colour}" d="{edge}Z"/>'
            elif line.style != "dots":
                kind = "" if line.style in ("solid", "joined") else f" {line.style}"
                yield f'<path class="line{kind}" stroke="{colour}" d="{_path(x, y)}"/>'
            if line.style in ("dots", "joined"):
                dots = [named(c) for c in line.dots[part]] or [colour] * len(x)
                for a, b, fill in zip(x, y, dots, strict=True):
                    yield f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{fill}"/>'


def _path(x: F64, y: F64) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _rules(chart: Chart, f: Frame) -> Iterator[str]:
    """Lines of reference. Names of level ones stand at the right with those of the lines."""
    for rule in chart.rules:
        if rule.across == "x" and chart.x.low <= rule.at <= chart.x.high:
            x, kind = float(f.x(rule.at)), "axis" if chart.rows else "slo"
            yield f'<path class="{kind}" d="M{x:.1f} {f.top:.1f}V{f.bottom:.1f}"/>'
            if not chart.rows:
                yield _upright_name(rule, x, f)
        elif rule.across == "y" and chart.y.low <= rule.at <= chart.y.high:
            y = float(f.y(rule.at))
            yield f'<path class="slo" d="M{f.left:.1f} {y:.1f}H{f.right:.1f}"/>'


def _upright_name(rule: Rule, x: float, f: Frame) -> str:
    """Beside its line, where no curve runs."""
    wide = len(rule.name) * CHARACTER
    sides = [(x + 5, "start", x + 5), (x - 5, "end", x - 5 - wide)]
    heights = [f.bottom - 10, f.top + 16, *np.linspace(f.top + 32, f.bottom - 26, 8).tolist()]
    boxes = [
        (left, y - 12, left + wide, y + 4, f'x="{at:.1f}" y="{y:.1f}" text-anchor="{anchor}"')
        for y in heights
        for at, anchor, left in sides
        if left >= f.left and left + wide <= f.right
    ]
    lines = [np.stack([f.x(s.x), f.y(s.y)], axis=1) for s in f.chart.series]
    lines += [
        np.array([[f.x(r.at), f.top], [f.x(r.at), f.bottom]], np.float64) for r in f.chart.rules if r.across == "x"
    ]
    return f'<text class="slo-name" {clear_place(boxes, lines)}>{escape(rule.name)}</text>' if boxes else ""


def _names(f: Frame) -> Iterator[str]:
    """Each line's name beside its right end, moved apart where ends meet, with a thin line back."""
    ends = [(s.name, *_end(s, f), named(s.colour), named_text(s.colour)) for s in f.named]
    level = [r for r in f.chart.rules if r.across == "y" and f.chart.y.low <= r.at <= f.chart.y.high]
    ends += [(rule.name, f.right, float(f.y(rule.at)), named(INK), named_text(INK)) for rule in level]
    placed = apart([f.bottom - y for _, _, y, _, _ in ends], _LINE)
    over = max((p for p in placed), default=0) - (f.bottom - f.top + 4)
    for (name, x, y, colour, text), height in zip(ends, placed, strict=True):
        at = f.bottom - (height - max(over, 0))
        if abs(at - y) > 3 or x < f.right - 4:
            yield f'<path class="lead" stroke="{colour}" d="M{x + 4:.1f} {y:.1f}L{f.right + 7:.1f} {at:.1f}"/>'
        yield f'<text x="{f.right + 10:.1f}" y="{at + 4:.1f}" style="fill:{text}">{escape(name)}</text>'


def _end(line: Series, f: Frame) -> tuple[float, float]:
    last = runs_of_finite(line.x, line.y)[-1]
    x, y = float(f.x(line.x[last][-1])), float(f.y(line.y[last][-1]))
    if line.base is not None:
        y = (y + float(f.y(np.asarray(line.base)[last][-1]))) / 2
    return x, y
