"""Files of finished runs, read: folders of `kvbench run -o`, grids, sweeps, searches for a capacity, and advice."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...core.config import read_text
from ...core.errors import UsageError
from ...core.journal import PARTS, STEP_COLUMNS
from ..csv_files import ITL_COLUMNS, REQUEST_COLUMNS, SUMMARY_COLUMNS
from ..frames import csv_text
from ..grid import Grid, GridRow
from ..record import SCHEMA
from ..run_json import read_run
from .accuracy import NAME as ACCURACY
from .accuracy import NEEDED, Accuracy
from .advice import NAME as ADVICE
from .chart import F64

TABLES = ("grid.csv", "sweep.csv")
POINTS = "points"
"""The folder in which a sweep keeps its runs."""

NOT_NUMBERS = ("tenant", "namespace", "phase", "status")
_FIRST_FIGURES = ("devices", "fingerprint", "requests", "error")
"""Columns of a table of points before which its axes stand."""
_NO_AXES = ("run", "clock", "seed")


@dataclass(frozen=True)
class RunFolder:
    """One run.

    document   run.json
    summary    metric -> row of summary.csv; requests, steps: columns as numbers, NaN where a cell is empty
    status     (rows of requests.csv,) names
    itl        (share, ms) of the gaps between tokens, from the least on; empty in a folder of an earlier version
    experts    columns of experts.csv, where it is there
    label      what tells it from the others; baseline: the others are compared with it
    """

    path: Path
    document: dict[str, Any]
    summary: dict[str, dict[str, str]]
    requests: dict[str, F64]
    status: np.ndarray[Any, Any]
    steps: dict[str, F64] | None
    itl: tuple[F64, F64]
    experts: dict[str, F64] | None = None
    label: str = ""
    baseline: bool = False

    @property
    def head(self) -> dict[str, str]:
        """The identity columns, which all rows share."""
        return next(iter(self.summary.values()))

    def figure(self, metric: str, statistic: str = "mean") -> float:
        """Of summary.csv; NaN: it does not exist."""
        return float(self.summary.get(metric, {}).get(statistic) or "nan")

    def setting(self, key: str) -> Any:
        """A resolved key of the configuration; None: that run had no such key."""
        at: Any = self.document["config"]
        for part in key.split("."):
            at = at.get(part) if isinstance(at, dict) else None
        return at

    def finished(self, column: str) -> F64:
        """Values of the sequences that finished and have one, sorted."""
        values = self.requests[column][self.status == "finished"]
        return np.sort(values[np.isfinite(values)])


@dataclass
class Sources:
    """Everything that a report draws. capacities: documents of `kvbench capacity --json`; advices: of `advise`."""

    runs: list[RunFolder] = field(default_factory=list)
    tables: list[Grid] = field(default_factory=list)
    capacities: list[dict[str, Any]] = field(default_factory=list)
    accuracies: list[Accuracy] = field(default_factory=list)
    advices: list[dict[str, Any]] = field(default_factory=list)


def read_sources(paths: Sequence[Path]) -> Sources:
    """Runs, tables and searches behind these paths. UsageError: nothing there, not ours, another schema."""
    found = Sources()
    for path in dict.fromkeys(paths):
        if path.is_dir():
            _read_folder(path, found)
        elif not path.exists():
            raise UsageError(f"{path}: there is no such file or folder; give what `kvbench run -o` wrote")
        elif path.name == ACCURACY:
            found.accuracies.append(read_accuracy(path))
        elif path.suffix == ".csv":
            found.tables.append(read_table(path))
        elif path.suffix == ".json" and path.name != "run.json":
            _read_document(path, found)
        else:
            raise UsageError(f"{path}: give a run's folder, a grid.csv, or the JSON of `kvbench capacity` or `advise`")
    return found


def _read_folder(path: Path, found: Sources) -> None:
    if (path / "run.json").exists():
        found.runs.append(read_folder(path))
        return
    if (path / ADVICE).exists():
        _read_document(path / ADVICE, found)
        return
    if (path / ACCURACY).exists():
        found.accuracies.append(read_accuracy(path / ACCURACY))
        return
    tables = [path / name for name in TABLES if (path / name).exists()]
    runs = [file.parent for pattern in ("*", f"{POINTS}/*") for file in sorted(path.glob(f"{pattern}/run.json"))]
    if not tables and not runs:
        raise UsageError(f"{path}: holds no run.json and no grid.csv; give a folder that `kvbench run -o` wrote")
    found.tables += map(read_table, tables)
    found.runs += map(read_folder, runs)


def read_folder(path: Path) -> RunFolder:
    """The files of one run. UsageError: one is missing or not ours."""
    document = read_run(path / "run.json")
    summary = _rows(path / "summary.csv", ("schema", "metric", "mean", "p50", "p90", "p99", "clock"))
    if not summary or set(SUMMARY_COLUMNS.split(",")) - set(summary[0]):
        raise UsageError(f"{path / 'summary.csv'}: holds no run of this version of kvbench; run it again")
    other = next((row["schema"] for row in summary if row["schema"] != str(SCHEMA)), None)
    if other is not None:
        raise UsageError(f"{path / 'summary.csv'}: schema {other}, this version reads {SCHEMA}")
    status, requests = _columns(
        path / "requests.csv", [*REQUEST_COLUMNS.split(","), *(f"time_{part}_ms" for part in PARTS)]
    )
    steps = None
    if (path / "steps.csv").exists() or (path / "steps.parquet").exists():
        steps = _columns(path / "steps.csv", [name.replace("_ns", "_ms") for name in STEP_COLUMNS])[1]
    by_metric = {row["metric"]: row for row in summary}
    return RunFolder(path, document, by_metric, requests, status, steps, _itl(path), _experts(path / "experts.csv"))


def _experts(path: Path) -> dict[str, F64] | None:
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
    return _columns(path, names)[1]


def _itl(path: Path) -> tuple[F64, F64]:
    if not (path / "itl.csv").exists():
        return np.zeros(0), np.zeros(0)
    _, columns = _columns(path / "itl.csv", ITL_COLUMNS.split(","))
    return columns["percentile"] / 100, columns["itl_ms"]


def read_table(path: Path) -> Grid:
    """A grid.csv or sweep.csv as the grid that it was."""
    rows = _rows(path, ("run", "error"))
    if not rows:
        raise UsageError(f"{path}: holds no point; run the grid again")
    names = list(rows[0])
    until = min(names.index(name) for name in _FIRST_FIGURES if name in names)
    keys = tuple(name for name in names[:until] if name not in _NO_AXES)
    figures = [
        {name: _number(row[name]) for name in names[until:] if name not in ("error", "fingerprint", "folder")}
        for row in rows
    ]
    points = [
        GridRow(tuple(row[key] for key in keys), {**values, "clock": row.get("clock", "")}, row["error"])
        for row, values in zip(rows, figures, strict=True)
    ]
    run = rows[0]["run"]
    return Grid(run, keys, {}, tuple(points), "hit_rate_tokens" in names, run, 0)


def read_accuracy(path: Path) -> Accuracy:
    """A fidelity.csv of `kvbench validate -o`."""
    return Accuracy(path, _rows(path, NEEDED))


def _read_document(path: Path, found: Sources) -> None:
    """A search for a capacity, or advice."""
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: not valid JSON: {error}") from None
    is_capacity = isinstance(document, dict) and isinstance(document.get("points"), list) and "over" in document
    is_advice = isinstance(document, dict) and isinstance(document.get("levers"), list) and "answer" in document
    if not is_capacity and not is_advice:
        raise UsageError(f"{path}: not the JSON of `kvbench capacity --json` or `kvbench advise --json`")
    if document.get("schema") != SCHEMA:
        raise UsageError(f"{path}: schema {document.get('schema')}, this version reads {SCHEMA}")
    (found.capacities if is_capacity else found.advices).append(document)


def _rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    reader = csv.DictReader(io.StringIO(read_text(path)))
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise UsageError(f"{path}: not a table of kvbench: it has no column {missing[0]}")
    rows = list(reader)
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise UsageError(f"{path}: line {line} has not as many cells as the header")
    return rows


def _columns(path: Path, needed: Sequence[str]) -> tuple[np.ndarray[Any, Any], dict[str, F64]]:
    """(status names, column -> numbers), those that are needed among them."""
    header, *rows = list(csv.reader(io.StringIO(csv_text(path)))) or [[]]
    missing = [name for name in needed if name not in header]
    if missing:
        raise UsageError(f"{path}: has no column {missing[0]}; another version wrote it: run it again")
    if any(len(row) != len(header) for row in rows):
        line = next(i for i, row in enumerate(rows, 2) if len(row) != len(header))
        raise UsageError(f"{path}: line {line} has not as many cells as the header")
    by_name = dict(zip(header, zip(*rows, strict=True) if rows else [()] * len(header), strict=True))
    status = np.array(by_name.get("status", ()), dtype=str)
    numbers = {name: _numbers(by_name[name], path, name) for name in header if name not in NOT_NUMBERS}
    return status, numbers


def _numbers(cells: Sequence[str], path: Path, name: str) -> F64:
    try:
        return np.array([cell or "nan" for cell in cells], np.float64)
    except ValueError as error:
        raise UsageError(f"{path}: column {name}: {error}") from None


def _number(cell: str) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None
