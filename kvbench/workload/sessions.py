"""Rows of sessions that hold only what is new: their prompts, with all that was said before in front."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS, NONE
from .options import TraceOptions
from .pieces import Pieces, prompts, single
from .rows import I64
from .source import Trace

DELTA = "delta"
WHOLE = "whole"


def turns_taken(before: I64, usual: str, why: str, options: TraceOptions, trace: Trace) -> str:
    """DELTA or WHOLE, and written into trace.found; "" where no row has another one before it in its session.

    usual, why   what such rows are unless trace.turns says otherwise, and the reason
    """
    if not (before != NONE).any():
        return ""
    taken, reason = (usual, why) if options.turns == "auto" else (options.turns, "trace.turns")
    told = {
        DELTA: "delta: a row is what is new, after all that was said before",
        WHOLE: "whole: a row is all of its prompt",
    }
    trace.found["turns"] = f"{told[taken]} ({reason})"
    return taken


def begins_alike(columns: dict[str, Any], before: I64) -> bool:
    """Whether a row begins with the same stream as the one before it in its session."""
    first = columns["segment_stream"][columns["segment_offset"][:-1]]
    return bool(((before != NONE) & (first == first[before])).any())


def accumulated(columns: dict[str, Any], before: I64, output_tokens: I64) -> dict[str, Any]:
    """Columns of Requests with prompt and answer of the row before in front of each row's own pieces.

    before   (n,) the row that each one goes on from, before it; NONE for the first of a session
    Returns them with prompt_tokens. UsageError: a prompt becomes too long.
    """
    runs = np.stack([columns[f"segment_{part}"] for part in ("stream", "start", "length")])
    answer = single(columns["output_stream"], output_tokens)
    grown = prompts(before, answer, Pieces(columns["segment_offset"], runs))
    tokens = np.add.reduceat(grown.runs[2], grown.offset[:-1])
    if int(tokens.max()) >= MAX_STREAM_TOKENS:
        raise UsageError(
            f"a prompt of a session has {tokens.max()} tokens with all before it, at most {MAX_STREAM_TOKENS - 1}; "
            "are its rows whole prompts? Set trace.turns=whole"
        )
    return {
        **columns,
        "prompt_tokens": tokens,
        "segment_offset": grown.offset,
        "segment_stream": grown.runs[0].copy(),
        "segment_start": grown.runs[1].copy(),
        "segment_length": grown.runs[2].copy(),
    }
