"""Azure LLM inference traces (2023 and 2024 CSV) -> Requests.

TIMESTAMP, ContextTokens, GeneratedTokens; other columns are ignored. A stamp has up to nine fractional
digits (2023 has seven) and may end in a UTC offset (2024 has +00:00). Rows say nothing of shared prefixes:
each prompt is a stream of its own.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ...core.requests import Requests
from ..options import TraceOptions
from ..prompts import apart
from ..rows import Faults, mark_lengths, mark_time_order, shown
from ..source import Trace
from ..table import request_table
from .lines import csv_table

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(r"(20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|([+-])(\d\d):?(\d\d))?", re.ASCII)
_NO_TIME = np.datetime64("NaT", "ns")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    table = csv_table(trace.single(), COLUMNS, options.num_prompts)
    faults = table.faults
    time = stamps(table.column(COLUMNS[0]), faults, COLUMNS[0])
    prompt, output = table.whole(COLUMNS[1]), table.whole(COLUMNS[2])
    mark_lengths(faults, prompt, output)
    mark_time_order(faults, time.astype(np.int64), np.ones(time.size, np.bool_))
    kept = faults.kept(options.skip_bad_rows)
    time, prompt_tokens = time[kept], prompt[kept].astype(np.int64)
    return request_table(
        prompt_tokens.size,
        arrival_ns=(time - time[0]).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        **apart(prompt_tokens),
        notes=(*faults.note(), *table.notes),
    )


def stamps(texts: list[str], faults: Faults, name: str) -> NDArray[np.datetime64]:
    """(n,) datetime64[ns] in UTC; a stamp that is none is marked and NaT."""
    matches = [_STAMP.fullmatch(stamp.strip()) for stamp in texts]
    try:
        times = np.array([m[1] if m else "NaT" for m in matches], "datetime64[ns]")
    except ValueError:  # looks like a stamp, but is no date (month 13): find out which
        times = np.array([_date(m[1]) if m else _NO_TIME for m in matches], "datetime64[ns]")
    if any(m and m[2] for m in matches):
        times = times - np.array([_offset(m) for m in matches], "timedelta64[m]")
    faults.mark(
        np.isnat(times),
        lambda i: f"{name} is {shown(texts[i])}; wanted is a stamp like 2023-11-16 18:17:03.9799600",
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
