"""Runs as summary.csv holds them: identity and values by metric. The only reader of summary.csv in the product."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.config import read_text
from ..core.errors import UsageError
from ..metrics.latency import LATENCIES
from ..report.csv_files import SUMMARY_COLUMNS, summary_csv
from ..report.record import RunRecord

IDENTITY = tuple(SUMMARY_COLUMNS.split(",metric")[0].split(","))
"""The columns that say what a run was."""

STATISTICS = ("mean", "p50", "p90", "p99")
"""Of a latency: what is compared. The bounds of intervals follow from the same samples."""

COLUMNS = SUMMARY_COLUMNS.split(",")


@dataclass(frozen=True)
class Run:
    """One run.

    identity   IDENTITY -> text
    values     metric ("ttft.p99", "hit_rate") -> value in the unit of the file; None: it does not exist
    units      metric -> unit
    rows       the lines of summary.csv as they were, column -> text
    """

    identity: dict[str, str]
    values: dict[str, float | None]
    units: dict[str, str]
    rows: tuple[dict[str, str], ...]

    def __getitem__(self, name: str) -> str:
        return self.identity[name]

    def bound(self, metric: str, side: str) -> float | None:
        """The iid bound ("low", "high") of a percentile, where the file has one."""
        name, _, statistic = metric.partition(".")
        row = next((row for row in self.rows if row["metric"] == name), {})
        return _number(row.get(f"{statistic}_{side}") or "", "a bound")


def read_runs(path: Path) -> list[Run]:
    """The runs of a summary.csv, of a run's folder, or of a folder of such folders (a grid), in order of their names.

    raises  UsageError: nothing there, not a summary.csv, a run that was interrupted
    """
    if path.is_dir():
        own = path / "summary.csv"
        files = [own] if own.exists() else sorted(path.glob("*/summary.csv"))
        if not files:
            raise UsageError(f"{path}: holds no summary.csv; give a folder that `kvbench run -o` wrote")
        return [run for file in files for run in read_runs(file)]
    if not path.exists():
        raise UsageError(f"{path}: there is no such file; give a run's folder or a summary.csv")
    _check_complete(path)
    return parse_runs(read_text(path), str(path))


def runs_of(records: Sequence[RunRecord]) -> list[Run]:
    """Runs that have just been made, with the values that their summary.csv would hold."""
    return [run for record in records for run in parse_runs("".join(summary_csv(record)), record.run)]


def parse_runs(text: str, where: str) -> list[Run]:
    """Runs in the order of their first rows; empty for a file that holds its header only."""
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in (*IDENTITY, "metric", "mean") if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{where}: not a summary.csv of kvbench: it has no column {missing[0]}")
    rows: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for line, row in enumerate(reader, 2):
        if None in row or None in row.values():
            raise UsageError(f"{where}: line {line} has not as many cells as the header")
        rows.setdefault(tuple(row[name] for name in IDENTITY), []).append(row)
    return [_run(dict(zip(IDENTITY, key, strict=True)), group, where) for key, group in rows.items()]


def _run(identity: dict[str, str], rows: list[dict[str, str]], where: str) -> Run:
    values: dict[str, float | None] = {}
    units: dict[str, str] = {}
    for row in rows:
        name = row["metric"]
        statistics = STATISTICS if name in LATENCIES else ("mean",)
        for statistic in statistics:
            metric = f"{name}.{statistic}" if name in LATENCIES else name
            if metric in values:
                raise UsageError(f"{where}: two runs of {identity['run']} with the same identity; compare one of them")
            values[metric] = _number(row.get(statistic, ""), f"{where}: {metric}")
            units[metric] = row.get("unit", "")
    return Run(identity, values, units, tuple(rows))


def _number(text: str, where: str) -> float | None:
    try:
        return float(text) if text else None
    except ValueError:
        raise UsageError(f"{where}: {text!r} is not a number") from None


def _check_complete(path: Path) -> None:
    document = path.parent / "run.json"
    if path.name != "summary.csv" or not document.exists():
        return
    try:
        complete = json.loads(read_text(document)).get("complete", True)
    except (json.JSONDecodeError, AttributeError):
        raise UsageError(f"{document}: not a run.json") from None
    if not complete:
        raise UsageError(f"{path}: the run was interrupted; a partial result is not compared")


def to_csv(runs: Sequence[Run]) -> Iterator[str]:
    """summary.csv of these runs. A modelled run does not depend on the machine, so that is left out."""
    yield SUMMARY_COLUMNS + "\n"
    for run in runs:
        for row in run.rows:
            cells = {**row, "machine": "" if run["clock"] == "modelled" else row["machine"]}
            out = io.StringIO()
            csv.writer(out, lineterminator="\n").writerow([cells.get(name, "") for name in COLUMNS])
            yield out.getvalue()
