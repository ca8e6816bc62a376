"""Tables of deployments: CSV with a row per closed loop, in the columns of aiconfigurator's measured sample.

    id, backend, backend_version, model_path, system, precision, gemm_quant_mode, isl, osl, silicon_concurrency,
    batch_size, tp_size, pp_size, attention_dp_size, moe_ep_size, silicon_ttft_ms, silicon_tpot_ms

Lengths are in tokens, latencies are means. Columns that are missing have their usual value; others are not read.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from .truth import Deployment, Server, Truth

NEEDED = ("backend", "model_path", "system", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")

_DTYPES = (("fp8_block", "fp8-block"), ("fp8", "fp8"), ("nvfp4", "fp4"), ("int8", "int8"), ("fp16", "fp16"))

Row = dict[str, str]


def is_deployments(header: Sequence[str]) -> bool:
    """Whether these are the columns of such a table."""
    return set(NEEDED) <= set(header)


def read_deployments(path: Path, name: str, truth: Truth) -> None:
    """Add the rows of a table; a row that says no load or no time goes to those not scored, with its line."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                truth.deployments.append(_deployment(row, name, line))
            except ValueError as error:
                truth.not_scored.append((f"{name}:{line}", str(error)))


def _deployment(row: Row, source: str, line: int) -> Deployment:
    """ValueError says what is wrong."""
    slots, doubt = _slots(row)
    server = Server(
        engine=row["backend"].strip().lower(),
        version=(row.get("backend_version") or "").strip(),
        model=row["model_path"].strip(),
        system=row["system"].strip(),
        dtype=_dtype(row),
        tp=_ranks(row, "tp_size"),
        pp=_ranks(row, "pp_size"),
        dp=_ranks(row, "attention_dp_size"),
        ep=_ranks(row, "moe_ep_size"),
    )
    measured = {
        ("ttft", "mean"): _positive(row, "silicon_ttft_ms"),
        ("tpot", "mean"): _positive(row, "silicon_tpot_ms"),
    }
    prompt, output = _count(row, "isl"), _count(row, "osl")
    name = (row.get("id") or "").strip() or f"{source}:{line}"
    return Deployment(name, source, server, prompt, output, slots, measured, doubt)


def _slots(row: Row) -> tuple[int, str]:
    if (row.get("silicon_concurrency") or "").strip():
        return _count(row, "silicon_concurrency"), ""
    if (row.get("batch_size") or "").strip():
        return _count(row, "batch_size"), "states a batch size and no concurrency"
    raise ValueError("states neither silicon_concurrency nor batch_size")


def _dtype(row: Row) -> str:
    """How matrix products are quantised; the wider name first, since it holds the other one."""
    told = f"{row.get('precision') or ''} {row.get('gemm_quant_mode') or ''}".lower()
    return next((dtype for name, dtype in _DTYPES if name in told), "bf16")


def _ranks(row: Row, name: str) -> int:
    """1 where nothing, or 0, is told."""
    text = (row.get(name) or "").strip()
    return 1 if not text or _number(text, name) == 0 else _count(row, name)


def _count(row: Row, name: str) -> int:
    text = (row.get(name) or "").strip()
    value = _number(text, name)
    if value < 1 or value != int(value):
        raise ValueError(f"{name} is {text!r}, a count is wanted")
    return int(value)


def _positive(row: Row, name: str) -> float:
    value = _number(row[name], name)
    if value <= 0:
        raise ValueError(f"{name} is {row[name]!r}, a time in ms is wanted")
    return value


def _number(text: str | None, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text!r}, a number is wanted")
    return value
