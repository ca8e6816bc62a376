"""`kvbench validate`."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import EXIT_OK
from .options import clients_completed, force_option, keys_completed
from .output import quiet_compiler, say
from .progress import ProgressBar


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("-o", "--output", metavar="DIR", help="Write fidelity.csv and fidelity.json.")
@force_option
@click.option("--client", metavar="NAME", shell_complete=clients_completed, help="Of the tables. [aiconfigurator-eval]")
@click.option(
    "--set", "sets", metavar="KEY=VALUE", multiple=True, shell_complete=keys_completed, help="Any key, for all."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def validate_command(
    folder: str, output: str | None, force: bool, client: str | None, sets: tuple[str, ...], as_json: bool, quiet: bool
) -> int:
    """Compare predictions with what was measured on real servers.

    DIR holds tables of deployments (CSV with silicon_ttft_ms, silicon_tpot_ms), runs of servers (folders with
    vllm/requests.jsonl and vllm/meta.json) and tables of steps, under any names.
    """
    from ..report.fidelity import fidelity_table
    from ..report.fidelity_files import fidelity_document, write_fidelity
    from ..report.files import result_folder
    from ..report.run_json import to_text

    written = None if output is None else result_folder(Path(output), force)
    quiet_compiler(quiet)
    from ..fidelity.validate import validate

    with ProgressBar(quiet) as progress:
        scores = validate(Path(folder), client or "", [("--set", text) for text in sets], progress)
    if written is not None:
        names = write_fidelity(written, scores)
        if not quiet:
            say(f"wrote {', '.join(names)} to {written}")
    click.echo(to_text(fidelity_document(scores)) if as_json else fidelity_table(scores) + "\n", nl=False)
    return EXIT_OK
