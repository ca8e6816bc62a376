"""Which format a trace has: told by its content, not by its name.

Each format declares sets of keys, and of CSV columns; the largest set that a trace has all of decides. Where there is
none, the error names the format that lacks least.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from .csv_table import cells
from .format import Names, all_formats
from .rows import shown
from .source import Source, Trace

_FIRST = 100
"""Rows that are looked at: the first of them may be wrong."""

_NAME = re.compile(r'"([A-Za-z_][\w .()-]*)"\s*:')


def recognised(trace: Trace) -> str:
    """The name of the format. UsageError: empty, binary, or none that is known."""
    files = [Path(source.name).name for source in trace.files]
    for name, form in all_formats().items():
        if trace.is_folder and form.files and any(map(form.files.fullmatch, files)):
            return name
    source = next((source for source in trace.files if source.data.strip()), trace.files[0])
    lines, numbers = source.lines()
    place = f"{source.name}:{numbers[0]}"
    if not lines[0].startswith(("{", "[")):
        return _of_header(set(cells(lines[0])), lines[0], place)
    objects = _objects(source, lines)
    for row in objects:
        if name := _fitting(row.keys(), _key_sets()):
            return name
    return _unknown(objects[0].keys(), place) if objects else _of_broken(source, lines, place)


def _objects(source: Source, lines: list[str]) -> list[dict[str, Any]]:
    """The first objects of a file: one a line, an array of them, or one that is the whole file."""
    if lines[0].startswith("["):
        document = source.document()
        found = document if isinstance(document, list) else []
        if not any(isinstance(row, dict) for row in found):
            raise UsageError(
                f"{source.name}:1: is a JSON array that holds no objects; a trace has one for each request"
            )
    else:
        found = [_parsed(line) for line in lines[:_FIRST]]
        if not isinstance(found[0], dict) and len(lines) > 1 and isinstance(whole := _parsed("\n".join(lines)), dict):
            found = [whole]
    return [row for row in found[:_FIRST] if isinstance(row, dict)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _key_sets() -> list[tuple[str, Names]]:
    return [(name, keys) for name, form in all_formats().items() for keys in form.keys]


def _header_sets() -> list[tuple[str, Names]]:
    return [(name, columns) for name, form in all_formats().items() for columns in form.header]


def _fitting(found: Iterable[str], sets: list[tuple[str, Names]]) -> str:
    """The format with the largest set that is there as a whole; "" is none."""
    there = set(found)
    fits = [(len(keys), name) for name, keys in sets if keys <= there]
    return max(fits, key=lambda fit: fit[0])[1] if fits else ""


def _of_header(header: set[str], line: str, place: str) -> str:
    if name := _fitting(header, _header_sets()):
        return name
    if len(header) == 1:
        cut = next((f"; is it cut by {shown(mark)}? Wanted are commas" for mark in ";\t|" if mark in line), "")
        raise UsageError(f"{place}: {shown(line)} begins neither JSON nor a CSV with a header that is known{cut}")
    raise UsageError(
        f"{place}: a CSV with the columns {_listed(header)} is of no known format; {_nearest(header, True)}"
    )


def _unknown(keys: Iterable[str], place: str) -> str:
    raise UsageError(f"{place}: an object of {_listed(keys)} is of no known format; {_nearest(set(keys), False)}")


def _listed(found: Iterable[str]) -> str:
    names = sorted(map(str, found))
    return ", ".join(map(shown, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _nearest(found: set[str], is_csv: bool) -> str:
    """The format that lacks least, in words, and what to do."""
    from ..core.config import nearest

    sets = _header_sets() if is_csv else _key_sets()
    name, keys = max(sets, key=lambda pair: (len(pair[1] & found) / len(pair[1]), len(pair[1]), pair[0]))
    advice = "name its columns: trace.columns=timestamp=...,input=...,output=..."
    if not keys & found:  # nothing in common: by the look of the names
        known = sorted({key for _, keys in sets for key in keys})
        close = nearest(sorted(found, key=str)[0] if found else "", known)
        name = next(name for name, keys in sets if close in keys)
        keys = next(keys for n, keys in sets if n == name and close in keys)
    return f"the nearest is {name}, which has {' and '.join(sorted(keys - found))} too; {advice}, or set trace.format"


def _of_broken(source: Source, lines: list[str], place: str) -> str:
    """Cut off or mistyped: by the names that stand in it, so that the reader says what is wrong."""
    if name := _fitting(_NAME.findall(lines[0]), _key_sets()):
        return name
    if lines[0] in ("{", "["):
        source.document()  # says at which line it ceases to be JSON
    raise UsageError(f"{place}: {shown(lines[0])} is not JSON; is the file cut off?")
