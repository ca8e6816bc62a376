"""BLIS traces (inference-sim, the CSV of version 2) -> Requests.

arrival_time_us             microseconds
input_tokens, output_tokens
prefix_group, prefix_length     tokens that stand before the input, the same for all of a group
session_id                  rows are replayed at their own times
status                      ok; others are left out
"""

from __future__ import annotations

import numpy as np

from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ..clock import from_first_ns
from ..csv_table import csv_table
from ..format import Format, names
from ..json_columns import numbered, turns
from ..options import TraceOptions
from ..pieces import side_by_side, single
from ..rows import in_time, mark_lengths
from ..sessions import DELTA, WHOLE, accumulated, turns_taken
from ..source import Trace
from ..table import request_table

TIME, PROMPT, OUTPUT = "arrival_time_us", "input_tokens", "output_tokens"
GROUP, PREFIX, SESSION, STATUS = "prefix_group", "prefix_length", "session_id", "status"
SERVED = ("ok", "")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows (unless they are skipped), or when none was served."""
    source = trace.single()
    table = csv_table(source, (TIME, PROMPT, OUTPUT), options.rows_read)
    faults = table.faults
    time, prompt, output = table.numbers(TIME), table.whole(PROMPT), table.whole(OUTPUT)
    n = time.size
    groups = table.column(GROUP) if table.has(GROUP) else [""] * n
    prefix = table.whole(PREFIX, required=False) if table.has(PREFIX) else np.zeros(n)
    prefix = np.where([group != "" for group in groups], np.nan_to_num(prefix), 0.0)
    faults.mark(time < 0, lambda i: f"{TIME} is {time[i]:g}, which is negative")
    faults.mark(prefix < 0, lambda i: f"{PREFIX} is {prefix[i]:g}, which is negative")
    served = np.array([text in SERVED for text in table.column(STATUS)] if table.has(STATUS) else [True] * n, np.bool_)
    mark_lengths(faults, np.where(served, prompt + prefix, 1), np.where(served, output, 1))
    kept, sorted_note = in_time(faults, time, options)
    kept = kept[served[kept]]
    if kept.size == 0:
        raise UsageError(f"{source.name}: none of the {n} rows has the status ok; name another file")
    group = numbered([groups[i] for i in kept])
    own = np.arange(kept.size) + 1 + max(int(group.max()) + 1, 0)
    output_tokens = output[kept].astype(np.int64)
    pieces = side_by_side(single(group + 1, prefix[kept].astype(np.int64)), single(own, prompt[kept].astype(np.int64)))
    prompts = {
        "prompt_tokens": (prompt + prefix)[kept].astype(np.int64),
        "output_stream": own + kept.size,
        "segment_offset": pieces.offset,
        "segment_stream": pieces.runs[0].copy(),
        "segment_start": pieces.runs[1].copy(),
        "segment_length": pieces.runs[2].copy(),
    }
    session = numbered([table.column(SESSION)[i] for i in kept]) if table.has(SESSION) else np.full(kept.size, NONE)
    turn, before = turns(session)
    if turns_taken(before, WHOLE, "of the format", options, trace) == DELTA:
        prompts = accumulated(prompts, before, output_tokens)
    failed = int(np.count_nonzero(~served))
    read = (TIME, PROMPT, OUTPUT, GROUP, PREFIX, SESSION, STATUS)
    return request_table(
        kept.size,
        arrival_ns=from_first_ns(time[kept], "us", trace.name),
        output_tokens=output_tokens,
        session_id=session,
        turn=np.where(session == NONE, 0, turn),
        **prompts,
        notes=(*faults.note(), *table.notes, *sorted_note,
               *((f"{failed} of {n} rows were not served: left out",) if failed else ()), *table.unread(read)),
    )  # fmt: skip


FORMAT = Format(read, header=names("arrival_time_us input_tokens output_tokens"))
