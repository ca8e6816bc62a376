"""`kvbench env` and `kvbench doctor`: what this machine is, and whether it can measure."""

from __future__ import annotations

import click

from ..core.errors import EXIT_FAILED, EXIT_OK


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def env_command(as_json: bool) -> int:
    """Print what a bug report needs: versions, CPU, threads, cache folder, commit."""
    from ..bench.environment import environment
    from ..report.machine_table import environment_text
    from ..report.run_json import to_text

    found = environment()
    click.echo(to_text(found) if as_json else environment_text(found), nl=False)
    return EXIT_OK


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor_command(as_json: bool) -> int:
    """Check that this machine can measure, and say what to mend.

    Load, steadiness, CPU governor, processors, JIT, its cache, memory, clock. Exit code 1 when a measured run would
    not be trustworthy.
    """
    from ..bench.doctor import examine, trustworthy
    from ..report.machine_table import doctor_document, doctor_table
    from ..report.run_json import to_text

    checks = examine()
    trusted = trustworthy(checks)
    click.echo(to_text(doctor_document(checks, trusted)) if as_json else doctor_table(checks, trusted), nl=False)
    return EXIT_OK if trusted else EXIT_FAILED
