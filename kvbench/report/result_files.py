"""The files of one run in one folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.journal import Journal
from ..core.requests import Requests
from .csv_files import requests_csv, steps_csv, summary_csv
from .files import write_whole
from .record import RunRecord
from .run_json import to_text


def write_result(
    folder: Path,
    record: RunRecord,
    document: Mapping[str, Any],
    journal: Journal,
    requests: Requests,
    steps: bool = False,
) -> list[str]:
    """Write requests.csv, summary.csv, run.json (last: where it is, the others are) and steps.csv. Names."""
    files = {
        "requests.csv": requests_csv(journal, requests),
        "summary.csv": summary_csv(record),
        **({"steps.csv": steps_csv(journal)} if steps else {}),
        "run.json": iter([to_text(document)]),
    }
    for name, pieces in files.items():
        write_whole(folder / name, pieces)
    return list(files)
