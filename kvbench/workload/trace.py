"""A trace file -> Requests: read, recognise the format by its content, change times, number the streams."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM, Requests
from . import azure, mooncake, retime
from .lengths import max_tokens, produced_tokens
from .rows import I64, Rows, shown
from .table import request_table


@dataclass(frozen=True)
class TraceOptions:
    """The trace.* keys (without the path), and what else changes how a trace is read.

    num_prompts   only the first rows of the file; 0 is all
    max_tokens    as lengths.max_tokens
    jitter_seed   seed of the jitter
    """

    format: str = "auto"
    block_tokens: int = 0
    time_scale: float = 1.0
    rate: float = 0.0
    jitter_ms: float = 0.0
    skip_bad_rows: bool = False
    num_prompts: int = 0
    max_tokens: Any = "output"
    jitter_seed: int = 0


@dataclass(frozen=True)
class TraceInfo:
    """Where requests came from.

    sha256         of the whole file, also when only its first rows are read
    num_rows       rows that became requests
    block_tokens   prompt tokens that one hash id covers; 0 where the format has no ids
    """

    path: str
    format: str
    sha256: str
    num_rows: int
    block_tokens: int


def load_trace(path: str | Path, options: TraceOptions | None = None) -> tuple[Requests, TraceInfo]:
    """Requests of a trace. UsageError: no such file, not a trace, a wrong row (`path:line: ...`)."""
    options = options or TraceOptions()
    name = str(path)
    data = _content(name)
    kind, lines, numbers = _lines(name, data, options.format)
    lines, numbers, notes = _first_rows(name, lines, numbers, options.num_prompts, header=kind == "azure")
    if kind == "azure":
        rows, found = azure.read(name, lines, numbers, options.skip_bad_rows)
    else:
        # a stated rate makes the unit of the times irrelevant
        unit = 0.0 if options.rate else options.time_scale
        rows, found = mooncake.read(name, lines, numbers, options.skip_bad_rows, options.block_tokens, unit)
    rows, changed = _retimed(rows, options)
    requests = _requests(rows, options.max_tokens, notes + found + changed)
    return requests, TraceInfo(name, kind, hashlib.sha256(data).hexdigest(), len(rows), rows.block_tokens)


def _content(name: str) -> bytes:
    """The file's bytes. UsageError: missing, a folder, unreadable, compressed."""
    try:
        data = Path(name).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file; check trace.path") from None
    except IsADirectoryError:
        raise UsageError(f"{name}: is a folder; name a trace file in it") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"PK\x03\x04")):
        raise UsageError(f"{name}: is compressed; unpack it first")
    return data


def _lines(name: str, data: bytes, wanted: str) -> tuple[str, list[str], I64]:
    """Format, non-empty lines, and their numbers from 1. UsageError: binary, empty, of no known format."""
    if b"\0" in data:
        raise UsageError(f"{name}: is a binary file, not a trace; wanted is Mooncake JSONL or Azure CSV")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: is not UTF-8 text; wanted is Mooncake JSONL or Azure CSV") from None
    # not splitlines(): a JSON string may hold U+2028 and its like
    stripped = [line.strip() for line in text.split("\n")]
    numbers = np.array([number for number, line in enumerate(stripped, 1) if line], np.int64)
    lines = [line for line in stripped if line]
    if not lines:
        raise UsageError(f"{name}: the trace is empty")
    kind = _format(name, lines[0], int(numbers[0])) if wanted == "auto" else wanted
    return kind, lines, numbers


def _format(name: str, first: str, number: int) -> str:
    if first.startswith("{"):
        return "mooncake"
    if azure.is_header(first):
        return "azure"
    advice = "put one object on each line" if first.startswith("[") else "if it is one, set trace.format"
    raise UsageError(
        f"{name}:{number}: {shown(first)} begins neither Mooncake JSONL nor an Azure CSV with the columns "
        f"{', '.join(azure.COLUMNS)}; {advice}"
    )


def _first_rows(
    name: str, lines: list[str], numbers: I64, count: int, header: bool
) -> tuple[list[str], I64, tuple[str, ...]]:
    """The first `count` rows (0 is all), with a header before them or not."""
    rows = len(lines) - header
    if rows == 0:
        raise UsageError(f"{name}: has a header but no rows")
    if count > rows:
        return lines, numbers, (f"num_prompts asks for {count} requests, the trace has {rows}",)
    end = count + header if count else len(lines)
    return lines[:end], numbers[:end], ()


def _retimed(rows: Rows, options: TraceOptions) -> tuple[Rows, tuple[str, ...]]:
    rows = retime.at_rate(retime.scaled(rows, options.time_scale), options.rate)
    if options.jitter_ms:
        return retime.jittered(rows, options.jitter_ms, options.jitter_seed)
    return rows, retime.coarse_note(rows)


def _requests(rows: Rows, rule: Any, notes: tuple[str, ...]) -> Requests:
    n = len(rows)
    streams = _streams(rows.ids)
    offset = np.concatenate(([0], np.cumsum(rows.id_counts)))
    length = np.full(rows.ids.size, rows.block_tokens, np.int64)
    length[offset[1:] - 1] = rows.prompt_tokens - (rows.id_counts - 1) * rows.block_tokens
    told = max_tokens(rule, rows.output_tokens)
    produced, cut = produced_tokens(rows.output_tokens, told)
    return request_table(
        n,
        arrival_ns=rows.arrival_ns,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=produced,
        max_tokens=told,
        session_id=rows.session_id,
        turn=rows.turn,
        after=rows.after,
        think_ns=rows.think_ns,
        priority=rows.priority,
        output_stream=int(streams.max()) + 1 + np.arange(n),
        segment_offset=offset,
        segment_stream=streams,
        segment_start=np.zeros(rows.ids.size, np.int64),
        segment_length=length,
        block_hint=rows.block_tokens,
        notes=notes + cut,
    )


def _streams(ids: NDArray[np.int64]) -> I64:
    """One stream for each different id: id + 1, or a dense numbering where ids are too large for that."""
    if ids.min() >= 0 and ids.max() < MAX_STREAM // 2:
        return ids + 1
    return np.unique(ids, return_inverse=True)[1].astype(np.int64) + 1
