"""`kvbench kernels`: kernels beside the limits of the machine, against float64, and in experiments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_FAILED, EXIT_OK, UsageError
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..speed.sizes import Sizes


@click.command()
@click.option("--only", metavar="GROUP,GROUP", help="Of decode, prefill, dense, copy, write, radix.")
@click.option("--threads", metavar="N", type=click.IntRange(1), help="Beside one; all processors by default.")
@click.option("--memory", metavar="MB", type=click.IntRange(8), help="Of KV; 4 times the last cache by default.")
@click.option("--check", is_flag=True, help="Compile every variant and compare it with float64 instead.")
@click.option(
    "--experiment", metavar="NAME", help="One of block-size, paged-contiguous, layout, kv-type, streams, bounds."
)
@click.option("--plot", metavar="FILE", help="Draw the experiment: .svg or .png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
def kernels_command(**parameters: Any) -> int:
    """Measure the kernels of the measured clock beside what this machine can do at most.

    Every time is the median of rounds in which all kernels of a group and the machine's limits take turns. Compiling is
    not in it, and shown. --check exits with 1 when a variant is wrong.
    """
    _refuse_what_does_not_go_together(parameters)
    from ..core.compile_watch import compile_watch
    from ..speed.sizes import Sizes, enough_memory

    compile_watch.quiet = parameters["quiet"]
    memory = parameters["memory"]
    sizes = Sizes(memory_bytes=enough_memory() if memory is None else memory << 20)
    threads = parameters["threads"] or os.cpu_count() or 1
    if parameters["check"]:
        return _check(parameters)
    if parameters["experiment"] is not None:
        return _experiment(parameters, threads, sizes)
    return _measure(parameters, threads, sizes)


def _refuse_what_does_not_go_together(parameters: dict[str, Any]) -> None:
    given = [name for name in ("only", "check", "experiment") if parameters[name]]
    if len(given) > 1:
        raise UsageError(f"--{given[0]} and --{given[1]} do not go together; take one of them")
    if parameters["plot"] is not None and parameters["experiment"] is None:
        raise UsageError("--plot draws an experiment; add --experiment block-size")


def _measure(parameters: dict[str, Any], threads: int, sizes: Sizes) -> int:
    from ..report.kernels_table import kernels_document, kernels_report
    from ..speed.run import chosen_groups, measure_kernels

    groups = chosen_groups(parameters["only"])
    with ProgressBar(parameters["quiet"], "kernels") as progress:
        report = measure_kernels(groups, threads, sizes, progress)
    _warn(report.warnings, parameters)
    _show(kernels_document(report), kernels_report(report), parameters)
    return EXIT_OK


def _experiment(parameters: dict[str, Any], threads: int, sizes: Sizes) -> int:
    from ..report.experiment_plot import check_picture, draw_experiment
    from ..report.experiment_table import experiment_document, experiment_report
    from ..report.files import write_whole
    from ..speed.experiments import run_experiment

    picture = None if parameters["plot"] is None else Path(parameters["plot"])
    if picture is not None:
        check_picture(picture)
    with ProgressBar(parameters["quiet"], "kernels") as progress:
        found = run_experiment(parameters["experiment"], threads, sizes, progress)
    if picture is not None:
        write_whole(picture, [draw_experiment(found, picture.suffix)])
    _warn(found.warnings, parameters)
    _show(experiment_document(found), experiment_report(found), parameters)
    return EXIT_OK


def _check(parameters: dict[str, Any]) -> int:
    from ..report.checks_table import checks_document, checks_report
    from ..speed.check import check_kernels

    with ProgressBar(parameters["quiet"], "variants") as progress:
        rows = check_kernels(progress)
    _show(checks_document(rows), checks_report(rows), parameters)
    return EXIT_OK if all(row.passed for row in rows) else EXIT_FAILED


def _show(document: dict[str, Any], text: str, parameters: dict[str, Any]) -> None:
    from ..report.run_json import to_text

    click.echo(to_text(document) if parameters["as_json"] else text, nl=False)


def _warn(warnings: Any, parameters: dict[str, Any]) -> None:
    from .output import say

    for warning in () if parameters["quiet"] else warnings:
        say(f"warning: {warning}")
