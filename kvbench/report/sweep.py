"""What a sweep left behind: sweep.csv, a table and a document.

sweep.csv has a row for each point and seed: run, clock, the keys of the grid under their full names, seed, devices,
throughput_per_device (output tokens/s), pareto_tpot and pareto_ttft, every figure under its name in `--json`, folder
and error. A point is on a Pareto front where no other has both more throughput per device and a lower p99 of TPOT (or
TTFT), means over its seeds. A seed without figures keeps its point off both fronts, and so does a smaller share of
finished sequences than another point's: refusing the long ones makes a tail look short.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ..metrics.pareto import front
from .choice import Candidate, choose
from .grid import csv_cell, csv_line, short_names, shown_value
from .record import SCHEMA
from .table import WIDTH, grid, note

COSTS = {"tpot": "p99_tpot_ms", "ttft": "p99_ttft_ms"}
"""Front -> the figure that throughput is traded for."""

MOST_ROWS = 40
"""Of a table; a larger sweep shows its fronts."""

MEANING = (
    "front: no other point has more output tokens/s per device and a lower p99 of TPOT or TTFT; never a point that "
    "finished fewer of its sequences than another. Figures are means over n seeds"
)


@dataclass(frozen=True)
class SweepRow:
    """One point under one seed. values: of the keys, as text. error: why it has no figures."""

    values: tuple[str, ...]
    seed: int
    clock: str
    devices: int
    folder: str
    figures: Mapping[str, Any]
    error: str = ""

    @property
    def throughput(self) -> float | None:
        """Output tokens/s of one device."""
        whole = self.figures.get("output_throughput")
        return None if whole is None else float(whole) / self.devices


@dataclass(frozen=True)
class Sweep:
    """All rows that there are, in the order of the points. total: rows of a whole sweep. seeds: of each point."""

    run: str
    keys: tuple[str, ...]
    rows: tuple[SweepRow, ...]
    total: int
    reused: int
    seeds: int = 1

    @property
    def complete(self) -> bool:
        return len(self.rows) == self.total


@dataclass(frozen=True)
class Point:
    """The seeds of one combination; figures are means, None where one of them has none."""

    rows: tuple[SweepRow, ...]

    def whole(self, sweep: Sweep) -> bool:
        """Every seed of the sweep is there."""
        return len(self.rows) == sweep.seeds

    def mean(self, name: str) -> float | None:
        return _mean([row.figures.get(name) for row in self.rows])

    @property
    def throughput(self) -> float | None:
        return _mean([row.throughput for row in self.rows])

    @property
    def finished(self) -> float | None:
        """Share of sequences that finished."""
        counts = self.mean("finished"), self.mean("sequences")
        return None if counts[0] is None or not counts[1] else counts[0] / counts[1]


def points(sweep: Sweep) -> list[Point]:
    """Rows of equal values, in order of the first."""
    found: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in sweep.rows:
        found.setdefault(row.values, []).append(row)
    return [Point(tuple(rows)) for rows in found.values()]


def fronts(all_points: Sequence[Point], complete: bool = True) -> list[list[str]]:
    """The fronts that each point is on. None is on one while rows are missing: what is missing might be in front."""
    if not complete:
        return [[] for _ in all_points]
    most = max((point.finished or 0.0 for point in all_points), default=0.0)
    fair = [point.finished == most for point in all_points]
    marks = {
        name: front([(p.throughput if ok else None, p.mean(cost)) for p, ok in zip(all_points, fair, strict=True)])
        for name, cost in COSTS.items()
    }
    return [[name for name in COSTS if marks[name][i]] for i in range(len(all_points))]


def sweep_csv(sweep: Sweep) -> Iterator[str]:
    """Tidy: one header row, the same bytes for the same sweep, run at once or in parts."""
    names = list(dict.fromkeys(name for row in sweep.rows for name in row.figures))
    marks = [f"pareto_{name}" for name in COSTS]
    head = ["run", "clock", *sweep.keys, "seed", "devices", "throughput_per_device", *marks]
    yield csv_line([*head, *names, "folder", "error"])
    for row, on in _marked(sweep):
        cells = [csv_cell(v) for v in (row.seed, row.devices, row.throughput, *(name in on for name in COSTS))]
        figures = [csv_cell(row.figures.get(name)) for name in names]
        yield csv_line([sweep.run, row.clock, *row.values, *cells, *figures, row.folder, row.error])


def sweep_document(sweep: Sweep) -> dict[str, Any]:
    """What `--json` prints."""
    rows = [
        {
            "grid": dict(zip(sweep.keys, row.values, strict=True)),
            "seed": row.seed,
            "clock": row.clock,
            "devices": row.devices,
            "throughput_per_device": row.throughput,
            "pareto": on,
            "folder": row.folder,
            **row.figures,
            **({"error": row.error} if row.error else {}),
        }
        for row, on in _marked(sweep)
    ]
    return {
        "schema": SCHEMA,
        "run": sweep.run,
        "complete": sweep.complete,
        "reused": sweep.reused,
        "keys": list(sweep.keys),
        "points": rows,
    }


def sweep_table(sweep: Sweep) -> str:
    """A row for each point; of a large sweep only those on a front."""
    found = points(sweep)
    marked = list(zip(found, fronts(found, sweep.complete), strict=True))
    shown = marked if len(marked) <= MOST_ROWS else [(point, on) for point, on in marked if on] or marked[:MOST_ROWS]
    columns = {"TPOT p99 ms": "p99_tpot_ms", "TTFT p99 ms": "p99_ttft_ms", "hit %": "hit_rate"}
    if any(row.figures.get("goodput") is not None for row in sweep.rows):
        columns = {"goodput/s": "goodput"} | columns
    header = [*short_names(sweep.keys), "tokens/s/device", *columns, "n", "front"]
    rows = [
        [
            *map(shown_value, point.rows[0].values),
            *_means(sweep, point, columns),
            str(len(point.rows)) if point.whole(sweep) else f"{len(point.rows)} of {sweep.seeds}",
            " ".join(name.upper() for name in on),
        ]
        for point, on in shown
    ]
    left_out = f" {len(marked) - len(shown)} of {len(marked)} points are on none and only in sweep.csv."
    said = "".join(f"{note(sentence)}\n\n" for sentence in _sentences(sweep, found))
    text = MEANING + (f" ({', '.join(sorted({row.clock for row in sweep.rows}))} clock).")
    return f"{_narrow(header, rows)}\n\n{said}{note(text + (left_out if len(shown) < len(marked) else ''))}"


def _sentences(sweep: Sweep, found: list[Point]) -> list[str]:
    """Which point to take; of an interrupted sweep none, since what is missing might be better."""
    if not sweep.complete:
        return [f"interrupted: {len(sweep.rows)} of {sweep.total} runs; before all are there, no point is on a front"]
    decided = choose(sweep.keys, [Candidate(p.rows[0].values, tuple(r.figures for r in p.rows)) for p in found], False)
    return [*decided.verdict, *decided.idle]


def _means(sweep: Sweep, point: Point, columns: Mapping[str, str]) -> list[str]:
    """Throughput and figures; none of a point that lacks seeds: means over other seeds than the rest do not compare."""
    if not point.whole(sweep):
        return ["-"] * (1 + len(columns))
    figures = [_figure(point.mean(name), 100 if "%" in title else 1) for title, name in columns.items()]
    return [_figure(point.throughput), *figures]


def _narrow(header: list[str], rows: list[list[str]]) -> str:
    """The table; where it is too wide, columns of figures go, the last first."""
    figures = ["hit %", "TTFT p99 ms", "TPOT p99 ms"][: 3 if "goodput/s" in header else 2]
    while True:
        text = grid(header, rows)
        if not figures or max(map(len, text.splitlines())) <= WIDTH:
            return text
        gone = header.index(figures.pop(0))
        header = header[:gone] + header[gone + 1 :]
        rows = [row[:gone] + row[gone + 1 :] for row in rows]


def _marked(sweep: Sweep) -> Iterator[tuple[SweepRow, list[str]]]:
    """Every row with the fronts of its point."""
    found = points(sweep)
    on = {point.rows[0].values: marks for point, marks in zip(found, fronts(found, sweep.complete), strict=True)}
    for row in sweep.rows:
        yield row, on[row.values]


def _mean(values: Sequence[Any]) -> float | None:
    return None if any(value is None for value in values) else fmean(values)


def _figure(value: float | None, scale: int = 1) -> str:
    return "-" if value is None else f"{scale * value:,.2f}"
