"""Runs as summary.csv holds them: identity and values by metric. The only reader of summary.csv in the product."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.config import read_text
from ..core.errors import UsageError
from ..core.printable import csv_text
from ..metrics.latency import LATENCIES
from ..report.csv_files import SUMMARY_COLUMNS, summary_csv
from ..report.record import RunRecord
from ..report.result_files import cut_files

IDENTITY = tuple(SUMMARY_COLUMNS.split(",metric")[0].split(","))
"""The columns that say what a run was."""

STATISTICS = ("mean", "p50", "p90", "p99")
"""Of a latency: what is compared. The bounds of intervals follow from the same samples."""

COLUMNS = SUMMARY_COLUMNS.split(",")

_NEEDED = (*IDENTITY, "metric", "unit", *STATISTICS, "n")
_NEVER_EMPTY = ("run", "fingerprint", "schema", "clock", "seed")
_CLOCKS = ("modelled", "measured")


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

    raises  UsageError: nothing there, not a summary.csv or a cut one, a run that was interrupted
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
    rows: dict[tuple[str, ...], list[dict[str, str]]] = {}
    try:
        for line, row in enumerate(_reader(text, where), 2):
            if None in row or None in row.values():
                raise UsageError(f"{where}: line {line} has not as many cells as the header")
            rows.setdefault(tuple(row[name] for name in IDENTITY), []).append(row)
    except csv.Error as error:
        raise UsageError(f"{where}: not CSV: {error}") from None
    if not text.endswith("\n"):
        raise UsageError(f"{where}: its last line has no end: the file was cut off; write it again")
    return [_run(dict(zip(IDENTITY, key, strict=True)), group, where) for key, group in rows.items()]


def _reader(text: str, where: str) -> csv.DictReader[str]:
    reader = csv.DictReader(io.StringIO(text), strict=True)
    header = list(reader.fieldnames or ())
    if missing := [name for name in _NEEDED if name not in header]:
        raise UsageError(f"{where}: not a summary.csv of kvbench: it has no column {missing[0]}")
    if twice := [name for name in header if header.count(name) > 1]:
        raise UsageError(f"{where}: has two columns {twice[0]}")
    return reader


def _check_identity(identity: dict[str, str], metrics: Collection[str], where: str) -> None:
    """UsageError: cells that say what the run was are empty or wrong, or rows of a latency are not there."""
    for name in _NEVER_EMPTY:
        if not identity[name].strip():
            raise UsageError(f"{where}: a row without {name}: it does not say what was run")
    if identity["clock"] not in _CLOCKS:
        raise UsageError(f"{where}: clock {identity['clock']}: there are {' and '.join(_CLOCKS)}")
    if missing := [name for name in LATENCIES if name not in metrics]:
        raise UsageError(f"{where}: {identity['run']} has no row {missing[0]}: the file was cut off; write it again")


def _run(identity: dict[str, str], rows: list[dict[str, str]], where: str) -> Run:
    values: dict[str, float | None] = {}
    units: dict[str, str] = {}
    _check_identity(identity, {row["metric"] for row in rows}, where)
    for row in rows:
        name = row["metric"]
        statistics = STATISTICS if name in LATENCIES else ("mean",)
        for statistic in statistics:
            metric = f"{name}.{statistic}" if name in LATENCIES else name
            if metric in values:
                raise UsageError(f"{where}: two runs of {identity['run']} with the same identity; compare one of them")
            values[metric] = _number(row[statistic], f"{where}: {metric}")
            units[metric] = row["unit"]
        if name in LATENCIES and row["mean"] and not _number(row["n"], f"{where}: n of {name}"):
            raise UsageError(f"{where}: {name} has values of no samples (n is {row['n'] or 'empty'})")
    return Run(identity, values, units, tuple(rows))


def _number(text: str, where: str) -> float | None:
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:  # NaN, infinity and less than nothing are of no measurement
        raise UsageError(f"{where}: {text!r} is not a number from 0 on")
    return number


def _check_complete(path: Path) -> None:
    document = path.parent / "run.json"
    if path.name != "summary.csv" or not document.exists():
        return
    try:
        content = json.loads(read_text(document))
        complete = content.get("complete", True)
    except (json.JSONDecodeError, AttributeError):
        raise UsageError(f"{document}: not a run.json") from None
    if not complete:
        raise UsageError(f"{path}: the run was interrupted; a partial result is not compared")
    if "summary.csv" in cut_files(path.parent, content):
        raise UsageError(f"{path}: shorter than the run wrote it: the file was cut off; run it again")


def to_csv(runs: Sequence[Run]) -> Iterator[str]:
    """summary.csv of these runs. A modelled run does not depend on the machine, so that is left out."""
    yield SUMMARY_COLUMNS + "\n"
    for run in runs:
        for row in run.rows:
            cells = {**row, "machine": "" if run["clock"] == "modelled" else row["machine"]}
            yield ",".join(csv_text(cells.get(name, "")) for name in COLUMNS) + "\n"
