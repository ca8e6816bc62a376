"""Columns of JSON rows: numbers, texts and sessions; what is wrong is marked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core.requests import NONE
from .rows import I64, Faults, shown

F64 = NDArray[np.float64]
Row = dict[str, Any]
T = TypeVar("T")

MAX_NUMBER = 2.2e12
"""Epoch milliseconds of the year 2039; no length and no millisecond is larger."""


def json_rows(lines: Sequence[str], faults: Faults) -> list[Row]:
    """One object a line; a line that is none is marked and becomes {}."""
    parse = json.JSONDecoder().raw_decode
    rows: list[Row] = []
    wrong: dict[int, str] = {}
    for index, line in enumerate(lines):
        row, fault = one_object(parse, line)
        if fault:
            wrong[index] = fault
        rows.append(row)
    faults.mark_all(wrong)
    return rows


def one_object(parse: Any, line: str) -> tuple[Row, str]:
    """The object of a line, and what is wrong with it ("" is nothing)."""
    try:
        row, end = parse(line)
    except (ValueError, RecursionError) as error:
        return {}, f"is not JSON: {getattr(error, 'msg', 'nested too deeply, or a number too long')}"
    if end != len(line) or type(row) is not dict:
        return {}, "is not one JSON object"
    return row, ""


def number_column(
    rows: Sequence[Row],
    names: tuple[str, ...],
    faults: Faults,
    required: bool = True,
    whole: bool = True,
    signed: bool = False,
    most: float = MAX_NUMBER,
) -> F64:
    """(n,) numbers under the first of the names that a row has; NaN where there is none or a wrong one."""
    values = [row.get(names[0]) for row in rows]
    for alias in names[1:]:
        if None in values:
            values = [v if v is not None else row.get(alias) for v, row in zip(values, rows, strict=True)]
    numbers = _numbers(values, most)
    absent = np.array([v is None for v in values]) if None in values else np.zeros(len(values), np.bool_)
    if required:
        faults.mark(absent, lambda i: f"has no {' or '.join(names)}")
    wrong = ~absent & ~(np.abs(numbers) <= most)  # NaN is wrong too
    faults.mark(wrong, lambda i: f"{names[0]} is {shown(values[i])}, a number is wanted")
    if whole:
        broken = ~absent & (numbers != np.rint(numbers))
        faults.mark(broken, lambda i: f"{names[0]} is {numbers[i]:.12g}, a whole number is wanted")
    if not signed:
        faults.mark(numbers < 0, lambda i: f"{names[0]} is {numbers[i]:.12g}, which is negative")
    return np.where(wrong, np.nan, numbers)


def _numbers(values: list[Any], most: float) -> F64:
    """(n,) JSON numbers as floats; NaN for all else (true and false too)."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(values), np.nan)
    if not kinds <= {int, float}:
        values = [value if type(value) in (int, float) else np.nan for value in values]
    try:
        return np.array(values, np.float64)
    except OverflowError:  # a whole number beyond any float
        return np.array([value if abs(value) <= most else np.inf for value in values], np.float64)


def session_column(rows: Sequence[Row], faults: Faults, name: str = "session_id") -> I64:
    """(n,) sessions numbered in order of appearance, NONE without one."""
    values = [row.get(name) for row in rows]
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(rows), NONE, np.int64)
    wrong = np.array([type(value) not in (str, int, type(None)) for value in values], np.bool_)
    faults.mark(wrong, lambda i: f"{name} is {shown(values[i])}, a string is wanted")
    return numbered([None if bad else value for value, bad in zip(values, wrong.tolist(), strict=True)])


def numbered(values: Sequence[Any]) -> I64:
    """(n,) a number for each different value in order of appearance; NONE for None and ""."""
    codes: dict[Any, int] = {}
    return np.array(
        [NONE if value is None or value == "" else codes.setdefault(value, len(codes)) for value in values], np.int64
    )


def turns(session: I64) -> tuple[I64, I64]:
    """(n,) position within the session, and the row of the session before (NONE for the first)."""
    n = session.size
    order = np.argsort(session, kind="stable")
    ranked = session[order]
    same = np.zeros(n, np.bool_)
    same[1:] = (ranked[1:] == ranked[:-1]) & (ranked[1:] != NONE)
    starts = np.maximum.accumulate(np.where(same, 0, np.arange(n)))
    turn = np.zeros(n, np.int64)
    turn[order] = np.arange(n) - starts
    before = np.full(n, NONE, np.int64)
    before[order[1:]] = np.where(same[1:], order[:-1], NONE)
    return turn, before


def each(rows: Sequence[Row], faults: Faults, parse: Callable[[Row], T]) -> list[T | None]:
    """(n,) what `parse` makes of each good row; a row that raises ValueError is marked with its words, and is None."""
    found: list[T | None] = []
    wrong: dict[int, str] = {}
    for i, (row, bad) in enumerate(zip(rows, faults.bad.tolist(), strict=True)):
        try:
            found.append(None if bad else parse(row))
        except ValueError as error:
            found.append(None)
            wrong[i] = str(error)
    faults.mark_all(wrong)
    return found


def whole_value(row: Row, names: tuple[str, ...], low: int, high: float, place: str = "") -> int:
    """A whole number under the first of the names that a row has. ValueError: none, or out of bounds."""
    value: Any = next((row[name] for name in names if row.get(name) is not None), None)
    if type(value) not in (int, float) or not low <= value <= high or value != int(value):
        raise ValueError(f"{place}{names[0]} is {shown(value)}, a whole number from {low} to {high:.0f} is wanted")
    return int(value)


def text_value(row: Row, name: str, place: str = "") -> str:
    """ValueError: it is no text."""
    value = row.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{place}{name} is {shown(value)}, a text is wanted")
    return value
