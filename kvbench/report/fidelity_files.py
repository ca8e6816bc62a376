"""fidelity.csv, a row for each figure, and fidelity.json, what was not scored and the summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .fidelity import METRICS, STATISTICS, Case, Scores, spread
from .files import write_whole
from .grid import csv_line
from .record import SCHEMA
from .run_json import to_text

COLUMNS = (
    *("name", "kind", "source", "engine", "model", "device", "dtype", "tp", "load", "prompt_tokens", "output_tokens"),
    *("concurrency", "client", "kv_blocks", "step_times", "doubt", "notes"),
    *("metric", "statistic", "measured_ms", "predicted_ms", "error"),
)


def write_fidelity(folder: Path, scores: Scores) -> list[str]:
    """Write both; returns their names."""
    write_whole(folder / "fidelity.csv", [fidelity_csv(scores.cases)])
    write_whole(folder / "fidelity.json", [to_text(fidelity_document(scores))])
    return ["fidelity.csv", "fidelity.json"]


def fidelity_csv(cases: Sequence[Case]) -> str:
    """A row for each figure of each case."""
    lines = [csv_line([*COLUMNS])]
    for case in cases:
        head = [str(getattr(case, name)) for name in COLUMNS[:-7]]
        for f in case.figures:
            told = (f.metric, f.statistic, repr(f.measured), repr(f.predicted), f"{f.error:.6f}")
            lines.append(csv_line([*head, case.doubt, "; ".join(case.notes), *told]))
    return "".join(lines)


def fidelity_document(scores: Scores) -> dict[str, Any]:
    """The summary by kind, metric and statistic, and what stands beside it."""
    summary = [
        {"kind": kind, "metric": metric, "statistic": statistic, **asdict(found)}
        for kind in dict.fromkeys(case.kind for case in scores.cases)
        for metric in METRICS
        for statistic in STATISTICS
        if (found := spread([case for case in scores.cases if case.kind == kind], metric, statistic))
    ]
    groups = [
        {"group": group, "metric": metric, **asdict(found)}
        for group in dict.fromkeys(case.group for case in scores.cases)
        for metric in METRICS
        if (found := spread([case for case in scores.cases if case.group == group], metric))
    ]
    return {
        "schema": SCHEMA,
        "folder": scores.folder,
        "cases": len(scores.cases),
        "summary_percent": summary,
        "groups_percent": groups,
        "not_scored": [{"what": what, "why": why} for what, why in scores.not_scored],
        "beside": list(scores.beside),
        "notes": list(scores.notes),
        "seconds": round(scores.seconds, 3),
    }
