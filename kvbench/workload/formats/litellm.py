"""LiteLLM's logs of calls (standard logging payloads, JSON Lines) -> Requests.

    startTime                           seconds since 1970, or a stamp: the arrival
    prompt_tokens, completion_tokens
    messages                            the prompt, tokenized with trace.tokenizer; without one the lengths are read
    session_id                          rows are replayed at their own times
    status                              failure: left out

A log is in order of ends: it is sorted by time.
"""

from __future__ import annotations

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, NONE, Requests
from ..clock import LARGEST_TIME, from_first_ns, is_stamp, stamps, unit_of
from ..format import Format, names
from ..json_columns import Row, each, number_column, session_column, turns, whole_value
from ..options import TraceOptions
from ..records import records
from ..rows import Faults, unread_note
from ..source import Trace
from ..table import request_table
from ..text import Ask, chat, messages_of, tokens_of
from .openai import output_of

TIME = "startTime"
READ = (TIME, "prompt_tokens", "completion_tokens", "messages", "session_id", "status")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests in order of time. UsageError on wrong rows, unless they are skipped, or when all calls failed."""
    found = records(trace)
    rows, faults = found.rows, found.faults
    if any(is_stamp(row.get(TIME)) for row in rows):
        time, stated = stamps([str(row.get(TIME)) for row in rows], faults, TIME).astype(np.int64) / 1.0, "ns"
    else:
        time, stated = number_column(rows, (TIME,), faults, whole=False, most=LARGEST_TIME), ""
    session = session_column(rows, faults)
    asks = each(rows, faults, lambda row: _ask(row, options) if _is_served(row) else None)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    served = kept[[_is_served(rows[i]) for i in kept]]
    if served.size == 0:
        raise UsageError(f"{trace.name}: all {kept.size} calls failed; name another file")
    order = served[np.argsort(time[served], kind="stable")][: options.num_prompts or None]
    unit, unit_note = (stated, ()) if stated else unit_of(time[order], "s", options, trace)
    chosen = [ask for i in order if (ask := asks[i])]
    columns = tokens_of(chosen, Faults(len(chosen), lambda i: faults.where(order[i])), options)
    left = kept.size - served.size
    failed = (f"{left} of {kept.size} calls failed: left out",) if left else ()
    notes = (*faults.note(), *found.notes, *unit_note, *failed, *columns.pop("notes"))
    return request_table(
        order.size,
        arrival_ns=from_first_ns(time[order], unit, trace.name),
        session_id=session[order],
        turn=np.where(session[order] == NONE, 0, turns(session[order])[0]),
        **columns,
        notes=(*notes, *unread_note((name for row in rows for name in row), READ)),
    )


FORMAT = Format(read, keys=names("startTime prompt_tokens completion_tokens", "startTime messages"))


def _is_served(row: Row) -> bool:
    return row.get("status") != "failure"


def _ask(row: Row, options: TraceOptions) -> Ask:
    """By messages where there are some. ValueError says what is wrong."""
    stated = row.get("prompt_tokens") is not None
    prompt = whole_value(row, ("prompt_tokens",), 1, MAX_STREAM_TOKENS - 1) if stated else None
    output = output_of(row, ("completion_tokens",), options)
    if row.get("messages"):
        given = row["messages"]
        return Ask((given,) if isinstance(given, str) else chat(messages_of(given)), None, output, prompt)
    if prompt is None:
        raise ValueError("has neither messages nor prompt_tokens")
    return Ask((), None, output, prompt)
