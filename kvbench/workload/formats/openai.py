"""OpenAI chat requests (JSON Lines) -> Requests.

    messages      the prompt; a last message of the assistant is the answer
    max_tokens    | max_completion_tokens | output_length | output_tokens; without any and without an answer,
                  trace.default_output
    tools         before the messages

No arrivals. `text` says how words become tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ...core.requests import MAX_STREAM_TOKENS, Requests
from ..format import Format, names
from ..json_columns import Row, each, whole_value
from ..options import TraceOptions
from ..outputs import missing_text
from ..records import records
from ..rows import unread_note
from ..source import Trace
from ..table import request_table
from ..text import ANSWERS, Ask, chat, messages_of, tokens_of

OUTPUT = ("max_tokens", "max_completion_tokens", "max_output_tokens", "output_length", "output_tokens")
READ = ("messages", "tools", *OUTPUT)


def read(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong rows, unless they are skipped."""
    return read_asks(trace, options, lambda row: ask_of(row, options), READ)


FORMAT = Format(read, keys=names("messages"), timed=False)


def read_asks(trace: Trace, options: TraceOptions, parse: Callable[[Row], Ask], read: tuple[str, ...]) -> Requests:
    """Requests of a file without times, one for each row."""
    found = records(trace, options.num_prompts)
    faults = found.faults
    asks = each(found.rows, faults, parse)
    kept = faults.kept(options.skip_bad_rows)
    columns = tokens_of([ask for ask, good in zip(asks, kept, strict=True) if good and ask], faults, options)
    notes = (*faults.note(), *found.notes, *columns.pop("notes"))
    notes += unread_note((name for row in found.rows for name in row), read)
    return request_table(int(kept.sum()), **columns, notes=notes)


def ask_of(row: Row, options: TraceOptions) -> Ask:
    """A request of chat messages. ValueError says what is wrong."""
    messages = messages_of(row.get("messages"))
    answer = messages.pop()[1] if messages[-1][0] in ANSWERS and len(messages) > 1 else None
    tools = [("tools", json.dumps(row["tools"], sort_keys=True))] if row.get("tools") else []
    output = None if answer is not None else output_of(row, OUTPUT, options)
    return Ask(chat(tools + messages), answer, output)


def output_of(row: Row, columns: tuple[str, ...], options: TraceOptions, place: str = "") -> int | None:
    """The stated output, None where trace.default_output stands for it. ValueError: neither, or a wrong one."""
    if all(row.get(name) is None for name in columns):
        if options.default_output == 0:
            raise ValueError(place + missing_text(columns[0]))
        return None
    return whole_value(row, columns, 1, MAX_STREAM_TOKENS - 1, place)
