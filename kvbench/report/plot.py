"""Files of pictures: where they may stand, and charts in the format that the file's name asks for.

SVG is kvbench's own and needs nothing; PNG needs matplotlib, which comes with the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..core.errors import UsageError
from .curves import horizontal
from .files import check_file
from .grid import Grid
from .pictures.chart import Chart
from .pictures.figure import to_png
from .pictures.misses import grid_charts
from .pictures.svg import standalone

SUFFIXES = SVG, PNG = (".svg", ".png")


def check_plot(path: Path, axes: Mapping[str, Sequence[str]]) -> None:
    """UsageError: another kind of file, no folder, no axis to draw over, no matplotlib for a PNG."""
    check_picture(path)
    if horizontal(axes) is None:
        raise UsageError("--plot needs an axis of numbers, for example --grid cache.blocks=1000..64000*4")


def check_picture(path: Path, option: str = "--plot") -> None:
    """UsageError: another kind of file, no folder, no right to write, no matplotlib for a PNG."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{option} {path}: write it as FILE.svg or FILE.png")
    check_file(option, path)
    if path.suffix == PNG:
        check_library()


def check_library() -> None:
    """UsageError: no matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("a PNG needs matplotlib; write FILE.svg, or: pip install 'kvbench[plot]'") from None


def picture(charts: Sequence[Chart], suffix: str) -> bytes:
    """The charts below each other, in a format of SUFFIXES. The same charts, the same bytes."""
    return standalone(charts).encode() if suffix == SVG else to_png(charts)


def draw_grid(result: Grid, suffix: str, curve: str = "miss") -> bytes:
    """The curve of a grid, and below it the tail of TTFT where there is a clock. UsageError: no line to draw."""
    charts = grid_charts(result, curve)
    if not charts:
        raise UsageError("--plot: too few points gave a figure to draw a line")
    return picture(charts, suffix)
