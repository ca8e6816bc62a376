"""BurstGPT traces (CSV, v1 and v3, by column name) -> Requests.

Timestamp                         seconds from 0:00 of the first day of the recording
Request tokens, Response tokens   a row with 0 of either is a failed request: left out and counted
Session ID                        v3: set for conversations, empty for API calls
Model, Total tokens, Log Type, Elapsed time   not used (Elapsed time is that of the whole request, no TTFT)
"""

from __future__ import annotations

import numpy as np

from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ...core.units import NS_PER_S
from ..csv_table import csv_table
from ..format import Format
from ..json_columns import numbered, turns
from ..options import TraceOptions
from ..prompts import apart
from ..rows import in_time, mark_lengths
from ..source import Trace
from ..table import request_table

TIME, PROMPT, OUTPUT, SESSION = COLUMNS = ("Timestamp", "Request tokens", "Response tokens", "Session ID")

RAMP_UP_S = 86_400.0
"""The first day of the recording: its rate is about a hundredth of what comes later."""


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows (unless they are skipped), or when all requests failed."""
    source = trace.single()
    table = csv_table(source, COLUMNS[:3], options.rows_read)
    faults = table.faults
    time_s, prompt, output = table.numbers(TIME), table.whole(PROMPT), table.whole(OUTPUT)
    failed = ~faults.bad & ((prompt == 0) | (output == 0))
    mark_lengths(faults, np.where(failed, 1, prompt), output)
    faults.mark(time_s < 0, lambda i: f"{TIME} is {time_s[i]:g}, which is negative")
    kept, sorted_note = in_time(faults, time_s, options)
    kept = kept[~failed[kept]]
    if kept.size == 0:
        raise UsageError(f"{source.name}: all {failed.size} rows are failed requests (0 tokens); name another file")
    times, prompt_tokens = time_s[kept], prompt[kept].astype(np.int64)
    texts = table.column(SESSION) if table.has(SESSION) else [""] * failed.size
    session = numbered([texts[i] for i in kept])
    return request_table(
        kept.size,
        arrival_ns=np.rint((times - times[0]) * NS_PER_S).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        session_id=session,
        turn=np.where(session == NONE, 0, turns(session)[0]),
        **apart(prompt_tokens),
        notes=(
            *faults.note(),
            *table.notes,
            *sorted_note,
            *_notes(int(failed.sum()), failed.size, float(times[0])),
            *table.unread(COLUMNS),
        ),
    )


FORMAT = Format(read, header=(frozenset(COLUMNS[:3]),))


def _notes(failed: int, rows: int, first_s: float) -> tuple[str, ...]:
    notes = []
    if failed:
        notes.append(f"{failed} of {rows} rows are failed requests (0 tokens): left out")
    if first_s < RAMP_UP_S:
        notes.append(
            "this is the head of the recording, a ramp-up with about a hundredth of the later rate: do not take rates "
            "from it; trace.start_s leaves it out"
        )
    return tuple(notes)
