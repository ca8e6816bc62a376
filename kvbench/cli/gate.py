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


@click.command()
@click.argument("candidates", nargs=-1, required=True, metavar="CANDIDATE...")
@click.option("--baseline", required=True, metavar="PATH", help="A summary.csv or a run's folder.")
@click.option("--max-regression", "limits", multiple=True, metavar="[METRIC=]5%", help="How much worse is allowed.")
@click.option("--exact", is_flag=True, help="Any difference is a regression (modelled clock).")
@click.option("--update", is_flag=True, help="Write the candidate into the baseline and say what changed.")
@click.option("--markdown", metavar="FILE", help="Markdown, e.g. for $GITHUB_STEP_SUMMARY (appended).")
@click.option("--junit", metavar="FILE", help="JUnit XML.")
@click.option("--bencher", metavar="FILE", help="JSON of Bencher.")
@click.option("--github-action-benchmark", "action_benchmark", metavar="FILE", help="customSmallerIsBetter JSON.")
@click.option("--json", "as_json", is_flag=True, help="Print every outcome as JSON instead of the table.")
def gate_command(candidates: tuple[str, ...], baseline: str, **parameters: Any) -> int:
    """Judge runs against a baseline: folders that `kvbench run -o` wrote, or summary.csv files.

    The exit code is the verdict: 0 pass, 3 regression, 4 inconclusive, 5 not comparable (all: kvbench --help).
    """
    from ..gate.judge import gate
    from ..gate.runs import read_runs
    from ..gate.table import report_document, report_table
    from ..report.run_json import to_text

    runs = [run for path in candidates for run in read_runs(Path(path))]
    if parameters["update"]:
        return _update(Path(baseline), runs, parameters)
    report = gate(read_runs(Path(baseline)), runs, parameters["limits"], parameters["exact"])
    _write(report, parameters)
    click.echo(to_text(report_document(report)) if parameters["as_json"] else report_table(report) + "\n", nl=False)
    return report.exit_code


def _update(path: Path, runs: list[Run], parameters: dict[str, Any]) -> int:
    """Runs that the candidate lacks stay in the baseline."""
    from ..core.errors import KvbenchError
    from ..gate.pairing import pair_up
    from ..gate.runs import read_runs, to_csv
    from ..gate.table import baseline_key, update_lines
    from ..report.files import make_folder, write_whole
    from ..report.run_json import to_text

    if parameters["limits"] or parameters["exact"]:
        raise UsageError("--update judges nothing; leave --max-regression and --exact out")
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
    before = summary.read_text(encoding="utf-8") + "\n" if summary.is_file() else ""
    texts: dict[str, Callable[[], str]] = {
        "markdown": lambda: markdown(report, len(before.encode())),
        "junit": lambda: junit(report),
        "bencher": lambda: bencher(report.candidates),
        "action_benchmark": lambda: action_benchmark(report.candidates),
    }
    for name, text in texts.items():
        if parameters[name] is None:
            continue
        path = Path(parameters[name])
        write_whole(path, [before if name == "markdown" else "", text()])
