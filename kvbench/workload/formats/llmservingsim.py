"""LLMServingSim workloads (JSON Lines) -> Requests; both kinds of line may share a file.

    input_toks, output_toks, arrival_time_ns       a request, with input_tok_ids and output_tok_ids or without
    session_id, arrival_time_ns, sub_requests[]    a chain: each of input_toks, output_toks, tool_duration_ns (from
                                                   its end to the next)

Token ids are what is shared. Without them no prompt shares anything, not even within a session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.requests import EXPLICIT, MAX_STREAM_TOKENS, NONE, Requests
from ..format import Format, names
from ..json_columns import Row, each, whole_value
from ..options import TraceOptions
from ..prompts import Growing, Piece
from ..records import records
from ..retime import from_zero, in_order
from ..rows import shown, unread_note
from ..source import Trace
from ..table import request_table

READ = ("input_toks", "output_toks", "arrival_time_ns", "input_tok_ids", "output_tok_ids", "session_id", "sub_requests",
        "tool_duration_ns")  # fmt: skip

_LIMIT = MAX_STREAM_TOKENS - 1
_MAX_NS = 2.2e18


@dataclass(frozen=True)
class Call:
    """One request: lengths, ns to wait after it, token ids or None."""

    prompt_tokens: int
    output_tokens: int
    wait_ns: int
    prompt_ids: list[int] | None
    output_ids: list[int] | None


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file in order of arrival. UsageError on wrong rows, unless they are skipped."""
    found = records(trace, options.num_prompts)
    rows, faults = found.rows, found.faults
    chains = each(rows, faults, _chain)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    names_of = (name for row in rows for name in row)
    return _requests(
        [rows[i] for i in kept],
        [chains[i] or [] for i in kept],
        (*faults.note(), *found.notes, *unread_note(names_of, READ)),
    )


FORMAT = Format(read, keys=names("input_toks", "sub_requests"))


def _chain(row: Row) -> list[Call]:
    """The calls of a line. ValueError says what is wrong."""
    whole_value(row, ("arrival_time_ns",), 0, _MAX_NS)
    if "sub_requests" not in row:
        return [_call(row, "")]
    if type(row.get("session_id")) not in (str, int):
        raise ValueError(f"session_id is {shown(row.get('session_id'))}, a string is wanted")
    calls = row["sub_requests"]
    if not isinstance(calls, list) or not calls:
        raise ValueError("sub_requests is no list of requests")
    return [_call(call, f"sub_requests[{k}].") for k, call in enumerate(calls)]


def _call(row: Any, place: str) -> Call:
    if not isinstance(row, dict):
        raise ValueError(f"{place[:-1]} is no object")
    prompt = whole_value(row, ("input_toks",), 1, _LIMIT, place)
    output = whole_value(row, ("output_toks",), 0, _LIMIT, place)
    wait = whole_value(row, ("tool_duration_ns",), 0, _MAX_NS, place) if "tool_duration_ns" in row else 0
    prompt_ids, output_ids = _ids(row, "input_tok_ids", prompt, place), _ids(row, "output_tok_ids", output, place)
    return Call(prompt, output, wait, prompt_ids, output_ids)


def _ids(row: Row, name: str, tokens: int, place: str) -> list[int] | None:
    ids = row.get(name)
    if ids is None:
        return None
    if not isinstance(ids, list) or any(type(i) is not int or not 0 <= i < 1 << 62 for i in ids):
        raise ValueError(f"{place}{name} is no list of token ids")
    if len(ids) != tokens:
        raise ValueError(f"{place}{name} has {len(ids)} ids for {tokens} tokens")
    return ids


def _requests(rows: list[Row], chains: list[list[Call]], notes: tuple[str, ...]) -> Requests:
    prompts = Growing()
    token_ids: list[int] = []

    def explicit(ids: list[int]) -> Piece:
        token_ids.extend(ids)
        return EXPLICIT, len(token_ids) - len(ids), len(ids)

    names: dict[Any, int] = {}
    columns: dict[str, list[int]] = {n: [] for n in ("arrival_ns", "session_id", "turn", "after", "think_ns")}
    for row, chain in zip(rows, chains, strict=True):
        session = names.setdefault(row["session_id"], len(names)) if "sub_requests" in row else NONE
        for turn, call in enumerate(chain):
            pieces = prompts.fresh(call.prompt_tokens) if call.prompt_ids is None else [explicit(call.prompt_ids)]
            prompts.add(pieces, call.output_tokens, explicit(call.output_ids) if call.output_ids else None)
            before = len(columns["turn"]) - 1
            values = (0, session, turn, before, chain[turn - 1].wait_ns)
            if turn == 0:
                values = (int(row["arrival_time_ns"]), session, 0, NONE, 0)
            for name, value in zip(columns, values, strict=True):
                columns[name].append(value)
    calls = [call for chain in chains for call in chain]
    arrays: dict[str, Any] = {name: np.array(values, np.int64) for name, values in columns.items()}
    starts = arrays.pop("arrival_ns")
    requests = request_table(
        len(calls),
        prompt_tokens=np.array([call.prompt_tokens for call in calls], np.int64),
        output_tokens=np.array([call.output_tokens for call in calls], np.int64),
        **arrays,
        **prompts.columns(),
        token_ids=np.array(token_ids, np.int64),
        notes=(*notes, *_note(calls)),
    )
    return from_zero(in_order(replace(requests, arrival_ns=starts)))


def _note(calls: list[Call]) -> tuple[str, ...]:
    bare = sum(call.prompt_ids is None for call in calls)
    if bare == 0:
        return ()
    return (f"{bare} of {len(calls)} prompts have no token ids: they share nothing with any other",)
