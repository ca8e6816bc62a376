"""`kvbench run --seeds K`: replicates of one configuration, one summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..core.errors import EXIT_OK
from .options import configured
from .output import STDOUT, quiet_compiler, say, write_files
from .progress import ProgressBar


def run_replicates(parameters: dict[str, Any]) -> int:
    """Run every seed; files of each in a folder of its own, summary.csv of all beside them."""
    from ..bench.replicates import run_seeds, same_workload, seeds_from
    from ..report.files import make_folder, result_folder, write_whole
    from ..report.replicates import replicates_csv

    quiet, output = parameters["quiet"], parameters["output"]
    folder = None if output in (None, STDOUT) else result_folder(Path(output), parameters["force"])
    quiet_compiler(quiet)
    seeds = seeds_from(configured(parameters).config["seed"], parameters["seeds"])
    records = []
    with ProgressBar(quiet, "seeds") as progress:
        for result in run_seeds(lambda changes: configured(parameters, changes), seeds, progress):
            records.append(result.record)
            if folder is not None:
                own = make_folder(folder / f"seed-{result.record.seed}")
                write_files(own, result, parameters)
    if folder is not None:
        write_whole(folder / "summary.csv", replicates_csv(records))
    if not quiet and same_workload([record.fingerprint for record in records]):
        say("warning: every seed drew the same workload (nothing in it is drawn): these are no replicates")
    click.echo(_shown(records, parameters), nl=False)
    if folder is not None and not quiet:
        say(f"wrote summary.csv and a folder for each seed to {folder}")
    return EXIT_OK


def _shown(records: list[Any], parameters: dict[str, Any]) -> str:
    from ..report.replicates import replicates_csv, replicates_document, replicates_table

    if parameters["as_json"]:
        from ..report.run_json import to_text

        return to_text(replicates_document(records))
    return "".join(replicates_csv(records)) if parameters["output"] == STDOUT else replicates_table(records) + "\n"
