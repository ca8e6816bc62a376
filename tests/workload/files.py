"""Small traces as files, and where the public ones are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import TraceInfo, load_trace

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
CONVERSATION = SHARED / "mooncake" / "conversation_trace.jsonl"
AZURE_CODE = SHARED / "azure" / "AzureLLMInferenceTrace_code.csv"


def public(path: Path) -> Path:
    if not path.exists():
        pytest.skip(f"the public trace {path.name} is not beside this checkout")
    return path


def row(timestamp: float | None = 0, length: int = 600, output: int = 10, **more: Any) -> dict[str, Any]:
    """A Mooncake row with the right number of ids, new ones unless `hash_ids` is given."""
    if "hash_ids" not in more:
        row.next_id = getattr(row, "next_id", 0) + 1000
        more["hash_ids"] = [row.next_id + i for i in range(-(-length // 512))]
    found = {"timestamp": timestamp, "input_length": length, "output_length": output, **more}
    return {name: value for name, value in found.items() if value is not None}


def jsonl(folder: Path, *rows: dict[str, Any] | str) -> Path:
    """A file of rows, each an object or raw text."""
    path = folder / "trace.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows), "utf-8")
    return path


def csv(folder: Path, *lines: str, end: str = "\n", last: bool = True) -> Path:
    path = folder / "trace.csv"
    text = end.join(("TIMESTAMP,ContextTokens,GeneratedTokens", *lines)) + (end if last else "")
    path.write_bytes(text.encode())
    return path


def load(path: Path, **options: Any) -> Any:
    """Requests of a trace."""
    return load_trace(path, TraceOptions(**options))[0]


def info(path: Path, **options: Any) -> TraceInfo:
    return load_trace(path, TraceOptions(**options))[1]
