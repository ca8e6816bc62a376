"""AIPerf inputs (JSON Lines) -> Requests.

    single turn   text | texts, output_length, session_id, timestamp (ms) or delay (ms after the one before it)
    multi turn    session_id, turns[] of the same; each turn has all before it and its answers in its prompt
    Mooncake      text_input: what is new in its session, after all before it and its answers
                  messages: all of a prompt, unless assistant_responses is "live": then what is new

`role` is user where it is missing. What is answered is not recorded: it comes back as itself in the next turn. Rows of
the first kind that share a session_id are its turns, with prompts of their own. Rows with input_length are Mooncake's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.requests import NONE, Requests
from ...core.units import NS_PER_MS
from ..clock import LARGEST_TIME, NS_OF_UNIT, from_first_ns, unit_of
from ..format import Format, names
from ..json_columns import Row, each
from ..options import TraceOptions
from ..records import records
from ..retime import from_zero, in_order
from ..rows import Faults, shown, unread_note
from ..source import Trace
from ..table import request_table
from ..text import Ask, chat, messages_of, tokens_of
from .openai import output_of

OUTPUT = ("output_length", "max_tokens", "max_completion_tokens")
READ = (*OUTPUT, "text", "texts", "text_input", "messages", "tools", "assistant_responses", "turns", "role",
        "session_id", "timestamp", "delay")  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """messages of what is said, None outputs are drawn; time of its arrival or after the turn before it, NaN: not said.

    is_new   whether it is what is new in its session, and not all of a prompt
    """

    messages: list[tuple[str, str]]
    output_tokens: int | None
    time: float
    delay: float
    is_new: bool


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file in order of arrival. UsageError on wrong rows, unless they are skipped."""
    found = records(trace, options.num_prompts)
    rows, faults = found.rows, found.faults
    chains = each(rows, faults, lambda row: _turns(row, options))
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    chosen = [(rows[i], chains[i] or []) for i in kept]
    times = np.array([turn.time for _, chain in chosen for turn in chain])
    unit, unit_note = unit_of(times, "ms", options, trace)
    asks, columns, owners = _asks(chosen, NS_OF_UNIT[options.time_unit] if options.time_unit != "auto" else NS_PER_MS)
    told = tokens_of(asks, Faults(len(asks), lambda i: faults.where(kept[owners[i]])), options)
    if any(ask.follows != NONE for ask in asks):
        why = "of the format" if options.turns == "auto" else "trace.turns"
        trace.found["turns"] = f"delta: a turn is what is new, after all that was said before ({why})"
    notes = (*faults.note(), *found.notes, *unit_note, *told.pop("notes"))
    notes += unread_note((name for row in rows for name in row), READ)
    requests = request_table(len(asks), **columns, **told, notes=notes)
    starts = np.where(columns["after"] == NONE, from_first_ns(times, unit, trace.name), 0)
    return from_zero(in_order(replace(requests, arrival_ns=starts)))


FORMAT = Format(
    read,
    keys=names(
        "text", "texts", "turns", "text_input", "messages timestamp", "messages delay", "messages session_id",
        "messages output_length",
    ),
    timed=False,
)  # fmt: skip


def _turns(row: Row, options: TraceOptions) -> list[Turn]:
    if type(row.get("session_id")) not in (str, int, type(None)):
        raise ValueError(f"session_id is {shown(row['session_id'])}, a string is wanted")
    if "turns" not in row:
        return [_turn(row, row, "", _says_what_is_new(row), options)]
    given = row["turns"]
    if not isinstance(given, list) or not given:
        raise ValueError("turns is no list of turns")
    return [_turn(turn, row, f"turns[{k}].", k > 0, options) for k, turn in enumerate(given)]


def _says_what_is_new(row: Row) -> bool:
    return "text_input" in row or ("messages" in row and row.get("assistant_responses") == "live")


def _turn(turn: Any, row: Row, place: str, is_new: bool, options: TraceOptions) -> Turn:
    if not isinstance(turn, dict):
        raise ValueError(f"{place[:-1]} is no object")
    output = output_of({**row, **turn}, OUTPUT, options, place)
    if options.turns != "auto":
        is_new = options.turns == "delta"
    return Turn(_messages(turn, place), output, _time(turn, "timestamp", place), _time(turn, "delay", place), is_new)


def _messages(turn: Row, place: str) -> list[tuple[str, str]]:
    if "messages" in turn:
        tools = [("tools", json.dumps(turn["tools"], sort_keys=True))] if turn.get("tools") else []
        return [*tools, *messages_of(turn["messages"])]
    texts = turn["texts"] if "texts" in turn else [turn.get("text_input", turn.get("text"))]
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"{place}text is {shown(turn.get('text'))}, a text is wanted")
    role = turn.get("role") or "user"
    if not isinstance(role, str):
        raise ValueError(f"{place}role is {shown(role)}, a string is wanted")
    return [(role, "\n".join(texts))]


def _time(turn: Row, name: str, place: str) -> float:
    value = turn.get(name)
    if value is None:
        return np.nan
    if type(value) not in (int, float) or not 0 <= value <= LARGEST_TIME:
        raise ValueError(f"{place}{name} is {shown(value)}, milliseconds >= 0 are wanted")
    return float(value)


def _asks(chains: list[tuple[Row, list[Turn]]], delay_ns: int) -> tuple[list[Ask], dict[str, Any], list[int]]:
    """Requests in words, columns but for the arrivals, and which chain each belongs to."""
    asks: list[Ask] = []
    owners: list[int] = []
    rows: list[tuple[int, int, int, int]] = []
    numbers: dict[Any, int] = {}
    last: dict[int, int] = {}  # request that came last in a session
    for index, (row, chain) in enumerate(chains):
        name = row.get("session_id")
        session = numbers.setdefault(index if name is None else ("", name), len(numbers))
        for turn in chain:
            before = last.get(session, NONE)
            after = before if np.isnan(turn.time) else NONE
            wait = 0 if after == NONE else round(np.nan_to_num(turn.delay) * delay_ns)
            place = 0 if before == NONE else rows[before][1] + 1
            pieces = chat(turn.messages)
            if turn.is_new and before != NONE:  # the newline ends the answer
                asks.append(Ask(("\n", *pieces), None, turn.output_tokens, follows=before))
            else:
                asks.append(Ask(pieces, None, turn.output_tokens))
            rows.append((session, place, after, wait))
            owners.append(index)
            last[session] = len(asks) - 1
    table = np.array(rows, np.int64).T
    columns = ("session_id", "turn", "after", "think_ns")
    return asks, {name: column.copy() for name, column in zip(columns, table, strict=True)}, owners
