"""Which format a trace has: told by its content, not by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..core.errors import UsageError
from ..core.requests import Requests
from .formats import (
    aiperf,
    azure,
    bailian,
    burstgpt,
    chats,
    length_table,
    llmservingsim,
    lmcache,
    mooncake,
    multi_turn,
    otel,
    own,
    servegen,
    tracelab,
    weka,
)
from .formats.lines import cells
from .options import TraceOptions
from .rows import shown
from .source import Source, Trace

READERS: dict[str, Callable[[Trace, TraceOptions], Requests]] = {
    "kvbench": own.read,
    "mooncake": mooncake.read,
    "bailian": bailian.read,
    "weka": weka.read,
    "azure": azure.read,
    "burstgpt": burstgpt.read,
    "lengths": length_table.read,
    "llmservingsim": llmservingsim.read,
    "tracelab": tracelab.read,
    "servegen": servegen.read,
    "aiperf": aiperf.read,
    "vllm-custom": chats.read_custom,
    "vllm-multi-turn": multi_turn.read,
    "openai": chats.read_openai,
    "sharegpt": chats.read_sharegpt,
    "lmcache": lmcache.read,
    "otel": otel.read,
}
"""trace.format -> reader."""

UNTIMED = ("weka", "lengths", "tracelab", "aiperf", "vllm-custom", "vllm-multi-turn", "openai", "sharegpt")
"""Formats that may come without arrivals."""

_BY_HEADER = {
    "azure": azure.COLUMNS,
    "burstgpt": burstgpt.COLUMNS[:3],
    "lengths": length_table.COLUMNS,
    "tracelab": tracelab.COLUMNS,
}

_BY_KEYS = (
    ("kvbench", {own.MARK}),
    ("otel", {"spans"}),
    ("vllm-multi-turn", {"filetype"}),
    ("weka", {"requests"}),
    ("llmservingsim", {"input_toks"}),
    ("llmservingsim", {"sub_requests"}),
    ("bailian", {"chat_id", "hash_ids"}),
    ("mooncake", {"hash_ids"}),
    ("lmcache", {"input", "output"}),
    ("aiperf", {"turns"}),
    ("aiperf", {"text"}),
    ("aiperf", {"texts"}),
    ("openai", {"messages"}),
    ("sharegpt", {"conversations"}),
    ("vllm-custom", {"prompt"}),
    ("mooncake", {"input_length"}),
    ("mooncake", {"input_tokens"}),
    ("mooncake", {"timestamp"}),
)
"""An object with these keys, the first that fits."""


def recognised(trace: Trace) -> str:
    """The name of the format. UsageError: empty, binary, or none that is known."""
    names = [Path(source.name).name for source in trace.files]
    if trace.is_folder and any(servegen.NAME.fullmatch(name) for name in names):
        return "servegen"
    source = next((source for source in trace.files if source.data.strip()), trace.files[0])
    lines, numbers = source.lines()
    place = f"{source.name}:{numbers[0]}"
    if lines[0].startswith("{"):
        return _of_object(source, lines, place)
    if lines[0].startswith("["):
        return _of_list(source, place)
    header = set(cells(lines[0]))
    for name, columns in _BY_HEADER.items():
        if set(columns) <= header:
            return name
    raise UsageError(
        f"{place}: {shown(lines[0])} begins neither JSON nor a CSV with the columns of a format that is known "
        f"({', '.join(_BY_HEADER)}); if it is one, set trace.format"
    )


def _of_object(source: Source, lines: list[str], place: str) -> str:
    """By the keys of the first line, or of the whole file where that is one object."""
    first = _parsed(lines[0])
    if first is None and len(lines) > 1:
        first = _parsed("\n".join(lines))
    if not isinstance(first, dict):
        return _of_broken(source, lines, place)
    for name, keys in _BY_KEYS:
        if keys <= first.keys():
            return name
    raise UsageError(f"{place}: an object of {shown(sorted(first))} is of no format that is known; set trace.format")


def _of_broken(source: Source, lines: list[str], place: str) -> str:
    """Cut off or mistyped: by the first name that stands in it, so that the reader says what is wrong."""
    for name, keys in _BY_KEYS:
        if all(f'"{key}"' in lines[0] for key in keys):
            return name
    if lines[0] == "{":
        source.document()  # says at which line it ceases to be JSON
    return "mooncake"


def _of_list(source: Source, place: str) -> str:
    document = source.document()
    if isinstance(document, list) and document and isinstance(document[0], dict):
        if "conversations" in document[0] or "conversation" in document[0]:
            return "sharegpt"
        if "messages" in document[0]:
            raise UsageError(f"{place}: is a JSON array of messages; put one object on each line")
    raise UsageError(f"{place}: is a JSON array; put one object on each line")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
