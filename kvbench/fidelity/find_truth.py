"""Tables of deployments and runs of servers, found in a folder under any names."""

from __future__ import annotations

import csv
from pathlib import Path

from ..core.errors import UsageError
from .deployments import is_deployments, read_deployments
from .server_runs import is_server_run, read_server_run
from .step_tables import is_step_table
from .truth import Truth


def find_truth(folder: Path) -> Truth:
    """Everything below a folder that can be compared. UsageError: no such folder, nothing in it."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; give one that holds measured results")
    found = Truth()
    runs = [path for path in [folder, *sorted(folder.rglob("*"))] if path.is_dir() and is_server_run(path)]
    for path in runs:
        try:
            found.runs.append(read_server_run(path))
        except UsageError as error:
            found.not_scored.append((_below(path, folder), str(error)))
    for path in sorted(folder.rglob("*.csv")):
        if any(run in path.parents for run in runs):
            continue
        header = _header(path)
        if is_deployments(header):
            read_deployments(path, _below(path, folder), found)
        elif is_step_table(header):
            found.steps.append(path)
        else:
            found.not_scored.append((_below(path, folder), "has neither the columns of deployments nor those of steps"))
    if not (found.deployments or found.runs or found.steps):
        raise UsageError(
            f"{folder}: no table of deployments (CSV with silicon_ttft_ms and silicon_tpot_ms) and "
            "no run (a folder with vllm/requests.jsonl and vllm/meta.json)"
        )
    return found


def _below(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder))


def _header(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return []
