"""The objects of a JSON trace: one a line, an array of them, or one that is the whole file; of all files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .csv_table import first_lines
from .json_columns import Row, json_rows
from .rows import Faults
from .source import Source, Trace


@dataclass(frozen=True)
class Records:
    """rows: the objects; one that is none is marked in faults and is {}. notes: what there is to say of the file."""

    rows: list[Row]
    faults: Faults
    notes: tuple[str, ...] = ()


def records(trace: Trace, count: int = 0) -> Records:
    """The first `count` objects (0 is all). UsageError: no text, no rows, an array that is not JSON."""
    files = [source for source in trace.files if source.data.strip()]
    if not files:
        raise UsageError(f"{trace.name}: the trace is empty")
    empty = len(trace.files) - len(files)
    notes: tuple[str, ...] = (f"{empty} of {len(trace.files)} files are empty",) if empty else ()
    if len(files) == 1 and not _is_document(files[0]):
        lines, numbers, said = first_lines(files[0], count)
        faults = Faults.of_lines(files[0].name, numbers)
        return Records(json_rows(lines, faults), faults, (*said, *notes))
    found: list[Any] = []
    places: list[str] = []
    for source in files:
        if _is_document(source):
            document = source.document()
            rows = document if isinstance(document, list) else [document]
            found += rows
            places += [f"{source.name}: [{i}]" for i in range(len(rows))]
        else:
            lines, numbers, _ = first_lines(source, 0)
            found += [_object(line) for line in lines]
            places += [f"{source.name}:{number}" for number in numbers]
    if not found:
        raise UsageError(f"{trace.name}: the trace is empty")
    if count > len(found):
        notes = (f"num_prompts asks for {count} requests, the trace has {len(found)}", *notes)
    found = found[: count or len(found)]
    faults = Faults(len(found), lambda i: places[i])
    wrong = np.array([type(row) is not dict for row in found], np.bool_)
    faults.mark(wrong, lambda i: "is not one JSON object")
    return Records([row if type(row) is dict else {} for row in found], faults, notes)


def documents(source: Source) -> list[tuple[Any, str]]:
    """The JSON values of a file, one or one a line, each with its place. UsageError names the line that is none."""
    lines, numbers = source.lines()
    if len(lines) == 1 or not isinstance(_object(lines[0]), dict):
        return [(source.document(), source.name)]
    found = []
    for line, number in zip(lines, numbers.tolist(), strict=True):
        value = _object(line)
        if value is None:
            raise UsageError(f"{source.name}:{number}: is not JSON; is the file cut off?")
        found.append((value, f"{source.name}:{number}"))
    return found


def _is_document(source: Source) -> bool:
    """Whether it is one JSON value, and not one a line: an array, or an object that the first line does not end."""
    lines, _ = source.lines()
    if lines[0].startswith("["):
        return True
    return len(lines) > 1 and lines[0].startswith("{") and _object(lines[0]) is None and _whole(source)


def _whole(source: Source) -> bool:
    try:
        return isinstance(json.loads(source.text()), dict)
    except (ValueError, RecursionError):
        return False


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
