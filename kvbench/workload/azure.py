"""Azure LLM inference traces (2023 and 2024 CSV) -> Rows.

TIMESTAMP, ContextTokens, GeneratedTokens; other columns are ignored. A stamp has up to nine fractional
digits (2023 has seven) and may end in a UTC offset (2024 has +00:00). Rows say nothing of shared prefixes:
each prompt is a stream of its own.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS, NONE
from .rows import I64, Faults, Rows, mark_lengths, mark_time_order, shown

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(r"(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII)
_NO_TIME = np.datetime64("NaT", "ns")


def is_header(line: str) -> bool:
    """Whether a first line names the columns of an Azure trace."""
    return set(COLUMNS) <= set(_cells(line))


def read(path: str, lines: list[str], numbers: I64, skip: bool) -> tuple[Rows, tuple[str, ...]]:
    """Rows and notes of non-empty lines, the first of them the header.

    numbers   (lines,) line number of each line in the file
    """
    header = _cells(lines[0])
    if not is_header(lines[0]):
        raise UsageError(f"{path}:{numbers[0]}: the header lacks one of {', '.join(COLUMNS)}")
    faults = Faults(path, numbers[1:])
    rows = [line.split(",") for line in lines[1:]]
    wide = np.array([len(row) != len(header) for row in rows], np.bool_)
    faults.mark(wide, lambda i: f"has {len(rows[i])} fields, the header has {len(header)}")
    stamp, prompt, output = (_column(rows, wide, header.index(name)) for name in COLUMNS)
    time = _times(stamp, faults)
    prompt_tokens = _whole(prompt, COLUMNS[1], faults)
    output_tokens = _whole(output, COLUMNS[2], faults)
    mark_lengths(faults, prompt_tokens, output_tokens)
    mark_time_order(faults, time.astype(np.int64), np.ones(time.size, np.bool_))
    kept = faults.kept(skip)
    return _rows(time[kept], prompt_tokens[kept], output_tokens[kept]), faults.note()


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def _column(rows: list[list[str]], wide: NDArray[np.bool_], position: int) -> list[str]:
    if not wide.any():
        return [row[position] for row in rows]
    return ["" if bad else row[position] for row, bad in zip(rows, wide, strict=True)]


def _times(stamps: list[str], faults: Faults) -> NDArray[np.datetime64]:
    """(n,) datetime64[ns] in UTC; a stamp that is none is marked and NaT."""
    matches = [_STAMP.fullmatch(stamp.strip()) for stamp in stamps]
    try:
        times = np.array([m[1] if m else "NaT" for m in matches], "datetime64[ns]")
    except ValueError:  # looks like a stamp, but is no date (month 13): find out which
        times = np.array([_date(m[1]) if m else _NO_TIME for m in matches], "datetime64[ns]")
    if any(m and m[2] for m in matches):
        times = times - np.array([_offset(m) for m in matches], "timedelta64[m]")
    faults.mark(
        np.isnat(times),
        lambda i: f"TIMESTAMP is {shown(stamps[i])}; wanted is a stamp like 2023-11-16 18:17:03.9799600",
    )
    return times


def _date(text: str) -> np.datetime64:
    try:
        return np.datetime64(text, "ns")
    except ValueError:
        return _NO_TIME


def _offset(match: re.Match[str] | None) -> int:
    """Minutes that a stamp is ahead of UTC."""
    if match is None or match[2] is None:
        return 0
    minutes = int(match[3]) * 60 + int(match[4])
    return minutes if match[2] == "+" else -minutes


def _whole(texts: list[str], name: str, faults: Faults) -> NDArray[np.float64]:
    """(n,) whole numbers; a text that is none is marked and becomes 0."""

    def value(text: str) -> float:
        text = text.strip()
        digits = text[1:] if text.startswith("-") else text
        if not (digits.isascii() and digits.isdigit()):
            return np.nan
        return float(text) if len(digits) < 16 else float(MAX_STREAM_TOKENS)

    values = np.array([value(text) for text in texts], np.float64)
    wrong = np.isnan(values)
    faults.mark(wrong, lambda i: f"{name} is {shown(texts[i])}, a whole number is wanted")
    values[wrong] = 0
    return values


def _rows(time: NDArray[np.datetime64], prompt: NDArray[np.float64], output: NDArray[np.float64]) -> Rows:
    n = time.size
    zeros, none = np.zeros(n, np.int64), np.full(n, NONE, np.int64)
    return Rows(
        arrival_ns=(time - time[0]).astype(np.int64),
        prompt_tokens=prompt.astype(np.int64),
        output_tokens=output.astype(np.int64),
        priority=zeros,
        session_id=none,
        turn=zeros,
        after=none,
        think_ns=zeros,
        block_tokens=0,
        ids=np.arange(n),
        id_counts=np.ones(n, np.int64),
    )
