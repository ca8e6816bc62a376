"""`kvbench kernels`: kernels beside the limits of the machine."""

from __future__ import annotations

import os

import click

from ..core.errors import EXIT_FAILED, EXIT_OK
from .progress import ProgressBar


@click.command()
@click.option("--only", metavar="GROUP,GROUP", help="Of decode, prefill, copy, write, radix.")
@click.option("--threads", metavar="N", type=click.IntRange(1), help="Beside one: all processors by default.")
@click.option("--memory", metavar="MB", default=256, show_default=True, type=click.IntRange(8), help="Of KV.")
@click.option("--check", is_flag=True, help="Compile every variant and compare it with float64 instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def kernels_command(only: str | None, threads: int | None, memory: int, check: bool, as_json: bool, quiet: bool) -> int:
    """Measure the kernels of the measured clock beside what this machine can do at most.

    Every time is the median of rounds in which all kernels of a group and its limits take turns.
    """
    from ..core.jit import compile_watch

    compile_watch.quiet = quiet
    if check:
        return _check(as_json, quiet)
    from ..report.kernels_table import kernels_document, kernels_report
    from ..report.run_json import to_text
    from ..speed.run import chosen_groups, measure_kernels
    from ..speed.sizes import Sizes
    from .run import say

    groups = chosen_groups(only)
    sizes = Sizes(memory_bytes=memory << 20)
    with ProgressBar(quiet, "kernels") as progress:
        report = measure_kernels(groups, threads or os.cpu_count() or 1, sizes, progress)
    for warning in () if quiet else report.warnings:
        say(f"warning: {warning}")
    click.echo(to_text(kernels_document(report)) if as_json else kernels_report(report), nl=False)
    return EXIT_OK


def _check(as_json: bool, quiet: bool) -> int:
    from ..report.checks_table import checks_document, checks_report
    from ..report.run_json import to_text
    from ..speed.check import check_kernels

    with ProgressBar(quiet, "variants") as progress:
        rows = check_kernels(progress)
    click.echo(to_text(checks_document(rows)) if as_json else checks_report(rows), nl=False)
    return EXIT_OK if all(row.passed for row in rows) else EXIT_FAILED
