"""AIPerf inputs (JSON Lines) -> Requests.

    single turn   text | texts, output_length, session_id, timestamp (ms) or delay (ms after the one before it)
    multi turn    session_id, turns[] of the same; each turn has all before it and its answers in its prompt

`role` is user where it is missing. What is answered is not recorded: it comes back as itself in the next turn. Rows
of the first kind that share a session_id are its turns, with prompts of their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.requests import MAX_STREAM_TOKENS, NONE, Requests
from ...core.units import NS_PER_MS
from ..options import TraceOptions
from ..retime import from_zero, in_order
from ..rows import Faults, shown
from ..source import Trace
from ..table import request_table
from .columns import MAX_NUMBER, Row, each, json_rows, whole_value
from .lines import first_lines
from .text import Ask, chat, tokens_of


@dataclass(frozen=True)
class Turn:
    """role, text; ms of its arrival or after the turn before it, None where it is not said."""

    role: str
    text: str
    output_tokens: int
    time_ms: float | None
    delay_ms: float | None


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file in order of arrival. UsageError on wrong rows, unless they are skipped."""
    source = trace.single()
    lines, numbers, notes = first_lines(source, options.num_prompts)
    faults = Faults.of_lines(source.name, numbers)
    rows = json_rows(lines, faults)
    chains = each(rows, faults, _turns)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    asks, columns, owners = _asks([(rows[i], chains[i] or []) for i in kept])
    told = tokens_of(asks, Faults(len(asks), lambda i: faults.where(kept[owners[i]])), options)
    starts = columns.pop("arrival_ns")
    notes = (*faults.note(), *notes, *told.pop("notes"))
    requests = request_table(len(asks), **columns, **told, notes=notes)
    return from_zero(in_order(replace(requests, arrival_ns=starts)))


def _turns(row: Row) -> list[Turn]:
    if type(row.get("session_id")) not in (str, int, type(None)):
        raise ValueError(f"session_id is {shown(row['session_id'])}, a string is wanted")
    if "turns" not in row:
        return [_turn(row, row, "")]
    given = row["turns"]
    if not isinstance(given, list) or not given:
        raise ValueError("turns is no list of turns")
    return [_turn(turn, row, f"turns[{k}].") for k, turn in enumerate(given)]


def _turn(turn: Any, row: Row, place: str) -> Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"{place[:-1]} is no object")
    texts = turn["texts"] if "texts" in turn else [turn.get("text")]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{place}text is {shown(turn.get('text'))}, a text is wanted")
    output = whole_value({**row, **turn}, ("output_length", "max_tokens"), 1, MAX_STREAM_TOKENS - 1, place)
    role = turn.get("role") or "user"
    if not isinstance(role, str):
        raise ValueError(f"{place}role is {shown(role)}, a string is wanted")
    return Turn(role, "\n".join(texts), output, _ms(turn, "timestamp", place), _ms(turn, "delay", place))


def _ms(turn: Row, name: str, place: str) -> float | None:
    value = turn.get(name)
    if value is not None and (type(value) not in (int, float) or not 0 <= value <= MAX_NUMBER):
        raise ValueError(f"{place}{name} is {shown(value)}, milliseconds >= 0 are wanted")
    return value


def _asks(chains: list[tuple[Row, list[Turn]]]) -> tuple[list[Ask], dict[str, Any], list[int]]:
    """Requests in words, columns, and which chain each belongs to."""
    asks: list[Ask] = []
    owners: list[int] = []
    rows: list[tuple[int, int, int, int, int]] = []
    names: dict[Any, int] = {}
    last: dict[int, int] = {}  # request that came last in a session
    for index, (row, chain) in enumerate(chains):
        name = row.get("session_id")
        session = names.setdefault(index if name is None else ("", name), len(names))
        for k, turn in enumerate(chain):
            before = last.get(session, NONE)
            after = before if turn.time_ms is None else NONE
            wait = 0 if after == NONE else round((turn.delay_ms or 0) * NS_PER_MS)
            arrival = round((turn.time_ms or 0) * NS_PER_MS) if after == NONE else 0
            place = 0 if before == NONE else rows[before][2] + 1
            pieces = chat([(turn.role, turn.text)])
            if k > 0:  # the newline ends the answer
                asks.append(Ask(("\n", *pieces), None, turn.output_tokens, follows=before))
            else:
                asks.append(Ask(pieces, None, turn.output_tokens))
            rows.append((arrival, session, place, after, wait))
            owners.append(index)
            last[session] = len(asks) - 1
    table = np.array(rows, np.int64).T
    columns = ("arrival_ns", "session_id", "turn", "after", "think_ns")
    return asks, {name: column.copy() for name, column in zip(columns, table, strict=True)}, owners
