"""Columns of numbers in a CSV file, for distributions that are measured and not assumed."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.config import nearest
from ..core.errors import UsageError

F64 = NDArray[np.float64]


def read_columns(path: str, names: list[str], key: str) -> dict[str, F64]:
    """Name -> (rows,) numbers >= 0 of the file's columns. UsageError names the key, the file and the line."""
    where = f"{key}: {path}"
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            places = [_place(header, name, where) for name in names]
            rows = [
                [
                    _number(row, place, name, f"{where}:{reader.line_num}")
                    for place, name in zip(places, names, strict=True)
                ]
                for row in reader
                if row
            ]
    except FileNotFoundError:
        raise UsageError(f"{where}: no such file; a path is relative to the file that names it") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{where}: is not a readable CSV file: {getattr(error, 'strerror', None) or error}") from None
    if not rows:
        raise UsageError(f"{where}: has no rows below its header; give it one line for each value")
    return dict(zip(names, np.array(rows, np.float64).T, strict=True))


def _place(header: list[str], name: str, where: str) -> int:
    if name in header:
        return header.index(name)
    if not any(header):
        raise UsageError(f"{where}: is empty; its first line names the columns")
    raise UsageError(f"{where}: has no column {name!r}; the nearest is {nearest(name, header)!r}")


def _number(row: list[str], place: int, name: str, where: str) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{where}: column {name!r} holds {text[:40]!r}; wanted is a number >= 0")
    return value
