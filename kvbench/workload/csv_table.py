"""The lines of a trace that are read, and the cells of one that is CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS
from .rows import I64, Faults, Mask, shown, unread_note
from .source import Source

F64 = NDArray[np.float64]

_WHOLE = re.compile(r"(-?\d{1,18})(?:\.0*)?", re.ASCII)
_NUMBER = re.compile(r"-?(?:\d{1,19}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?", re.ASCII)


def first_lines(source: Source, count: int, header: bool = False) -> tuple[list[str], I64, tuple[str, ...]]:
    """The first `count` rows (0 is all) after a header or not, their line numbers, and a note when there are fewer."""
    lines, numbers = source.lines()
    rows = len(lines) - header
    if rows == 0:
        raise UsageError(f"{source.name}: has a header but no rows")
    if count > rows:
        return lines, numbers, (f"num_prompts asks for {count} requests, the trace has {rows}",)
    end = count + header if count else len(lines)
    return lines[:end], numbers[:end], ()


def cells(line: str) -> list[str]:
    """The cells of a line; quotes as in CSV, but none goes on in the next line."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(",")]
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error:
        return [line]


@dataclass(frozen=True)
class Table:
    """A CSV file by the names of its columns.

    header   names
    rows     cells of each row; wrong rows are marked in faults
    notes    what there is to say of the file
    """

    header: list[str]
    rows: list[list[str]]
    faults: Faults
    notes: tuple[str, ...]

    def has(self, name: str) -> bool:
        return name in self.header

    def unread(self, read: Sequence[str]) -> tuple[str, ...]:
        """A note on the columns that nothing is made of."""
        return unread_note(self.header, read)

    def column(self, name: str) -> list[str]:
        """(n,) texts, "" where a row is wrong."""
        position, width = self.header.index(name), len(self.header)
        return [row[position] if len(row) == width else "" for row in self.rows]

    def whole(self, name: str, required: bool = True) -> F64:
        """(n,) whole numbers; a text that is none is marked and becomes 0. An optional one may be "": NaN."""
        texts = self.column(name)

        def value(text: str) -> float:
            match = _WHOLE.fullmatch(text)
            if match is None:
                return float(MAX_STREAM_TOKENS) if text.isascii() and text.isdigit() else np.nan
            return float(match[1])

        return self._numbers(
            name, texts, np.array([value(text) for text in texts], np.float64), "a whole number", required
        )

    def numbers(self, name: str, required: bool = True) -> F64:
        """(n,) finite numbers; a text that is none is marked and becomes 0. An optional one may be "": NaN."""
        texts = self.column(name)
        values = np.array([float(text) if _NUMBER.fullmatch(text) else np.nan for text in texts], np.float64)
        return self._numbers(name, texts, values, "a number", required)

    def _numbers(self, name: str, texts: Sequence[str], values: F64, wanted: str, required: bool) -> F64:
        empty = np.array([not required and text == "" for text in texts], np.bool_)
        empty &= ~self.faults.bad  # the cells of a row that is wrong read as "" too
        wrong = np.isnan(values) & ~empty
        self.faults.mark(wrong, lambda i: f"{name} is {shown(texts[i])}, {wanted} is wanted")
        values[wrong] = 0
        return values


def csv_table(source: Source, needed: Sequence[str], count: int = 0) -> Table:
    """UsageError: the header lacks a needed column, or there are no rows."""
    lines, numbers, notes = first_lines(source, count, header=True)
    header = cells(lines[0])
    missing = [name for name in needed if name not in header]
    if missing:
        raise UsageError(f"{source.name}:{numbers[0]}: the header lacks {', '.join(missing)}; check trace.format")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise UsageError(f"{source.name}:{numbers[0]}: the header has {shown(twice[0])} twice; which one is meant?")
    rows = [cells(line) for line in lines[1:]]
    faults = Faults.of_lines(source.name, numbers[1:])
    wide: Mask = np.array([len(row) != len(header) for row in rows], np.bool_)
    faults.mark(wide, lambda i: f"has {len(rows[i])} fields, the header has {len(header)}")
    return Table(header, rows, faults, notes)
