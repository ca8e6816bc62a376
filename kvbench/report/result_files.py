"""The files of one run in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.journal import Journal
from ..core.requests import Requests
from .csv_files import requests_csv, steps_csv, summary_csv
from .files import write_whole
from .frames import parquet
from .record import RunRecord
from .run_json import to_text

CSV, PARQUET = FORMATS = ("csv", "parquet")


def write_result(
    folder: Path,
    record: RunRecord,
    document: Mapping[str, Any],
    journal: Journal,
    requests: Requests,
    steps: bool = False,
    table_format: str = CSV,
) -> list[str]:
    """Write requests.csv, summary.csv, run.json (last: where it is, the others are) and steps.csv. Names.

    Parquet is for the tables that may be large; summary.csv is what compare and gate read. Tables of an earlier run
    in the folder that this one does not write are removed: nobody shall read them as its own.
    """
    files = {
        f"requests.{table_format}": _table(requests_csv(journal, requests), table_format),
        "summary.csv": summary_csv(record),
        **({f"steps.{table_format}": _table(steps_csv(journal), table_format)} if steps else {}),
        "run.json": [to_text(document)],
    }
    for name in {f"{table}.{kind}" for table in ("requests", "steps") for kind in FORMATS} - set(files):
        (folder / name).unlink(missing_ok=True)
    for name, pieces in files.items():
        write_whole(folder / name, pieces)
    return list(files)


def _table(pieces: Iterable[str], table_format: str) -> Iterable[str | bytes]:
    return [parquet(pieces)] if table_format == PARQUET else pieces
