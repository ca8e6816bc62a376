"""The picture of an experiment on kernels: lines over numbers, bars over names. The same table, the same bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .curves import Line, short_number
from .experiment_table import Experiment
from .files import check_file
from .pictures.figure import INK, RULE, STYLE, label_ends
from .pictures.style import LIGHT
from .plot import SUFFIXES, check_library

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Tell lines apart in grey."""
BAR_SHARE = 0.8
"""Of the room between two names that their bars take."""


def check_picture(path: Path) -> None:
    """UsageError: another kind of file, no folder, no matplotlib."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"--plot {path}: write it as FILE.svg or FILE.png")
    check_file("--plot", path)
    check_library()


def draw_experiment(found: Experiment, suffix: str) -> bytes:
    """The picture in a format of plot.SUFFIXES."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.7), layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="y", color=RULE, linewidth=0.7)
        if all(isinstance(x, str) for x in found.x):
            _draw_bars(axes, found)
        else:
            _draw_lines(axes, found)
        axes.set_xlabel(found.x_label)
        axes.set_ylabel(found.y_label)
        figure.suptitle(found.name, x=0.012, ha="left", weight="bold", size=12)
        out = io.BytesIO()
        figure.savefig(
            out, format=suffix[1:], dpi=160, metadata={"Date": None} if suffix == ".svg" else {"Software": None}
        )
    return out.getvalue()


def _draw_bars(axes: Any, found: Experiment) -> None:
    width = BAR_SHARE / len(found.lines)
    for i, (name, values) in enumerate(found.lines):
        places = [at - BAR_SHARE / 2 + width * (i + 0.5) for at in range(len(found.x))]
        axes.bar(places, values, width * 0.92, color=LIGHT[i % len(LIGHT)], label=name)
    axes.set_xticks(range(len(found.x)), [str(x) for x in found.x])
    axes.set_ylim(bottom=0)
    if len(found.lines) > 1:
        axes.legend(frameon=False, labelcolor=INK)


def _draw_lines(axes: Any, found: Experiment) -> None:
    ends = []
    for i, (name, values) in enumerate(found.lines):
        points = tuple((float(x), y) for x, y in zip(found.x, values, strict=True))
        colour = LIGHT[i % len(LIGHT)]
        axes.plot(
            *zip(*points, strict=True), color=colour, marker=MARKERS[i % len(MARKERS)], linewidth=1.6, markersize=5.5
        )
        ends.append((Line(name, points, i), colour))
    axes.set_xscale("log", base=2)
    axes.set_xticks([float(x) for x in found.x], [short_number(float(x)) for x in found.x])
    axes.set_ylim(bottom=0)
    label_ends(axes, ends)
