"""run.json: everything that says what a run was, and enough to run it again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.config import read_text
from ..core.errors import UsageError
from .record import SCHEMA, RunRecord

KIND = "kvbench.run"

_HIDDEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What json leaves as it is, and a terminal does not show but obeys."""


def run_document(record: RunRecord, details: Mapping[str, Any]) -> dict[str, Any]:
    """The document of one run.

    details   config (every key, resolved), given (what the user set), trace, versions, machine, host_s, jit,
              git_commit: as `bench` gathers them
    """
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "run": record.run,
        "complete": record.complete,
        "fingerprint": record.fingerprint,
        "path": record.path,
        "engine": record.engine,
        "step_times": record.step_times,
        "notes": list(record.notes),
        "memory_bytes": {line.name: line.num_bytes for line in record.memory},
        **details,
        **{section.name: section.figures for section in record.sections},
    }


def summary_document(record: RunRecord) -> dict[str, Any]:
    """What `--json` prints: identity and every metric under its vLLM-like name."""
    metrics: dict[str, Any] = {name: value for name, (value, _) in record.summary.scalars.items()}
    for name, d in record.summary.latencies.items():
        numbers = {
            "mean": d.mean,
            "median": d.p50,
            "p90": d.p90,
            "p99": d.p99,
            "p99_low": d.p99_low,
            "p99_high": d.p99_high,
        }
        metrics |= {f"{k}_{name}_ms": v for k, v in numbers.items()} | {f"n_{name}": d.n}
    return {
        "schema": SCHEMA,
        "run": record.run,
        "complete": record.complete,
        "fingerprint": record.fingerprint,
        "clock": record.clock,
        "cache_state": record.cache_state,
        "preset": record.preset,
        "overlap": record.overlap,
        "device": record.device,
        "step_times": record.step_times,
        "model": record.model,
        "parallelism": record.parallelism,
        "seed": record.seed,
        "slo": record.slo,
        "statuses": record.summary.statuses,
        "memory_bytes": {line.name: line.num_bytes for line in record.memory},
        **metrics,
    }


def to_text(document: Mapping[str, Any] | list[Any]) -> str:
    """JSON that any reader takes: an infinite number becomes the string that configuration reads back."""
    text = json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def read_run(path: Path) -> dict[str, Any]:
    """The document of a run.json. UsageError: not JSON, not ours, a newer schema."""
    try:
        document = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise UsageError(f"{path}: not the run.json of a kvbench run; a scenario is a .toml file")
    if document.get("schema") != SCHEMA:
        raise UsageError(f"{path}: schema {document.get('schema')}, this version reads {SCHEMA}")
    if not isinstance(document.get("config"), dict) or not isinstance(document.get("given"), dict):
        raise UsageError(f"{path}: has no config; it was changed by hand")
    return document


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    value = value.item() if hasattr(value, "item") else value  # NumPy's numbers
    return "inf" if value == math.inf else value
