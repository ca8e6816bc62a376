"""`kvbench plot`: one chart of finished runs as a file."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import EXIT_OK, UsageError
from .output import say

WHAT = (
    *("ratios", "cdf", "spectrum", "curve", "misses", "phases", "timeline", "occupancy", "hits", "batch"),
    *("fleet", "engines", "tiers", "experts", "devices", "advice", "accuracy"),
)


@click.command()
@click.argument("paths", nargs=-1, metavar="DIR...")
@click.option("--what", type=click.Choice(WHAT), required=True, metavar="CHART", help=f"Which one: {', '.join(WHAT)}.")
@click.option("--metric", metavar="NAME", help="Of several charts this one: ttft, tpot, itl, e2el. [all]")
@click.option("-o", "--output", metavar="FILE", required=True, help=".svg, or .png (extra `plot`).")
@click.option("--baseline", metavar="DIR", help="The run that is drawn in grey. [the first of several folders]")
@click.option("-q", "--quiet", is_flag=True, help="Do not say what was written.")
def plot_command(
    paths: tuple[str, ...], what: str, metric: str | None, output: str, baseline: str | None, quiet: bool
) -> int:
    """Draw one chart of `kvbench report` into a file; several of one kind are numbered by their names.

    kvbench plot results/a results/b --what cdf --metric ttft -o ttft.svg
    """
    from ..report.plot import check_picture

    if not paths:
        raise UsageError("nothing to plot: give a folder that `kvbench run -o` wrote")
    place = Path(output)
    check_picture(place, "-o")
    written = _write([Path(path) for path in paths], what, metric, place, baseline)
    if not quiet:
        say(f"wrote {', '.join(map(str, written))}")
    return EXIT_OK


def _write(paths: list[Path], what: str, metric: str | None, place: Path, baseline: str | None) -> list[Path]:
    from ..report.files import write_whole
    from ..report.pictures.gather import one_kind, read_named
    from ..report.plot import picture

    charts = one_kind(read_named(paths, None if baseline is None else Path(baseline)), what)
    if metric is not None:
        keys = [chart.key.partition("-")[2] for chart in charts]
        charts = [chart for chart, key in zip(charts, keys, strict=True) if key == metric]
        if not charts:
            raise UsageError(f"--metric {metric}: --what {what} has {', '.join(filter(None, keys)) or 'one chart'}")
    written = []
    for i, chart in enumerate(charts):
        own = place
        if len(charts) > 1:
            own = place.with_stem(f"{place.stem}-{chart.key.partition('-')[2] or i + 1}")
        write_whole(own, [picture([chart], place.suffix)])
        written.append(own)
    return written
