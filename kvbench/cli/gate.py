"""`kvbench gate`: a candidate against a baseline, with an exit code for each verdict."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from ..gate.judge import Report
    from ..gate.runs import Run


FILES = ("markdown", "junit", "bencher", "action_benchmark")
"""Options that write the report in another tool's form."""


@click.command()
@click.argument("candidates", nargs=-1, required=True, metavar="CANDIDATE...")
@click.option("--baseline", required=True, metavar="PATH", help="A summary.csv or a run's folder.")
@click.option("--max-regression", "limits", multiple=True, metavar="METRIC=5%", help="Judge it; so much worse passes.")
@click.option("--all", "everything", is_flag=True, help="Judge the others too: 0 % (modelled), 5 % (measured).")
@click.option("--exact", is_flag=True, help="Judge all; any difference is a regression (modelled clock).")
@click.option("--update", is_flag=True, help="Write the candidate into the baseline and say what changed.")
@click.option("--markdown", metavar="FILE", help="Markdown, e.g. for $GITHUB_STEP_SUMMARY (appended).")
@click.option("--junit", metavar="FILE", help="JUnit XML.")
@click.option("--bencher", metavar="FILE", help="JSON of Bencher.")
@click.option("--github-action-benchmark", "action_benchmark", metavar="FILE", help="customSmallerIsBetter JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print every outcome as JSON instead of the table.")
def gate_command(candidates: tuple[str, ...], baseline: str, **parameters: Any) -> int:
    """Judge runs against a baseline: folders that `kvbench run -o` wrote, or summary.csv files.

    Metrics that are named are judged, the others reported; `--all --max-regression 5%` sets the limit of all. The exit
    code is the verdict: 0 pass, 1 nothing measured, 3 regression, 4 inconclusive, 5 not comparable (all: kvbench
    --help). Files are written for every verdict, also where nothing could be compared: with the reason.
    """
    from ..core.errors import KvbenchError
    from ..gate.judge import gate, refused
    from ..gate.runs import read_runs

    if parameters["update"]:
        return _update(Path(baseline), [run for path in candidates for run in read_runs(Path(path))], parameters)
    _check_files(parameters)
    runs: list[Run] = []
    try:
        for path in candidates:
            runs += read_runs(Path(path))
        report = gate(
            read_runs(Path(baseline)), runs, parameters["limits"], parameters["everything"], parameters["exact"]
        )
    except KvbenchError as error:
        _tell(refused(error, runs), parameters)
        raise
    _tell(report, parameters)
    return report.exit_code


def _check_files(parameters: dict[str, Any]) -> None:
    """UsageError: a file that is asked for cannot be written."""
    from ..report.files import check_file

    for name in FILES:
        if parameters[name] is not None:
            check_file(f"--{name.replace('action_benchmark', 'github-action-benchmark')}", Path(parameters[name]))


def _tell(report: Report, parameters: dict[str, Any]) -> None:
    """The files that were asked for, then the table. The reason of a refusal goes to stderr, as of any error."""
    from ..gate.table import report_document, report_table
    from ..report.run_json import to_text

    _write(report, parameters)
    if parameters["as_json"]:
        click.echo(to_text(report_document(report)), nl=False)
    elif not report.refusal:
        click.echo(report_table(report))


def _update(path: Path, runs: list[Run], parameters: dict[str, Any]) -> int:
    """Runs that the candidate lacks stay in the baseline."""
    from ..core.errors import KvbenchError
    from ..gate.pairing import pair_up
    from ..gate.runs import read_runs, to_csv
    from ..gate.table import baseline_key, update_lines
    from ..report.files import make_folder, write_whole
    from ..report.run_json import to_text

    if parameters["limits"] or parameters["exact"] or parameters["everything"]:
        raise UsageError("--update judges nothing; leave --max-regression, --all and --exact out")
    if path.is_dir():
        raise UsageError(f"--update --baseline {path}: a folder; name the summary.csv that is to be written")
    if not runs or not any(value is not None for run in runs for value in run.values.values()):
        raise KvbenchError("the candidate is empty: a baseline that measured nothing is none")
    pair_up(runs, runs, by_preset=True)  # no two runs of one name, preset and seed
    before = read_runs(path) if path.exists() else []
    merged = {baseline_key(run): run for run in (*before, *runs)}
    lines = update_lines(before, list(merged.values()))
    make_folder(path.parent)
    write_whole(path, to_csv([merged[key] for key in sorted(merged)]))
    text = "\n".join(lines) or "nothing changed"
    click.echo(to_text({"baseline": str(path), "changes": lines}) if parameters["as_json"] else text + "\n", nl=False)
    return EXIT_OK


def _write(report: Report, parameters: dict[str, Any]) -> None:
    """The files that were asked for. A step summary may hold what other steps wrote: Markdown is appended."""
    from ..gate.action_benchmark import action_benchmark
    from ..gate.bencher import bencher
    from ..gate.junit import junit
    from ..gate.markdown import markdown
    from ..report.files import write_whole

    summary = Path(parameters["markdown"] or "")
    before = summary.read_bytes() + b"\n" if summary.is_file() else b""
    texts: dict[str, Callable[[], str]] = {
        "markdown": lambda: markdown(report, len(before)),
        "junit": lambda: junit(report),
        "bencher": lambda: bencher(report),
        "action_benchmark": lambda: action_benchmark(report),
    }
    for name in FILES:
        if parameters[name] is not None:
            write_whole(Path(parameters[name]), [before if name == "markdown" else b"", texts[name]()])
