"""`kvbench run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from .options import RunCommand, check_target, configuration_options, configured, force_option
from .output import STDOUT, changes_of, quiet_compiler, say, write_files
from .progress import ProgressBar

if TYPE_CHECKING:
    from ..bench.configure import Configured
    from ..bench.run import Result

DETAILS = ("intervals", "attribution", "steady", "regret")
"""Options that add a table, or a part of the JSON."""


@click.command(cls=RunCommand)
@configuration_options
@click.option("-o", "--output", metavar="DIR", help="Write requests.csv, summary.csv, run.json; - prints summary.csv.")
@force_option
@click.option("--steps", is_flag=True, help="Write steps.csv too (with -o).")
@click.option(
    "--format",
    "table_format",
    type=click.Choice(["csv", "parquet"]),
    default="csv",
    help="Of requests and steps. [csv]",
)
@click.option("--timeline", metavar="FILE", help="Write a trace for ui.perfetto.dev (trace.json).")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of the table.")
@click.option("--cache-state", metavar="STATE", help="At t = 0: cold, warm, prefilled; both, tiers: compared.")
@click.option("--cache-only", is_flag=True, help="Replay through the cache without a clock; print hit rates.")
@click.option(
    "--answers/--no-answers", default=None, help="--cache-only: answers enter the cache as in a run (default), or not."
)
@click.option("--warm-up", metavar="SHARE", help="--cache-only: share of the requests, the first, not counted.")
@click.option(
    "--grid",
    "grids",
    metavar="KEY=V,V",
    multiple=True,
    help="Run every combination; 1000..64000*4 is a range, KEY:KEY=V:V,V:V changes several keys at once.",
)
@click.option("--curve", type=click.Choice(["miss", "hit"]), default="miss", help="What a curve shows. [miss]")
@click.option("--plot", metavar="FILE", help="Draw the curves of a grid: .svg or .png.")
@click.option("--seeds", metavar="K", type=click.IntRange(min=1), help="Run K seeds, from --seed on, as replicates.")
@click.option("--intervals", is_flag=True, help="Intervals of every percentile, correlation heeded.")
@click.option("--attribution", is_flag=True, help="Where the time from arrival to end went.")
@click.option("--regret", is_flag=True, help="Of a fleet: run the requests under the oracle too, and compare.")
@click.option("--steady", is_flag=True, help="Filling, steady part and draining apart.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Say where the time went; show the trace of a fault.")
def run_command(**parameters: Any) -> int:
    """Run a scenario, a file or a trace on a modelled device, or on this machine.

    X is a scenario (kvbench list), a path to a .toml file, or to the run.json of an earlier run.
    """
    output = parameters["output"]
    if parameters["steps"] and output in (None, STDOUT):
        raise UsageError("--steps writes steps.csv; give a folder with -o DIR")
    if parameters["cache_only"] and output is not None and not parameters["grids"]:
        raise UsageError("--cache-only prints hit rates and writes no files; leave -o out (--json for a program)")
    if not parameters["cache_only"] and (parameters["answers"] is not None or parameters["warm_up"] is not None):
        raise UsageError("--answers, --no-answers and --warm-up say what --cache-only counts; add --cache-only")
    if parameters["plot"] is not None and not parameters["grids"]:
        raise UsageError("--plot draws the curves of a grid; add --grid cache.blocks=1000..64000*4")
    check_target(parameters)
    if parameters["table_format"] == "parquet":
        from ..report.frames import check_parquet

        check_parquet()
    if parameters["seeds"] and (parameters["grids"] or parameters["cache_only"]):
        raise UsageError("--seeds runs one configuration; for a grid name the seeds in it: --grid seed=0..4+1")
    if (parameters["seeds"] or parameters["grids"] or parameters["cache_only"]) and _details_of(parameters):
        raise UsageError(f"--{_details_of(parameters)} looks into one run; leave --seeds, --grid or --cache-only out")
    if parameters["timeline"] is not None:
        _check_timeline(parameters)
    if parameters["cache_state"] in ("both", "tiers"):
        from .cache_states import run_both, run_tiers

        return (run_both if parameters["cache_state"] == "both" else run_tiers)(parameters)
    if parameters["grids"]:
        from .grid import run_points

        return run_points(parameters)
    if parameters["seeds"]:
        from .replicates import run_replicates

        return run_replicates(parameters)
    configuration = configured(parameters, changes_of(parameters))
    if parameters["cache_only"]:
        return _replay(configuration, parameters)
    return _run(configuration, parameters)


def _details_of(parameters: dict[str, Any]) -> str:
    return next((name for name in DETAILS if parameters[name]), "")


def _check_timeline(parameters: dict[str, Any]) -> None:
    """UsageError: not one run with a clock, or a place that cannot be written."""
    several = parameters["seeds"] or parameters["grids"] or parameters["cache_state"] in ("both", "tiers")
    if several or parameters["cache_only"]:
        raise UsageError("--timeline draws one run; leave --seeds, --grid, --cache-only or --cache-state both out")
    from ..report.files import check_file

    check_file("--timeline", Path(parameters["timeline"]))


def _run(configuration: Configured, parameters: dict[str, Any]) -> int:
    from ..report.files import result_folder

    # before the run: a place that cannot be written shall not cost one
    output, quiet = parameters["output"], parameters["quiet"]
    folder = None if output in (None, STDOUT) else result_folder(Path(output), parameters["force"])
    quiet_compiler(quiet)
    from ..bench.run import run
    from ..core.allocator import give_back_large

    give_back_large()
    if parameters["regret"]:
        from ..bench.regret import check_regret

        check_regret(configuration)
    with ProgressBar(quiet) as progress:
        result = run(configuration, progress, record_steps=parameters["steps"] or bool(parameters["timeline"]))
    if not quiet:
        for warning in result.warnings:
            say(f"warning: {warning}")
    written = "" if folder is None else _write(folder, result, parameters)
    beside = _regret(configuration, result, parameters)
    click.echo(_shown(result, parameters, beside), nl=False)
    if written and not quiet:
        say(written)
    if parameters["timeline"]:
        _write_timeline(Path(parameters["timeline"]), result, quiet)
    if parameters["verbose"]:
        say(_times(result))
    if not result.record.complete:
        return _interrupted(result, folder)
    return EXIT_FAILED if _nothing_measured(result) else EXIT_OK


def _nothing_measured(result: Result) -> bool:
    """Every sequence failed: said whatever is quiet, so that no script takes it for a result."""
    statuses = result.record.summary.statuses
    failed = set(statuses) == {"failed"}
    if failed:
        say(f"nothing was measured: all {statuses['failed']:,} sequences failed")
    return failed


def _regret(configuration: Configured, result: Result, parameters: dict[str, Any]) -> dict[str, Any]:
    """What --regret asks for beside the summary: name -> table or document."""
    if not parameters["regret"]:
        return {}
    from dataclasses import asdict

    from ..bench.regret import regret_of
    from ..report.fleet_table import regret_table

    with ProgressBar(parameters["quiet"]) as progress:
        found = regret_of(configuration, result, progress)
    return {"regret": [asdict(row) for row in found] if parameters["as_json"] else regret_table(found)}


def _shown(result: Result, parameters: dict[str, Any], beside: dict[str, Any]) -> str:
    if parameters["as_json"]:
        from ..report.run_json import summary_document, to_text

        return to_text(summary_document(result.record) | details(result, parameters) | beside)
    if parameters["output"] == STDOUT:
        from ..report.csv_files import summary_csv

        return "".join(summary_csv(result.record))
    from ..report.table import run_table

    return (
        "\n\n".join([run_table(result.record), *details(result, parameters, as_text=True).values(), *beside.values()])
        + "\n"
    )


def details(result: Result, parameters: dict[str, Any], as_text: bool = False) -> dict[str, Any]:
    """What was asked for beside the summary: name -> table or document."""
    if not any(parameters[name] for name in DETAILS):
        return {}
    from ..report import details as tables

    summary, journal = result.record.summary, result.journal
    found: dict[str, Any] = {}
    if parameters["intervals"]:
        found["intervals"] = (tables.intervals_table if as_text else tables.intervals)(summary, journal)
    if parameters["attribution"]:
        found["attribution"] = (tables.attribution_table if as_text else tables.attribution)(journal)
    if parameters["steady"]:
        found["steady"] = (tables.steady_table if as_text else tables.steady)(journal)
    return found


def _write(folder: Path, result: Result, parameters: dict[str, Any]) -> str:
    names = write_files(folder, result, parameters)
    return f"wrote {', '.join(names)} to {folder}"


def _write_timeline(path: Path, result: Result, quiet: bool) -> None:
    from ..report.files import write_whole
    from ..report.timeline import sampling, timeline_json

    write_whole(path, timeline_json(result.record, result.journal, result.requests))
    if not quiet:
        kept = str(sampling(result.journal))
        say(f"wrote {path}{f', {kept}' if kept else ''}")


def _times(result: Result) -> str:
    stages = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in result.document["host_s"].items())
    jit = result.document["jit"]
    return f"{stages}; compiled {jit['functions_compiled']} functions in {jit['seconds']:.1f} s"


def _interrupted(result: Result, folder: Path | None) -> int:
    summary = result.record.summary
    done, total = summary.statuses.get("finished", 0), summary["sequences"]
    where = "it was not written (no -o)" if folder is None else f"it was written to {folder}"
    say(f"interrupted: a partial result, {done} of {total} sequences finished; {where}")
    return EXIT_INTERRUPTED


def _replay(configuration: Configured, parameters: dict[str, Any]) -> int:
    quiet_compiler(parameters["quiet"])
    from ..bench.replay import replay
    from ..report.replay_table import replay_document, replay_table
    from ..report.run_json import to_text

    found = replay(configuration)
    click.echo(to_text(replay_document(found)) if parameters["as_json"] else replay_table(found), nl=False)
    return EXIT_OK
