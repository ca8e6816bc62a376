"""OpenTelemetry traces as inference-perf writes them (one JSON object a file; a file or a folder) -> Requests.

    trace_id, spans[]   span_id, start_time, end_time (ISO), attributes:
        gen_ai.input.messages       JSON inside a string
        gen_ai.output.text | gen_ai.output.messages
        gen_ai.usage.prompt_tokens | input_tokens, completion_tokens | output_tokens
        exgentic.session.id, gen_ai.request.max_tokens, gen_ai.tool.definitions

A span without messages is no call of a model and is left out. A span follows on the one of its session that had ended
last when it began; spans that overlap run side by side, and where what follows began after all of them, it waits for
all. Sessions start at their recorded times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, NONE, Requests
from ..options import TraceOptions
from ..retime import from_zero, in_order
from ..rows import I64, Faults, shown
from ..source import Trace
from ..table import request_table
from .azure import stamps
from .columns import Row, each, turns
from .text import Ask, chat, messages_of, tokens_of

INPUT = "gen_ai.input.messages"
PROMPT_TOKENS = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
SESSION = "exgentic.session.id"


@dataclass(frozen=True)
class Spans:
    """Calls of a model: span objects, where each stands, its session's name."""

    rows: list[Row]
    places: list[str]
    sessions: list[str]


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests in order of arrival. UsageError on wrong spans (unless they are skipped), or when there are none."""
    spans = _spans(trace)
    faults = Faults(len(spans.rows), lambda i: spans.places[i])
    asks = each(spans.rows, faults, _ask)
    start, end = (
        stamps([str(row.get(name)) for row in spans.rows], faults, name).astype(np.int64)
        for name in ("start_time", "end_time")
    )
    faults.mark(end < start, lambda i: "ends before it starts")
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    order = kept[np.lexsort((end[kept], start[kept]))][: options.num_prompts or None]
    names = [spans.sessions[i] for i in order]
    session = np.unique(names, return_inverse=True)[1].astype(np.int64)
    start, end = start[order], end[order]
    after, joins = _joined(_after(session, start, end), start, end)
    waited = _last_of(after, joins, end)
    chosen = [ask for ask in (asks[i] for i in order) if ask is not None]
    columns = tokens_of(chosen, Faults(len(chosen), lambda i: spans.places[order[i]]), options)
    notes = (*faults.note(), *columns.pop("notes"))
    requests = request_table(
        order.size,
        session_id=session,
        turn=turns(session)[0],
        after=after,
        think_ns=np.where(after == NONE, 0, start - waited),
        joins=joins if (joins != NONE).any() else None,
        **columns,
        notes=notes,
    )
    arrival = np.where(after == NONE, start - start[0], 0)
    return from_zero(in_order(replace(requests, arrival_ns=arrival)))


def _spans(trace: Trace) -> Spans:
    found = Spans([], [], [])
    for source in trace.files:
        document = source.document()
        if not isinstance(document, dict) or not isinstance(document.get("spans"), list):
            raise UsageError(f"{source.name}:1: is no trace: an object with spans is wanted")
        for k, span in enumerate(document["spans"]):
            row = span if isinstance(span, dict) else {}
            attributes: Any = row.get("attributes") if isinstance(row.get("attributes"), dict) else {}
            if row and INPUT not in attributes:
                continue
            found.rows.append(row)
            found.places.append(f"{source.name}: spans[{k}]")
            found.sessions.append(f"{document.get('trace_id')}/{attributes.get(SESSION)}")
    if not found.rows:
        raise UsageError(f"{trace.name}: no span has {INPUT}; was the content of messages recorded?")
    return found


def _ask(row: Row) -> Ask:
    if not row:
        raise ValueError("is no span")
    attributes = row["attributes"]
    messages = messages_of(_json(attributes, INPUT))
    tools = attributes.get("gen_ai.tool.definitions")
    if isinstance(tools, str):
        messages.insert(0, ("tools", tools))
    output, prompt = _count(attributes, OUTPUT_TOKENS), _count(attributes, PROMPT_TOKENS)
    return Ask(chat(messages), _answer(attributes), output, prompt)


def _answer(attributes: Row) -> str | None:
    text = attributes.get("gen_ai.output.text")
    if isinstance(text, str):
        return text
    if "gen_ai.output.messages" in attributes:
        return "".join(content for _, content in messages_of(_json(attributes, "gen_ai.output.messages")))
    return None


def _json(attributes: Row, name: str) -> Any:
    """An attribute that is JSON inside a string."""
    value = attributes[name]
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"{name} is {shown(value)}, JSON in a string is wanted") from None


def _count(attributes: Row, names: tuple[str, ...]) -> int | None:
    value = next((attributes[name] for name in names if attributes.get(name) is not None), None)
    if value is not None and (type(value) is not int or not 1 <= value < MAX_STREAM_TOKENS):
        raise ValueError(f"{names[0]} is {shown(value)}, a number of tokens is wanted")
    return value


def _joined(after: I64, start: I64, end: I64) -> tuple[I64, I64]:
    """(n,) after and joins, where calls side by side are waited for together.

    Calls after the same one join the first of them, if all that follows on any of them began when all had ended.
    """
    after, joins = after.copy(), np.full(after.size, NONE, np.int64)
    for parent in range(after.size):  # in order: a group that is joined moves those that follow it
        calls = np.flatnonzero((after == parent) & (joins == NONE))
        following = np.flatnonzero(np.isin(after, calls))
        if calls.size > 1 and following.size and (start[following] >= end[calls].max()).all():
            joins[calls[1:]] = calls[0]
            after[following] = calls[0]
    return after, joins


def _last_of(after: I64, joins: I64, end: I64) -> I64:
    """(n,) when the last of the calls had ended that each one waits for; 0 where it waits for none."""
    last = end.copy()
    joined = np.flatnonzero(joins != NONE)
    np.maximum.at(last, joins[joined], end[joined])
    return np.where(after == NONE, 0, last[after])


def _after(session: I64, start: I64, end: I64) -> I64:
    """(n,) of the spans of the session that had ended when a span began, the one that ended last."""
    after = np.full(session.size, NONE, np.int64)
    for i in range(session.size):
        ended = np.flatnonzero((session[:i] == session[i]) & (end[:i] <= start[i]))
        if ended.size:
            after[i] = ended[np.argmax(end[ended])]
    return after
