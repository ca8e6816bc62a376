"""Prompts and conversations as text -> Requests.

    openai        JSON Lines {"messages", "max_tokens", "tools"}; a last message of the assistant is the answer
    sharegpt      JSON [{"conversations": [{"from", "value"}]}]: a request for every answer, after the one before it
    vllm-custom   JSON Lines {"prompt", "output_tokens"}

None of them has arrivals. `text` says how words become tokens.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, NONE, Requests
from ..options import TraceOptions
from ..rows import Faults
from ..source import Trace
from ..table import request_table
from .columns import Row, each, json_rows, text_value, whole_value
from .lines import first_lines
from .text import ANSWERS, Ask, chat, messages_of, tokens_of

OUTPUT = ("max_tokens", "max_completion_tokens", "output_length", "output_tokens")


def read_openai(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong rows, unless they are skipped."""
    return _read_lines(trace, options, _openai)


def read_custom(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong rows, unless they are skipped."""
    return _read_lines(trace, options, _custom)


def _read_lines(trace: Trace, options: TraceOptions, parse: Any) -> Requests:
    source = trace.single()
    lines, numbers, notes = first_lines(source, options.num_prompts)
    faults = Faults.of_lines(source.name, numbers)
    asks = each(json_rows(lines, faults), faults, parse)
    kept = faults.kept(options.skip_bad_rows)
    columns = tokens_of([ask for ask, good in zip(asks, kept, strict=True) if good and ask], faults, options)
    notes = (*faults.note(), *notes, *columns.pop("notes"))
    return request_table(int(kept.sum()), **columns, notes=notes)


def _openai(row: Row) -> Ask:
    messages = messages_of(row.get("messages"))
    answer = messages.pop()[1] if messages[-1][0] in ANSWERS and len(messages) > 1 else None
    tools = [("tools", json.dumps(row["tools"], sort_keys=True))] if row.get("tools") else []
    output = None if answer is not None else whole_value(row, OUTPUT, 1, MAX_STREAM_TOKENS - 1)
    return Ask(chat(tools + messages), answer, output)


def _custom(row: Row) -> Ask:
    output = whole_value(row, ("output_tokens",), 1, MAX_STREAM_TOKENS - 1)
    return Ask((text_value(row, "prompt"),), None, output)


def read_sharegpt(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong conversations (unless they are skipped), or when none has an answer."""
    source = trace.single()
    document = source.document()
    if not isinstance(document, list) or not document:
        raise UsageError(f"{source.name}:1: is no list of conversations")
    faults = Faults(len(document), lambda i: f"{source.name}: [{i}]")
    rows = [row if isinstance(row, dict) else {} for row in document]
    chains = each(rows, faults, _conversation)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    asks: list[Ask] = []
    owners: list[tuple[int, int, int]] = []
    for i in kept:
        chain = chains[i] or []
        owners += [(i, turn, NONE if turn == 0 else len(asks) + turn - 1) for turn in range(len(chain))]
        asks += chain
    if not asks:
        raise UsageError(f"{source.name}: no conversation has an answer; a request is made for every answer")
    asks, owners = asks[: options.num_prompts or len(asks)], owners[: options.num_prompts or len(asks)]
    columns = tokens_of(asks, Faults(len(asks), lambda i: faults.where(owners[i][0])), options)
    session, turn, after = np.array(owners, np.int64).T.copy()
    notes = (*faults.note(), *columns.pop("notes"))
    sessions = np.unique(session, return_inverse=True)[1].astype(np.int64)
    return request_table(len(asks), session_id=sessions, turn=turn, after=after, **columns, notes=notes)


def _conversation(row: Row) -> list[Ask]:
    """A request for every answer; what comes before it is its prompt."""
    given = row.get("conversations", row.get("conversation"))
    messages = messages_of(given, "from", "value") if _says_from(given) else messages_of(given)
    return [
        Ask(chat(messages[:k]), content)
        for k, (role, content) in enumerate(messages)
        if role in ANSWERS and k > 0 and messages[k - 1][0] not in ANSWERS
    ]


def _says_from(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "from" in value[0]
