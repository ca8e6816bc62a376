"""Several seeds of one configuration: a row each, and how far they lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from .csv_files import summary_csv
from .grid import RUN_COLUMNS
from .record import SCHEMA, RunRecord
from .run_json import summary_document
from .table import WIDTH, grid, note

SPREAD_NOTE = (
    "sd: standard deviation between seeds, % of the mean. A difference between two designs that is not larger than "
    "what seeds do is none: kvbench compare pairs them by seed."
)


def replicates_csv(records: Sequence[RunRecord]) -> Iterator[str]:
    """summary.csv with the rows of every seed under one header."""
    for i, record in enumerate(records):
        lines = summary_csv(record)
        header = next(lines)
        if i == 0:
            yield header
        yield from lines


def replicates_document(records: Sequence[RunRecord]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"schema": SCHEMA, "run": records[0].run, "runs": [summary_document(record) for record in records]}


def replicates_table(records: Sequence[RunRecord]) -> str:
    """Rows of seeds, then mean, least, most, spread; of columns that are too wide the last ones go."""
    slo = records[0].slo
    columns = {"goodput/s": "goodput", "kept %": "slo_share"} if slo else {}
    columns |= {t: name for t, name in RUN_COLUMNS.items() if name != "hit_rate_optimum" and (slo or name != "goodput")}
    documents = [summary_document(record) for record in records]
    while max(map(len, (text := _rows(documents, columns)).splitlines())) > WIDTH:
        columns.popitem()
    head = f"{records[0].run}; clock {records[0].clock}; cache {records[0].cache_state}; {len(records)} seeds"
    if slo:
        head += f"\ngoodput/s: sequences a second that kept {slo}; kept %: their share of all"
    return f"{head}\n\n{text}\n\n{note(SPREAD_NOTE)}"


def _rows(documents: Sequence[dict[str, Any]], columns: dict[str, str]) -> str:
    rows = [[str(d["seed"]), *(_cell(title, d[name]) for title, name in columns.items())] for d in documents]
    for label, of in (("mean", statistics.fmean), ("least", min), ("most", max)):
        rows.append([label, *(_over(title, documents, name, of) for title, name in columns.items())])
    rows.append(["sd %", *(_spread([d[name] for d in documents]) for name in columns.values())])
    return grid(["seed", *columns], rows)


def _over(title: str, documents: Sequence[dict[str, Any]], name: str, of: Any) -> str:
    values = [d[name] for d in documents]
    return "-" if None in values else _cell(title, of(values))


def _spread(values: Sequence[float | None]) -> str:
    there = [float(value) for value in values if value is not None]
    if len(there) < len(values) or len(there) < 2 or statistics.fmean(there) == 0:
        return "-"
    return f"{100 * statistics.stdev(there) / abs(statistics.fmean(there)):.1f}"


def _cell(title: str, value: float | None) -> str:
    if value is None:
        return "-"
    if title.endswith("%"):
        return f"{100 * value:.2f}"
    return f"{value:,.1f}" if value == 0 or abs(value) >= 10 else f"{value:.3f}"
