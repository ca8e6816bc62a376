"""The files of one run in one folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.journal import Journal
from ..core.requests import Requests
from .csv_files import itl_csv, requests_csv, steps_csv, summary_csv
from .files import OF_SOME, write_whole
from .frames import parquet
from .record import RunRecord
from .run_json import to_text

CSV, PARQUET = FORMATS = ("csv", "parquet")

RUN_JSON, BYTES = "run.json", "file_bytes"


def write_result(
    folder: Path,
    record: RunRecord,
    document: Mapping[str, Any],
    journal: Journal,
    requests: Requests,
    steps: bool = False,
    table_format: str = CSV,
) -> list[str]:
    """Write requests.csv, summary.csv, itl.csv, run.json (last: where it is, the others are) and steps.csv. Names.

    Parquet is for the tables that may be large; summary.csv is what compare and gate read. Tables of an earlier run
    in the folder that this one does not write are removed: nobody shall read them as its own. run.json names the
    tables with their bytes, so that one that was cut is noticed.
    """
    files = {
        f"requests.{table_format}": _table(requests_csv(journal, requests), table_format),
        "summary.csv": summary_csv(record),
        "itl.csv": itl_csv(journal, requests),
        **({f"steps.{table_format}": _table(steps_csv(journal), table_format)} if steps else {}),
        **{name: [text] for section in record.sections for name, text in section.files.items()},
    }
    stale = {f"{table}.{kind}" for table in ("requests", "steps") for kind in FORMATS} | set(OF_SOME)
    for name in stale - set(files):
        (folder / name).unlink(missing_ok=True)
    (folder / RUN_JSON).unlink(missing_ok=True)  # until the tables are whole again, there is no run here
    for name, pieces in files.items():
        write_whole(folder / name, pieces)
    num_bytes = {name: (folder / name).stat().st_size for name in files}
    write_whole(folder / RUN_JSON, [to_text({**document, BYTES: num_bytes})])
    return [*files, RUN_JSON]


def cut_files(folder: Path, document: Mapping[str, Any]) -> list[str]:
    """Tables of a run's folder that are shorter than they were written, or not there. document: of its run.json."""
    written = document.get(BYTES)
    found = written.items() if isinstance(written, Mapping) else ()
    return [name for name, size in found if _size(folder / name) < size]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else -1


def _table(pieces: Iterable[str], table_format: str) -> Iterable[str | bytes]:
    return [parquet(pieces)] if table_format == PARQUET else pieces
