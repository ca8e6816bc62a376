"""A chart as SVG. Sizes are in pixels of the picture's own width; the page scales it. Colours come from the style."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ..curves import apart
from .chart import F64, Chart, Series, runs_of_finite
from .style import CHART, THEME, named

NARROW, BROAD = 384, 1200
"""Widths: of a column (and a phone), and of the whole page."""

_CHARACTER = 6.1
"""Mean width of a character of a label; figures are wider."""
_WIDEST = 7.0
_TOP, _BOTTOM, _LINE, _ROW = 10, 38, 13, 14


class Frame:
    """Where a chart lies in its picture: left, right, top and bottom of its axes."""

    def __init__(self, chart: Chart, width: int, top: int = 0) -> None:
        ticks = chart.rows or [text for _, text in chart.y.ticks()]
        self.left = 10 + max((len(text) for text in ticks), default=0) * _WIDEST
        names = [] if chart.rows else [s.name for s in chart.series]
        label = max((len(name) for name in names), default=0) * _CHARACTER
        self.right = width - max(min(label + 16, 0.42 * width), 16)
        self.top = top + _TOP + (0 if chart.rows else 14)
        height = len(chart.rows) * _ROW if chart.rows else 196
        if chart.rows and not chart.bars:
            height = len(chart.rows) * 19
        self.bottom = self.top + height
        self.height = self.bottom + _BOTTOM
        self.chart = chart

    def x(self, values: F64 | float) -> F64:
        return self.left + self.chart.x.place(values) * (self.right - self.left)

    def y(self, values: F64 | float) -> F64:
        share = self.chart.y.place(values)
        return self.top + (share if self.chart.rows else 1 - share) * (self.bottom - self.top)


def to_svg(chart: Chart, width: int = NARROW, name: str = "chart", css: str = "") -> str:
    """An <svg> element with a title and a description. name: unique in its page."""
    frame = Frame(chart, width)
    parts = [*_grid(chart, frame), *_bars(chart, frame), *_series(chart, frame), *_rules(chart, frame)]
    if not chart.rows:
        parts += _names(chart, frame)
    return _wrapped(chart, width, frame.height, name, css, parts)


def standalone(chart: Chart) -> str:
    """A whole SVG file: style, title and legend within."""
    width = 900 if chart.wide else 560
    top = 26 + (18 if chart.legend else 0)
    frame = Frame(chart, width, top)
    parts = [f'<rect width="{width}" height="{frame.height}" fill="var(--paper)"/>']
    parts.append(f'<text class="title" x="8" y="20">{escape(chart.title)}</text>')
    at = 8.0
    for label, colour in chart.legend:
        parts.append(f'<rect x="{at:.1f}" y="30" width="9" height="9" rx="2" fill="{named(colour)}"/>')
        parts.append(f'<text x="{at + 13:.1f}" y="38">{escape(label)}</text>')
        at += 27 + len(label) * _CHARACTER
    parts += [*_grid(chart, frame), *_bars(chart, frame), *_series(chart, frame), *_rules(chart, frame)]
    if not chart.rows:
        parts += _names(chart, frame)
    for i, line in enumerate(_folded(chart.note, int(width / 5.6))):
        parts.append(f'<text x="8" y="{frame.height + 12 + 15 * i:.0f}">{escape(line)}</text>')
    height = frame.height + 15 * len(_folded(chart.note, int(width / 5.6))) + 6
    style = f"<style>{THEME}{CHART}</style>"
    return _wrapped(chart, width, height, chart.key, "", [style, *parts], whole=True) + "\n"


def _wrapped(
    chart: Chart, width: int, height: float, name: str, css: str, parts: Sequence[str], whole: bool = False
) -> str:
    size = f' width="{width}" height="{height:.0f}"' if whole else ""
    kind = f' class="{css}"' if css else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:.0f}"{size}{kind} role="img" '
        f'aria-labelledby="{name}-t {name}-d"><title id="{name}-t">{escape(chart.title)}</title>'
        f'<desc id="{name}-d">{escape(chart.said)}</desc>{"".join(parts)}</svg>'
    )


def _grid(chart: Chart, f: Frame) -> Iterator[str]:
    most = max(int((f.right - f.left) / 62), 2)
    for value, text in chart.x.ticks(most):
        x = float(f.x(value))
        if chart.rows:
            yield f'<path class="grid" d="M{x:.1f} {f.top:.1f}V{f.bottom:.1f}"/>'
        yield f'<path class="axis" d="M{x:.1f} {f.bottom:.1f}v4"/>'
        yield f'<text x="{x:.1f}" y="{f.bottom + 16:.1f}" text-anchor="middle">{escape(text)}</text>'
    if chart.rows:
        step = (f.bottom - f.top) / len(chart.rows)
        for i, text in enumerate(chart.rows):
            y = f.top + (i + 0.5) * step + 4
            yield f'<text x="{f.left - 6:.1f}" y="{y:.1f}" text-anchor="end">{escape(text)}</text>'
    else:
        for value, text in chart.y.ticks():
            y = float(f.y(value))
            yield f'<path class="grid" d="M{f.left:.1f} {y:.1f}H{f.right:.1f}"/>'
            yield f'<text x="{f.left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        yield f'<text x="2" y="{f.top - 10:.1f}">{escape(chart.y.label)}</text>'
    yield f'<path class="axis" d="M{f.left:.1f} {f.bottom:.1f}H{f.right:.1f}"/>'
    yield f'<text x="{f.right:.1f}" y="{f.bottom + 32:.1f}" text-anchor="end">{escape(chart.x.label)}</text>'


def _bars(chart: Chart, f: Frame) -> Iterator[str]:
    for bar in chart.bars:
        a, b = float(f.x(bar.start)), float(f.x(bar.end))
        y = float(f.y(bar.row)) + 2
        yield f'<rect x="{a:.2f}" y="{y:.1f}" width="{max(b - a, 0.3):.2f}" height="10" fill="{named(bar.colour)}"/>'


def _series(chart: Chart, f: Frame) -> Iterator[str]:
    for line in chart.series:
        colour = named(line.colour)
        for part in runs_of_finite(line.x, line.y):
            x, y = f.x(line.x[part]), f.y(line.y[part])
            if line.base is not None:
                edge = _path(x, y) + "L" + _path(x[::-1], f.y(line.base[part])[::-1])[1:]
                yield f'<path class="area" fill="{colour}" d="{edge}Z"/>'
            elif line.style != "dots":
                kind = "" if line.style in ("solid", "joined") else f" {line.style}"
                yield f'<path class="line{kind}" stroke="{colour}" d="{_path(x, y)}"/>'
            if line.style in ("dots", "joined"):
                for a, b in zip(x, y, strict=True):
                    yield f'<circle class="dot" cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>'


def _path(x: F64, y: F64) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in zip(x, y, strict=True))


def _rules(chart: Chart, f: Frame) -> Iterator[str]:
    for rule in chart.rules:
        if rule.across == "x" and chart.x.low <= rule.at <= chart.x.high:
            x, kind = float(f.x(rule.at)), "axis" if chart.rows else "slo"
            yield f'<path class="{kind}" d="M{x:.1f} {f.top:.1f}V{f.bottom:.1f}"/>'
            if not chart.rows:
                place = f'x="{x - 4:.1f}" y="{f.top + 10:.1f}" text-anchor="end"'
                yield f'<text class="slo-name" {place}>{escape(rule.name)}</text>'
        elif rule.across == "y" and chart.y.low <= rule.at <= chart.y.high:
            y = float(f.y(rule.at))
            yield f'<path class="slo" d="M{f.left:.1f} {y:.1f}H{f.right:.1f}"/>'
            below = y + 13 if y < f.top + 14 else y - 4
            yield f'<text class="slo-name" x="{f.left + 4:.1f}" y="{below:.1f}">{escape(rule.name)}</text>'


def _names(chart: Chart, f: Frame) -> Iterator[str]:
    """Each line's name beside its right end, moved apart where ends meet, with a thin line back."""
    ends = [(line, *_end(line, f)) for line in chart.series if line.name and runs_of_finite(line.x, line.y)]
    placed = apart([f.bottom - y for _, _, y in ends], _LINE)
    over = max((p for p in placed), default=0) - (f.bottom - f.top + 4)
    for (line, x, y), height in zip(ends, placed, strict=True):
        at = f.bottom - (height - max(over, 0))
        colour = named(line.colour)
        if abs(at - y) > 3 or x < f.right - 4:
            yield f'<path class="lead" stroke="{colour}" d="M{x + 3:.1f} {y:.1f}L{f.right + 6:.1f} {at:.1f}"/>'
        yield f'<text x="{f.right + 9:.1f}" y="{at + 4:.1f}" style="fill:{colour}">{escape(line.name)}</text>'


def _end(line: Series, f: Frame) -> tuple[float, float]:
    last = runs_of_finite(line.x, line.y)[-1]
    x, y = float(f.x(line.x[last][-1])), float(f.y(line.y[last][-1]))
    if line.base is not None:
        y = (y + float(f.y(np.asarray(line.base)[last][-1]))) / 2
    return x, y


def _folded(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, width)
