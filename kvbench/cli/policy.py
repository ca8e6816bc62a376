"""`kvbench policy`: an eviction or routing policy of one's own beside all built-in ones."""

from __future__ import annotations

import os
from pathlib import Path

import click

from ..core.errors import EXIT_OK
from .options import keys_completed
from .output import quiet_compiler, say
from .progress import ProgressBar


@click.command()
@click.argument("policy", metavar="FILE.py:NAME")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, shell_complete=keys_completed, help="Of every run.")
@click.option("--jobs", metavar="N", type=click.IntRange(min=1), help="Workers at most; all cores without it.")
@click.option("-o", "--output", metavar="FILE", help="Write the table there too (policy.md).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of Markdown.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def policy_command(
    policy: str, sets: tuple[str, ...], jobs: int | None, output: str | None, as_json: bool, quiet: bool
) -> int:
    """Compare an eviction or routing policy of your own with all built-in ones on five workloads: a Markdown table.

    A function of (load, cached, accepts, ...) routes requests to four engines; any other one evicts.

    kvbench policy examples/seldom_hit.py:seldom_hit
    """
    from ..advise.policy import compare_policies
    from ..report.files import check_file, write_whole
    from ..report.policy import policy_document, policy_markdown
    from ..report.run_json import to_text

    if output is not None:
        check_file("-o", Path(output))
    quiet_compiler(quiet)
    file, colon, name = policy.rpartition(":")
    own = f"{os.path.abspath(Path(file).expanduser())}:{name}" if colon else policy
    with ProgressBar(quiet, "runs") as progress:
        found = compare_policies(own, sets, jobs or -1, progress)
    if output is not None:
        write_whole(Path(output), [policy_markdown(found) + "\n"])
        if not quiet:
            say(f"wrote {output}")
    click.echo(to_text(policy_document(found)).rstrip("\n") if as_json else policy_markdown(found))
    return EXIT_OK
