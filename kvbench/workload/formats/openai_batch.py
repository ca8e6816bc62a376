"""OpenAI batch inputs (JSON Lines: custom_id, method, url, body) -> Requests.

    body.messages | body.prompt | body.input    the prompt, a text or chat messages
    body.max_completion_tokens | max_tokens | max_output_tokens, else trace.default_output

No arrivals: a batch is handed over at once.
"""

from __future__ import annotations

from ...core.requests import Requests
from ..format import Format, names
from ..json_columns import Row
from ..options import TraceOptions
from ..rows import shown
from ..source import Trace
from ..text import Ask
from .openai import OUTPUT, ask_of, output_of, read_asks

READ = ("custom_id", "method", "url", "body")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong rows, unless they are skipped."""
    return read_asks(trace, options, lambda row: _ask(row, options), READ)


FORMAT = Format(read, keys=names("custom_id body"), timed=False)


def _ask(row: Row, options: TraceOptions) -> Ask:
    body = row.get("body")
    if not isinstance(body, dict):
        raise ValueError(f"body is {shown(body)}, an object is wanted")
    given = next((body[name] for name in ("messages", "input", "prompt") if body.get(name) is not None), None)
    if isinstance(given, str):
        return Ask((given,), None, output_of(body, OUTPUT, options, "body "))
    return ask_of({**body, "messages": given}, options)
