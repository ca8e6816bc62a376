"""`kvbench verify`: whether kvbench does what it says."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import EXIT_FAILED, EXIT_OK
from .progress import ProgressBar


@click.group(invoke_without_command=True)
@click.pass_context
def verify_command(context: click.Context) -> int:
    """Compare kvbench with what real engines did."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return EXIT_OK


@verify_command.command("golden")
@click.argument("folder", metavar="DIR")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def golden_command(folder: str, quiet: bool) -> int:
    """Replay recordings of real engines.

    Every .jsonl or .jsonl.gz file of DIR is led through kvbench's own schedulers, caches and pools, and every
    recorded value is compared. Exit code 1 when a stream differs, or is of an engine, version or component that
    kvbench does not know.
    """
    from ..core.jit import compile_watch

    compile_watch.quiet = quiet
    from ..report.golden_table import StreamLine, golden_report
    from ..verify.golden import verify_folder

    with ProgressBar(quiet, "streams") as progress:
        verdicts = verify_folder(Path(folder), progress)
    lines = [
        StreamLine(
            name=v.name,
            engine=v.engine,
            steps=v.steps,
            agreed=v.agreed,
            where=v.where,
            differences=[(d.field, d.recorded, d.kvbench) for d in v.differences],
            unknown=v.unknown,
        )
        for v in verdicts
    ]
    click.echo(golden_report(lines), nl=False)
    return EXIT_OK if all(v.passed for v in verdicts) else EXIT_FAILED
