"""`kvbench report`: finished runs as one page."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import EXIT_OK, UsageError
from .output import STDOUT, say


@click.command()
@click.argument("paths", nargs=-1, metavar="DIR...")
@click.option("-o", "--output", metavar="FILE", default="report.html", help="The page; - prints it. [report.html]")
@click.option("--baseline", metavar="DIR", help="The run that is drawn in grey. [the first of several folders]")
@click.option("--title", metavar="TEXT", help="Heading of the page.")
@click.option("-q", "--quiet", is_flag=True, help="Do not say what was written.")
def report_command(paths: tuple[str, ...], output: str, baseline: str | None, title: str | None, quiet: bool) -> int:
    """Draw runs as one HTML file that opens from disk, on a phone too.

    DIR is a folder of `kvbench run -o` (with --steps for blocks and batches over time), of a grid or of a sweep, a
    grid.csv, a folder of `kvbench advise -o`, or the JSON of `kvbench capacity --json`.
    """
    from ..report.files import check_file, write_whole
    from ..report.pictures.gather import read_named
    from ..report.pictures.page import to_html

    if not paths:
        raise UsageError("nothing to report: give a folder that `kvbench run -o` wrote")
    if output != STDOUT:
        check_file("-o", Path(output))
    sources = read_named([Path(path) for path in paths], None if baseline is None else Path(baseline))
    page = to_html(sources, title or "Report: " + ", ".join(_runs(paths)))
    if output == STDOUT:
        click.echo(page, nl=False)
        return EXIT_OK
    write_whole(Path(output), [page])
    if not quiet:
        say(f"wrote {output}")
    return EXIT_OK


def _runs(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).resolve().name for path in paths]
