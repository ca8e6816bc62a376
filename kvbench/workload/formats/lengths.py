"""Lengths, with or without arrivals and sessions (CSV, JSON Lines) -> Requests.

What is known by name: vidur and etalon (num_prefill_tokens, num_decode_tokens, arrived_at), splitwise-sim (prompt_size,
token_size, arrival_timestamp), usage logs (prompt_tokens, completion_tokens), input_tokens and output_tokens of many
tools. trace.columns names any others: timestamp=NAME,input=NAME,output=NAME,session=NAME.

Times are numbers of any unit (see `clock`) or stamps of ISO 8601; where there are none, arrivals are drawn. No prompts
are shared, unless rows of sessions are what is new (trace.turns=delta).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.config import nearest
from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ..clock import LARGEST_TIME, from_first_ns, is_stamp, stamps, unit_of
from ..csv_table import Table, csv_table
from ..format import Format, names
from ..json_columns import F64, Row, number_column, numbered, turns
from ..options import TraceOptions
from ..outputs import filled
from ..prompts import apart
from ..records import records
from ..rows import Faults, in_time, mark_lengths, shown, unread_note
from ..sessions import DELTA, WHOLE, accumulated, turns_taken
from ..source import Trace
from ..table import request_table

KNOWN = {
    "timestamp": (
        "timestamp", "arrived_at", "arrival_timestamp", "arrival_time", "arrival_time_s", "arrival_time_ms",
        "timestamp_s", "timestamp_ms", "timestamp_us", "timestamp_ns", "created_at", "created", "start_time", "time",
        "time_s", "time_ms", "time_us", "time_ns", "arrival_s", "arrival_ms", "arrival_us", "arrival_ns", "arrival",
    ),
    "input": ("input_tokens", "prompt_tokens", "num_prefill_tokens", "prompt_size", "prompt_len", "input_len",
              "input_length"),
    "output": ("output_tokens", "completion_tokens", "num_decode_tokens", "token_size", "output_len", "output_length"),
    "session": ("session_id", "conversation_id"),
}  # fmt: skip
"""What it is -> names that mean it, the first that is there."""

UNITS = {"arrived_at": "s", "arrival_timestamp": "s"}
"""Times of formats that have a unit of their own."""

PAIRS = names(
    "input_tokens output_tokens", "prompt_tokens completion_tokens", "num_prefill_tokens num_decode_tokens",
    "prompt_size token_size", "prompt_len output_len", "input_len output_len",
)  # fmt: skip


@dataclass(frozen=True)
class Columns:
    """(n,) of each row: time NaN and session NONE where it has none; output NaN too. name: of the column of times."""

    time: F64
    prompt: F64
    output: F64
    session: list[Any]
    name: str
    is_stamp: bool


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    source = trace.single()
    if source.lines()[0][0].startswith(("{", "[")):
        found = records(trace, options.rows_read)
        header: list[str] = list(dict.fromkeys(name for row in found.rows for name in row))
        rows, faults, notes = found.rows, found.faults, found.notes
        chosen = _chosen(header, options, source.name)
        columns = _of_json(rows, faults, chosen)
    else:
        table = csv_table(source, (), options.rows_read)
        header, faults, notes = table.header, table.faults, table.notes
        chosen = _chosen(header, options, f"{source.name}:1")
        columns = _of_csv(table, chosen)
    output, defaults = filled(columns.output, faults, options, chosen["output"] or "output tokens")
    mark_lengths(faults, columns.prompt, output)
    timed = ~np.isnan(columns.time)
    if timed.any():
        faults.mark(~timed, lambda i: f"has no {chosen['timestamp']}")
    else:
        trace.found["untimed"] = "no times"
    kept, sorted_note = in_time(faults, np.nan_to_num(columns.time), options)
    unit, unit_note = ("ns", ()) if columns.is_stamp else unit_of(
        columns.time[kept], UNITS.get(columns.name, ""), options, trace, columns.name
    )  # fmt: skip
    session = numbered([columns.session[i] for i in kept])
    turn, before = turns(session)
    prompt_tokens, output_tokens = columns.prompt[kept].astype(np.int64), output[kept].astype(np.int64)
    prompts: dict[str, Any] = {"prompt_tokens": prompt_tokens, **apart(prompt_tokens)}
    taken = turns_taken(before, WHOLE, "lengths do not tell; trace.turns=delta says otherwise", options, trace)
    if taken == DELTA:
        prompts = accumulated(prompts, before, output_tokens)
    return request_table(
        kept.size,
        arrival_ns=from_first_ns(columns.time[kept], unit, trace.name),
        output_tokens=output_tokens,
        session_id=session,
        turn=np.where(session == NONE, 0, turn),
        after=before if taken == DELTA and not timed.any() else np.full(kept.size, NONE, np.int64),
        **prompts,
        notes=(*faults.note(), *notes, *sorted_note, *unit_note, *defaults,
               *unread_note(header, filter(None, chosen.values()))),
    )  # fmt: skip


FORMAT = Format(read, keys=PAIRS, header=PAIRS, timed=False)


def _chosen(header: list[str], options: TraceOptions, place: str) -> dict[str, str]:
    """What it is -> the name of its column; "" where there is none. UsageError: no inputs, or no such column."""
    named = _named(options.columns)
    for what, name in named.items():
        if name not in header:
            close = nearest(name, header) if header else ""
            raise UsageError(
                f"{place}: trace.columns: there is no column {shown(name)} ({what}); the nearest is {close}"
            )
    chosen = {}
    for what, known in KNOWN.items():
        chosen[what] = named.get(what) or next((name for name in known if name in header), "")
    if not chosen["input"]:
        raise UsageError(
            f"{place}: has no column of prompt tokens ({', '.join(KNOWN['input'][:3])}, ...); name it: "
            "trace.columns=timestamp=...,input=...,output=..."
        )
    return chosen


def _named(text: str) -> dict[str, str]:
    """The columns of trace.columns. UsageError: it is not what=NAME,what=NAME."""
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        what, _, name = part.partition("=")
        if what.strip() not in KNOWN or not name.strip() or what.strip() in found:
            raise UsageError(
                f"trace.columns: {shown(part)} is none of timestamp=NAME, input=NAME, output=NAME, session=NAME"
            )
        found[what.strip()] = name.strip()
    return found


def _of_json(rows: list[Row], faults: Faults, chosen: dict[str, str]) -> Columns:
    name = chosen["timestamp"]
    stamped = any(is_stamp(row.get(name)) for row in rows)
    if stamped:
        time = stamps([str(row.get(name)) for row in rows], faults, name).astype(np.int64).astype(np.float64)
    else:
        time = _numbers(rows, name, faults, whole=False, most=LARGEST_TIME)
    sessions = [row.get(chosen["session"]) for row in rows]
    wrong = np.array([type(value) not in (str, int, type(None)) for value in sessions], np.bool_)
    faults.mark(wrong, lambda i: f"{chosen['session']} is {shown(sessions[i])}, a string is wanted")
    return Columns(
        time,
        _numbers(rows, chosen["input"], faults, required=True),
        _numbers(rows, chosen["output"], faults),
        [None if bad else value for bad, value in zip(wrong, sessions, strict=True)],
        name,
        stamped,
    )


def _numbers(rows: list[Row], name: str, faults: Faults, required: bool = False, **limits: Any) -> F64:
    if not name:
        return np.full(len(rows), np.nan)
    return number_column(rows, (name,), faults, required=required, **limits)


def _of_csv(table: Table, chosen: dict[str, str]) -> Columns:
    n, name = len(table.rows), chosen["timestamp"]
    nothing = np.full(n, np.nan)
    texts = table.column(name) if name else []
    stamped = any(map(is_stamp, texts))
    if stamped:
        time = stamps(texts, table.faults, name).astype(np.int64).astype(np.float64)
    else:
        time = table.numbers(name, required=False) if name else nothing
        table.faults.mark(time < 0, lambda i: f"{name} is {time[i]:g}, which is negative")
    output = table.whole(chosen["output"], required=False) if chosen["output"] else nothing
    session = table.column(chosen["session"]) if chosen["session"] else [""] * n
    return Columns(time, table.whole(chosen["input"]), output, list(session), name, stamped)
