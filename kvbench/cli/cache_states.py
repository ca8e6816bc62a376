"""`kvbench run --cache-state both`: a cold and a warm run beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..core.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from .options import configured
from .output import STDOUT, quiet_compiler, say, write_files
from .progress import ProgressBar

STATES = ("cold", "warm")


def run_both(parameters: dict[str, Any]) -> int:
    """Both runs, their table (or JSON), and with -o a folder for each."""
    if parameters["grids"] or parameters["cache_only"]:
        other = "--grid" if parameters["grids"] else "--cache-only"
        raise UsageError(
            f"--cache-state both is two whole runs; leave {other} out (or use --grid cache.state=cold,warm)"
        )
    if parameters["output"] == STDOUT:
        raise UsageError("--cache-state both has two summaries; give a folder with -o DIR, or --json")
    configurations = [configured(parameters, [("--cache-state both", f"cache.state={state}")]) for state in STATES]
    quiet_compiler(parameters["quiet"])
    from ..bench.run import run
    from ..report.files import make_folder, result_folder
    from ..report.run_json import to_text
    from ..report.side_by_side import side_by_side, side_by_side_document

    folders = []
    if parameters["output"] is not None:
        whole = result_folder(Path(parameters["output"]), parameters["force"])
        folders = [make_folder(whole / state) for state in STATES]
    steps, quiet = parameters["steps"], parameters["quiet"]
    results = []
    for configuration in configurations:
        with ProgressBar(quiet) as progress:
            results.append(run(configuration, progress, record_steps=steps))
        if not results[-1].record.complete:
            say("interrupted: one run of two, nothing to compare")
            return EXIT_INTERRUPTED
    for state, result in zip(STATES, results, strict=True):
        for warning in () if quiet else result.warnings:
            say(f"warning: {state}: {warning}")
    for folder, result in zip(folders, results, strict=False):
        write_files(folder, result, parameters)
    records = [result.record for result in results]
    if parameters["as_json"]:
        click.echo(to_text(side_by_side_document(*records)), nl=False)
    else:
        click.echo(side_by_side(*records))
    return EXIT_OK
