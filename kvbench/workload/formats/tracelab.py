"""TraceLab replay files (CSV) -> Requests: sessions of rounds of a coding agent.

    session_id | id, round_idx   rounds of a session in order
    arrival_time                 ms, of the session; without it the trace has no arrivals
    prefix_len                   tokens that were cached: the context so far, or a part of it
    input_len                    NEW tokens, not the prompt: the prompt is prefix_len + input_len
    output_len                   tokens
    tool_wait_after_ms           from the end of the round to the next

A prefix is that of the session's own context, prompt and answer of the round before. What a first round found
cached came from elsewhere, and where from is not recorded: no other session shares it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.requests import MAX_STREAM_TOKENS, Requests
from ...core.units import NS_PER_MS
from ..csv_table import Table, csv_table
from ..format import Format
from ..json_columns import F64, numbered, turns
from ..options import TraceOptions
from ..prompts import Growing, Piece, leading, total
from ..rows import I64, Faults, mark_lengths
from ..source import Trace
from ..table import request_table

COLUMNS = ("round_idx", "prefix_len", "input_len", "output_len", "tool_wait_after_ms")
SESSION = ("session_id", "id")
TIME = ("arrival_time", "arrival_time(ms)")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped; a wrong one takes its session along."""
    table = csv_table(trace.single(), COLUMNS, options.num_prompts)
    faults = table.faults
    session = _sessions(table)
    rounds, prefix, new, output = (table.whole(name) for name in COLUMNS[:4])
    wait_ms = table.numbers(COLUMNS[4])
    timed = next((name for name in TIME if table.has(name)), None)
    time_ms = np.zeros(new.size) if timed is None else table.numbers(timed)
    for name, values in ((COLUMNS[1], prefix), (COLUMNS[4], wait_ms), (TIME[0], time_ms)):
        faults.mark(values < 0, lambda i, n=name, v=values: f"{n} is {v[i]:g}, which is negative")  # type: ignore[misc]
    faults.mark(new > MAX_STREAM_TOKENS, lambda i: f"input_len is {new[i]:.0f}, which is too long")
    mark_lengths(faults, prefix + new, output)
    _mark_rounds(faults, session, rounds)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    first = np.full(int(session.max()) + 1, np.inf)
    np.minimum.at(first, session[kept], time_ms[kept])
    order = kept[np.argsort(first[session[kept]], kind="stable")]
    notes = (*faults.note(), *table.notes, *table.unread((*COLUMNS, *SESSION, *TIME)))
    return requests_of_rounds(session[order], first, prefix[order], new[order], output[order], wait_ms[order], notes)


FORMAT = Format(read, header=(frozenset(COLUMNS),), timed=False)


def _sessions(table: Table) -> I64:
    name = next((name for name in SESSION if table.has(name)), None)
    if name is None:
        return np.zeros(len(table.rows), np.int64)
    texts = table.column(name)
    table.faults.mark(np.array([text == "" for text in texts], np.bool_), lambda i: f"has no {name}")
    return np.maximum(numbered(texts), 0)


def _mark_rounds(faults: Faults, session: I64, rounds: F64) -> None:
    """Rounds count from 0 within a session; all after a wrong one are wrong too."""
    reached: dict[int, int] = {}
    wrong: dict[int, str] = {}
    for i, (own, index, bad) in enumerate(zip(session.tolist(), rounds.tolist(), faults.bad.tolist(), strict=True)):
        wanted = reached.get(own, 0)
        if bad or index != wanted:
            wrong[i] = f"round_idx is {index:.0f}, wanted is {wanted}: rounds of a session come in order"
        else:
            reached[own] = wanted + 1
    faults.mark_all(wrong)


def requests_of_rounds(
    session: I64, first_ms: F64, prefix: F64, new: F64, output: F64, wait_ms: F64, notes: tuple[str, ...]
) -> Requests:
    turn, before = turns(session)
    prompts = Growing()
    context: dict[int, list[Piece]] = {}
    rows = zip(session.tolist(), prefix.tolist(), new.tolist(), output.tolist(), strict=True)
    for own, cached, added, made in rows:
        known = leading(context.get(own, []), int(cached))
        pieces = [*known, *prompts.fresh(int(cached) - total(known)), *prompts.fresh(int(added))]
        context[own] = prompts.add(pieces, int(made))
    columns: dict[str, Any] = prompts.columns()
    opens = turn == 0
    arrival_ms = np.where(opens, first_ms[session] - first_ms[session].min(), 0.0)
    return request_table(
        session.size,
        arrival_ns=np.rint(arrival_ms * NS_PER_MS).astype(np.int64),
        prompt_tokens=(prefix + new).astype(np.int64),
        output_tokens=output.astype(np.int64),
        session_id=session,
        turn=turn,
        after=before,
        think_ns=np.where(opens, 0, np.rint(wait_ms[before] * NS_PER_MS)).astype(np.int64),
        **columns,
        notes=notes,
    )
