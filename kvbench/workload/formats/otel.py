"""OpenTelemetry traces (one JSON object a file, or one a line; a file or a folder) -> Requests.

    trace_id, spans[]   as inference-perf writes them: span_id, start_time, end_time (ISO), attributes{}
    resourceSpans[]     OTLP: scopeSpans[].spans[] with startTimeUnixNano, endTimeUnixNano, attributes[{key, value}]

Attributes:
        gen_ai.input.messages       JSON inside a string
        gen_ai.output.text | gen_ai.output.messages
        gen_ai.usage.prompt_tokens | input_tokens, completion_tokens | output_tokens
        exgentic.session.id, gen_ai.request.max_tokens, gen_ai.tool.definitions

A span with neither messages nor both counts of tokens is no call of a model and is left out; so is one without messages
around other calls (an agent's own span), whose counts are the sum of theirs. A span follows on the one of its session
that had ended last when it began; spans that overlap run side by side, and where what follows began after all of them,
it waits for all. Sessions start at their recorded times.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, NONE, Requests
from ..clock import LARGEST_TIME, stamps
from ..format import Format, names
from ..json_columns import Row, each, turns
from ..options import TraceOptions
from ..records import documents
from ..retime import from_zero, in_order
from ..rows import I64, Faults, shown
from ..source import Trace
from ..table import request_table
from ..text import Ask, chat, messages_of, tokens_of

INPUT = "gen_ai.input.messages"
PROMPT_TOKENS = ("gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens")
OUTPUT_TOKENS = ("gen_ai.usage.completion_tokens", "gen_ai.usage.output_tokens")
SESSION = "exgentic.session.id"


@dataclass(frozen=True)
class Spans:
    """Calls of a model: span objects, where each stands, its session's name; how many spans are none."""

    rows: list[Row]
    places: list[str]
    sessions: list[str]
    others: int


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests in order of arrival. UsageError on wrong spans (unless they are skipped), or when there are none."""
    spans = _spans(trace)
    faults = Faults(len(spans.rows), lambda i: spans.places[i])
    asks = each(spans.rows, faults, _ask)
    start, end = _times(spans.rows, "start_time", faults), _times(spans.rows, "end_time", faults)
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
    left = (f"{spans.others} spans are no calls of a model: left out",) if spans.others else ()
    notes = (*faults.note(), *columns.pop("notes"), *left)
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


FORMAT = Format(read, keys=names("spans", "resourceSpans"))


def _spans(trace: Trace) -> Spans:
    found = Spans([], [], [], 0)
    others = 0
    for source in trace.files:
        for document, place in documents(source):
            given = _spans_of(document, place)
            parents = {span.get("parent_span_id") for _, span in given if _is_call(span)}
            for where, span in given:
                around = INPUT not in _attributes(span) and span.get("span_id") in parents
                if span and (not _is_call(span) or around):
                    others += 1
                    continue
                name = document.get("trace_id") or span.get("trace_id")
                found.rows.append(span)
                found.places.append(where)
                found.sessions.append(f"{name}/{_attributes(span).get(SESSION)}")
    if not found.rows:
        counts = f"{PROMPT_TOKENS[1]} and {OUTPUT_TOKENS[1]}"
        raise UsageError(f"{trace.name}: no span has {INPUT}, or {counts}: was the content of messages recorded?")
    return replace(found, others=others)


def _spans_of(document: Any, place: str) -> list[tuple[str, Row]]:
    """(place, span in inference-perf's form) of one document; {} for what is no span."""
    if isinstance(document, dict) and isinstance(document.get("spans"), list):
        spans = document["spans"]
        return [(f"{place}: spans[{k}]", s if isinstance(s, dict) else {}) for k, s in enumerate(spans)]
    groups = document.get("resourceSpans") if isinstance(document, dict) else None
    if not isinstance(groups, list):
        raise UsageError(f"{place}:1: is no trace: an object with spans or resourceSpans is wanted")
    found: list[tuple[str, Row]] = []
    for scope in (s for group in groups for s in _objects(group, "scopeSpans")):
        found += [(f"{place}: spans[{len(found) + k}]", _plain(s)) for k, s in enumerate(_objects(scope, "spans"))]
    return found


def _objects(value: Any, name: str) -> list[Row]:
    given = value.get(name) if isinstance(value, dict) else None
    return [entry if isinstance(entry, dict) else {} for entry in given] if isinstance(given, list) else []


def _plain(span: Row) -> Row:
    """An OTLP span in inference-perf's form."""
    if not span:
        return {}
    attributes = {str(entry.get("key")): _value(entry.get("value")) for entry in _objects(span, "attributes")}
    return {
        "span_id": span.get("spanId"),
        "parent_span_id": span.get("parentSpanId"),
        "trace_id": span.get("traceId"),
        "start_time": _nano(span.get("startTimeUnixNano")),
        "end_time": _nano(span.get("endTimeUnixNano")),
        "attributes": attributes,
    }


def _value(value: Any) -> Any:
    """OTLP writes whole numbers as strings."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    kind, held = next(iter(value.items()))
    return int(held) if kind == "intValue" and str(held).isascii() and str(held).isdigit() else held


def _nano(value: Any) -> Any:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and int(text) <= LARGEST_TIME else value


def _attributes(span: Row) -> Row:
    told = span.get("attributes")
    return told if isinstance(told, dict) else {}


def _is_call(span: Row) -> bool:
    told = _attributes(span)
    counted = all(any(told.get(name) is not None for name in names) for names in (PROMPT_TOKENS, OUTPUT_TOKENS))
    return INPUT in told or counted


def _times(rows: list[Row], name: str, faults: Faults) -> I64:
    """(n,) ns since 1970, of numbers of nanoseconds or stamps."""
    values = [row.get(name) for row in rows]
    texts = [str(np.datetime64(v, "ns")) + "Z" if type(v) is int and 0 <= v <= LARGEST_TIME else str(v) for v in values]
    return stamps(texts, faults, name).astype(np.int64)


def _ask(row: Row) -> Ask:
    if not row:
        raise ValueError("is no span")
    attributes = row["attributes"]
    output, prompt = _count(attributes, OUTPUT_TOKENS), _count(attributes, PROMPT_TOKENS)
    if INPUT not in attributes:
        return Ask((), None, output, prompt)
    messages = messages_of(_json(attributes, INPUT))
    tools = attributes.get("gen_ai.tool.definitions")
    if isinstance(tools, str):
        messages.insert(0, ("tools", tools))
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
