"""LMCache agent sessions (JSON Lines; a file or a folder) -> Requests.

    timestamp    whole MICROSECONDS since 1970
    input        the whole prompt as text
    output       the answer; "" where it was a call of tools, which is not recorded
    session_id

Rows are not in order of time: they are sorted. Each is replayed at its own time: a session may have several callers.
"""

from __future__ import annotations

import numpy as np

from ...core.requests import Requests
from ...core.units import NS_PER_US
from ..format import Format, names
from ..json_columns import each, number_column, session_column, text_value, turns
from ..options import TraceOptions
from ..records import records
from ..rows import Faults, unread_note
from ..source import Trace
from ..table import request_table
from ..text import Ask, tokens_of

READ = ("timestamp", "input", "output", "session_id")
MAX_US = 2.2e15


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of all files in order of time. UsageError on wrong rows, unless they are skipped."""
    found = records(trace)
    rows, faults = found.rows, found.faults
    time_us = number_column(rows, ("timestamp",), faults, most=MAX_US)
    session = session_column(rows, faults)
    asks = each(rows, faults, lambda row: Ask((text_value(row, "input"),), text_value(row, "output")))
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    order = kept[np.argsort(time_us[kept], kind="stable")][: options.num_prompts or None]
    backward = int(np.count_nonzero((np.diff(time_us[kept]) < 0) & (np.diff(session[kept]) == 0)))
    chosen = [ask for ask in (asks[i] for i in order) if ask is not None]
    columns = tokens_of(chosen, Faults(len(chosen), lambda i: faults.where(order[i])), options)
    notes = [*faults.note(), *columns.pop("notes")]
    if backward:
        notes.append(f"{backward} rows came before one of their session that is earlier: sorted by time")
    notes += [*found.notes, *unread_note((name for row in rows for name in row), READ)]
    return request_table(
        order.size,
        arrival_ns=(time_us[order] - time_us[order[0]]).astype(np.int64) * NS_PER_US,
        session_id=session[order],
        turn=turns(session[order])[0],
        **columns,
        notes=tuple(notes),
    )


FORMAT = Format(read, keys=names("input output"))
