"""Recordings of real engines as files: one JSON object a line, plain or gzipped.

    header   engine, version, component, params, ... : what was recorded, and under which settings
    row      one step or operation: what was done, and in `out` what was observed
    last     the summary

Every object knows its file and line, so that whatever is wrong with it can be said in one line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import UsageError

SUFFIXES = (".jsonl", ".jsonl.gz")
HEADER_FIELDS = {"engine": str, "version": str, "component": str, "params": dict}
SIGNS = {*HEADER_FIELDS, "engines", "op", "out", "summary"} - {"version"}
"""Of a recording: the first line of any part of one has some of them."""


class Row(dict[str, Any]):
    """A JSON object with its place; a field that is asked for and missing is a UsageError."""

    def __init__(self, fields: dict[str, Any], path: Path, line: int) -> None:
        super().__init__(fields)
        self.line = line
        self.where = f"{path}:{line}"

    def __missing__(self, name: str) -> Any:
        raise UsageError(f"{self.where}: no field {name!r}; this is not a whole recording")


@dataclass(frozen=True)
class Recording:
    """One stream. name: the file's, without suffix."""

    name: str
    header: Row
    rows: tuple[Row, ...]
    last: Row


def find_recordings(folder: Path) -> tuple[list[Path], list[Path]]:
    """Recordings below a folder, whole or broken, by path; and files of their kind that hold something else.

    raises  UsageError: there is no folder, or no recording in it
    """
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"{folder} {what}; give a folder of recordings ({', '.join(SUFFIXES)})")
    found = sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())
    others = [path for path in found if _is_something_else(path)]
    if len(others) == len(found):
        seen = f"; {others[0]} is something else: its first line is no header" if others else ""
        raise UsageError(f"{folder}: no recordings ({', '.join(SUFFIXES)}) in this folder or below it{seen}")
    return [path for path in found if path not in others], others


def _is_something_else(path: Path) -> bool:
    """Whether the first line is JSON and no part of a recording: a trace, say. What cannot be read may be one."""
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            first = json.loads(file.readline())
    except (ValueError, EOFError, zlib.error, OSError):
        return False
    return not (isinstance(first, dict) and SIGNS & first.keys())


def read_recording(path: Path) -> Recording:
    """The stream of a file. UsageError with file and line: unreadable, cut off, or something else."""
    lines = [_parsed(path, number, line) for number, line in enumerate(_lines(path), 1)]
    if not lines:
        raise UsageError(f"{path}:1: the file is empty")
    header, last = lines[0], lines[-1]
    if isinstance(header.get("engines"), dict):
        _name_all(header)
    missing = [name for name, kind in HEADER_FIELDS.items() if not isinstance(header.get(name), kind)]
    if missing:
        raise UsageError(f"{header.where}: not a recording; the first line has no {', no '.join(missing)}")
    if len(lines) < 2 or "summary" not in last:
        raise UsageError(f"{last.where}: the recording is cut off; its last line has no summary")
    for row in lines[1:-1]:
        _flatten(row)
    return Recording(path.name.partition(".jsonl")[0], header, tuple(lines[1:-1]), last)


def _name_all(header: Row) -> None:
    """Several engines that were called with the same input have one header."""
    header["engine"] = "several"
    named = (v if v.startswith("deepseek") else f"{name} {v}" for name, v in header["engines"].items())
    header["version"] = ", ".join(named)
    header.setdefault("params", {})


def _flatten(row: Row) -> None:
    """What a pair of engines showed: the fields of both sides beside each other."""
    out = row.get("out")
    for side in ("P", "D"):
        if isinstance(out, dict) and isinstance(out.get(side), dict):
            out.update({f"{side}.{name}": value for name, value in out.pop(side).items()})


def _lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not text; a recording is JSON lines") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{path}: not a whole gzip file; fetch or make it again") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror or error})") from None


def _parsed(path: Path, number: int, line: str) -> Row:
    where = f"{path}:{number}"
    try:
        value = json.loads(line, object_hook=lambda fields: Row(fields, path, number))
    except json.JSONDecodeError as error:
        raise UsageError(f"{where}: not JSON, or cut off ({error.msg}, column {error.colno})") from None
    if not isinstance(value, Row):
        raise UsageError(f"{where}: a recording has one JSON object a line, this is a {type(value).__name__}")
    return value
