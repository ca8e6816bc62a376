"""kvbench's own form of Requests (JSON Lines), lossless: what is read has the fingerprint of what was written.

first line   {"kvbench_requests": 1, "requests": n, names, token_ids, ...}: all that is not one value a request
then         one object a request: its columns, those left out that have their plain value, and
             "segments": [stream, start, length, stream, start, length, ...]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import EXPLICIT, MAX_STREAM, MAX_STREAM_TOKENS, NONE, Requests
from ...core.units import NEVER_NS
from ..csv_table import first_lines
from ..format import Format
from ..json_columns import Row, each, json_rows
from ..options import TraceOptions
from ..rows import I64, Faults, shown
from ..source import Trace
from ..table import NO_ROWS, PLAIN, request_table, taken

_ADVICE = "write the file again with kvbench trace convert"

MARK = "kvbench_requests"
VERSION = 1

_SEGMENTS = ("segment_stream", "segment_start", "segment_length")
_HEAD_ARRAYS = ("token_ids", "flush_ns", "flush_namespace")


def write(requests: Requests) -> Iterator[str]:
    """The lines of a file."""
    columns, head = _parts(requests)
    yield json.dumps({MARK: VERSION, "requests": len(requests), **head}, ensure_ascii=False) + "\n"
    lists = {name: column.tolist() for name, column in columns.items()}
    flat = np.stack([getattr(requests, name) for name in _SEGMENTS], axis=1)
    offset = requests.segment_offset.tolist()
    for i in range(len(requests)):
        row = {name: values[i] for name, values in lists.items() if values[i] != PLAIN.get(name)}
        row["segments"] = flat[offset[i] : offset[i + 1]].ravel().tolist()
        yield json.dumps(row, separators=(",", ":")) + "\n"


def _parts(requests: Requests) -> tuple[dict[str, I64], dict[str, Any]]:
    """Columns with one value a request, and all else."""
    columns, head = {}, {}
    for field in fields(requests):
        value = getattr(requests, field.name)
        if field.name in _HEAD_ARRAYS and value is not None:
            head[field.name] = value.tolist()
        elif isinstance(value, np.ndarray) and field.name not in NO_ROWS:
            columns[field.name] = value
        elif value is not None and not isinstance(value, np.ndarray):
            head[field.name] = value
    return columns, head


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests as they were written. UsageError on a wrong line; the rows of such a file cannot be skipped."""
    source = trace.single()
    lines, numbers, _ = first_lines(source, 0)
    head = _head(lines[0], f"{source.name}:{numbers[0]}")
    if len(lines) - 1 != head["requests"]:
        raise UsageError(f"{source.name}: has {len(lines) - 1} of {head['requests']} requests; is the file cut off?")
    faults = Faults.of_lines(source.name, numbers[1:])
    rows = json_rows(lines[1:], faults)
    each(rows, faults, _check_row)
    faults.kept(False, _ADVICE)
    _mark_links(rows, faults, "after")
    _mark_links(rows, faults, "joins")
    faults.kept(False, _ADVICE)
    requests = _table(rows, head)
    _check_indices(source.name, requests)
    if options.num_prompts:
        return taken(requests, np.arange(min(options.num_prompts, len(requests))))
    return requests


FORMAT = Format(read, keys=(frozenset({MARK}),))


def _mark_links(rows: list[Row], faults: Faults, column: str) -> None:
    """Requests that are to wait for one which is not there."""
    beyond = [not NONE <= row.get(column, NONE) < len(rows) for row in rows]
    faults.mark(np.array(beyond, np.bool_), lambda i: f"{column} points at no request of this file")


def _head(line: str, place: str) -> Row:
    """UsageError: not the first line of such a file, or of another version."""
    try:
        head = json.loads(line)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict) or head.get(MARK) != VERSION:
        raise UsageError(f"{place}: is not the first line of kvbench's own form, version {VERSION}")
    count = head.get("requests")
    if type(count) is not int or count < 1:
        raise UsageError(f"{place}: requests is {shown(count)}, a number is wanted")
    for name in _HEAD_ARRAYS:
        if not _whole_list(head.get(name, None if name == "token_ids" else [])):
            raise UsageError(f"{place}: {name} is no list of whole numbers")
    if len(head.get("flush_ns", ())) != len(head.get("flush_namespace", ())):
        raise UsageError(f"{place}: flush_ns and flush_namespace are not of one length")
    for name in ("tenants", "namespaces", "phases", "notes", "excluded"):
        value = head.get(name, ["-"])
        if (
            not isinstance(value, list)
            or not all(isinstance(v, str) for v in value)
            or not (value or name in ("notes", "excluded"))
        ):
            raise UsageError(f"{place}: {name} is {shown(value)}, a list of names is wanted")
    if type(head.get("block_hint", 0)) is not int or not 0 <= head.get("block_hint", 0) < MAX_STREAM_TOKENS:
        raise UsageError(f"{place}: block_hint is {shown(head['block_hint'])}, a number of tokens is wanted")
    return head


def _whole_list(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and abs(v) < NEVER_NS for v in value)


def _check_row(row: Row) -> None:
    """ValueError: an unknown column, or a value that no such column has."""
    known = {field.name for field in fields(Requests)}
    for name, value in row.items():
        if name == "segments":
            if not _whole_list(value) or not value or len(value) % 3:
                raise ValueError("segments is no list of stream, start, length")
        elif name not in known or name in NO_ROWS:
            raise ValueError(f"has an unknown column {shown(name)}")
        elif type(value) is not int or abs(value) >= NEVER_NS:
            raise ValueError(f"{name} is {shown(value)}, a whole number is wanted")
    missing = [n for n in ("segments", "prompt_tokens", "output_tokens", "max_tokens", "output_stream") if n not in row]
    if missing:
        raise ValueError(f"has no {missing[0]}")


def _table(rows: list[Row], head: Row) -> Requests:
    names = {name for row in rows for name in row} - {"segments"}
    columns = {name: np.array([row.get(name, PLAIN.get(name, 0)) for row in rows], np.int64) for name in names}
    counts = np.array([len(row["segments"]) // 3 for row in rows], np.int64)
    flat = np.array([value for row in rows for value in row["segments"]], np.int64).reshape(-1, 3)
    known = {field.name for field in fields(Requests)}
    given = {name: value for name, value in head.items() if name in known and name not in _HEAD_ARRAYS}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    given |= {name: np.array(head[name], np.int64) for name in _HEAD_ARRAYS if name in head}
    return request_table(
        len(rows),
        **columns,
        **dict(zip(_SEGMENTS, (column.copy() for column in flat.T), strict=True)),
        segment_offset=np.concatenate(([0], np.cumsum(counts))),
        **given,
    )


def _check_indices(name: str, requests: Requests) -> None:
    """UsageError: a stream, a token id, a name or a time that is not there."""
    r = requests
    explicit = r.segment_stream == EXPLICIT
    ends = r.segment_start + r.segment_length
    made = r.output_start + r.output_tokens
    wrong = {
        "segments": (r.segment_stream < 0) | (r.segment_stream >= MAX_STREAM) | (r.segment_start < 0)
        | (ends >= np.where(explicit, r.token_ids.size + 1, MAX_STREAM_TOKENS)),
        "output_stream": (r.output_stream < 0) | (r.output_start < 0)
        | (made >= np.where(r.output_stream == EXPLICIT, r.token_ids.size + 1, MAX_STREAM_TOKENS)),
        "tenant": (r.tenant < 0) | (r.tenant >= len(r.tenants)),
        "namespace": (r.namespace < 0) | (r.namespace >= len(r.namespaces)),
        "phase": (r.phase < 0) | (r.phase >= len(r.phases)),
        "think_ns": r.think_ns < 0,
        "prompt_tokens": r.prompt_tokens >= MAX_STREAM_TOKENS,
        "max_tokens": r.max_tokens < 0,
    }  # fmt: skip
    if r.flush_namespace is not None:
        wrong["flush_namespace"] = (r.flush_namespace < 0) | (r.flush_namespace >= len(r.namespaces))
    for column, bad in wrong.items():
        if bad.any():
            raise UsageError(f"{name}: {column} points beyond what the file holds")
