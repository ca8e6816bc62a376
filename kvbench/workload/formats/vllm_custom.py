"""vLLM's custom data set (JSON Lines: prompt, output_tokens) -> Requests. No arrivals.

Without output_tokens vLLM takes a length from its command line; here it is trace.default_output.
"""

from __future__ import annotations

from ...core.requests import Requests
from ..format import Format, names
from ..json_columns import text_value
from ..options import TraceOptions
from ..source import Trace
from ..text import Ask
from .openai import output_of, read_asks

OUTPUT = ("output_tokens", "max_tokens")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong rows, unless they are skipped."""
    return read_asks(
        trace,
        options,
        lambda row: Ask((text_value(row, "prompt"),), None, output_of(row, OUTPUT, options)),
        ("prompt", *OUTPUT),
    )


FORMAT = Format(read, keys=names("prompt"), timed=False)
