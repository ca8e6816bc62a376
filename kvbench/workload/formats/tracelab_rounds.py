"""TraceLab's rounds of coding agents (round_trace.jsonl) -> Requests.

    session_id, round_index
    prefix_tokens, newly_append_tokens   read from the cache, and new: together the prompt
    output_tokens
    timing_events[]                      event_type and timestamp: inputs (user_message, tool_result), then outputs

A round follows on the one before it in its session, by the time from its last output to the last input of the next.
Sessions start at the first input of their first round.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ...core.requests import MAX_STREAM_TOKENS, Requests
from ...core.units import NS_PER_MS
from ..clock import stamps
from ..format import Format, names
from ..json_columns import Row, each, numbered, whole_value
from ..options import TraceOptions
from ..records import records
from ..rows import Faults, shown, unread_note
from ..source import Trace
from .tracelab import requests_of_rounds

INPUTS = ("user_message", "tool_result")
LIMIT = MAX_STREAM_TOKENS - 1
READ = ("session_id", "round_index", "prefix_tokens", "newly_append_tokens", "output_tokens", "timing_events",
        "input_tokens_total")  # fmt: skip


@dataclass(frozen=True)
class Round:
    """start_ms: of the first event; ready_ms: of the last input; end_ms: of the last event; since 1970."""

    session: str
    number: int
    prefix: int
    new: int
    output: int
    start_ms: float
    ready_ms: float
    end_ms: float


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    found = records(trace)
    rounds = each(found.rows, found.faults, _round)
    kept = found.faults.kept(options.skip_bad_rows)
    chosen = [r for r, good in zip(rounds, kept, strict=True) if r and good]
    starts: dict[str, float] = {}
    for r in chosen:
        starts[r.session] = min(starts.get(r.session, np.inf), r.start_ms)
    chosen.sort(key=lambda r: (starts[r.session], r.session, r.number))
    chosen = chosen[: options.num_prompts or None]
    session = numbered([r.session for r in chosen])
    first = np.array([starts[name] for name in dict.fromkeys(r.session for r in chosen)])
    wait = np.array([max(after.ready_ms - r.end_ms, 0.0) for r, after in pairwise(chosen)] + [0.0])
    prefix, new, output = (
        np.array([getattr(r, name) for r in chosen], np.float64) for name in ("prefix", "new", "output")
    )
    notes = (*found.faults.note(), *found.notes, *unread_note((name for row in found.rows for name in row), READ))
    return requests_of_rounds(session, first, prefix, new, output, wait, notes)


FORMAT = Format(read, keys=names("prefix_tokens newly_append_tokens"))


def _round(row: Row) -> Round:
    """ValueError says what is wrong."""
    session = row.get("session_id")
    if type(session) not in (str, int):
        raise ValueError(f"session_id is {shown(session)}, a string is wanted")
    prefix, new = (whole_value(row, (name,), 0, LIMIT) for name in ("prefix_tokens", "newly_append_tokens"))
    if not 1 <= prefix + new <= LIMIT:
        raise ValueError(f"the prompt has {prefix + new} tokens, wanted are 1 to {LIMIT}")
    events = row.get("timing_events")
    if not isinstance(events, list) or not events or not all(isinstance(event, dict) for event in events):
        raise ValueError("timing_events is no list of events")
    faults = Faults(len(events), lambda i: "")
    texts = [str(event.get("timestamp")) for event in events]
    times = stamps(texts, faults, "timing_events: timestamp").astype(np.int64) / NS_PER_MS
    if faults.bad.any():
        raise ValueError(faults.first_fault().removeprefix(": "))
    inputs = np.array([event.get("event_type") in INPUTS for event in events])
    ready = float(times[inputs].max()) if inputs.any() else float(times.min())
    return Round(
        str(session),
        whole_value(row, ("round_index",), 0, 1e9),
        prefix,
        new,
        whole_value(row, ("output_tokens",), 0, LIMIT),
        float(times.min()),
        ready,
        float(times.max()),
    )
