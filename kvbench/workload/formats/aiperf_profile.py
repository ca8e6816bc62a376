"""AIPerf's results of each request (profile_export.jsonl) -> Requests: the load of that run as a workload.

    metadata   request_start_ns (arrival), conversation_id, benchmark_phase, was_cancelled
    metrics    input_sequence_length, output_sequence_length: {value, unit}

Failed and cancelled requests and those of the warm-up are left out. Measured latencies are not replayed: a modelled run
is compared with them. Texts are not recorded, so no prompts are shared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, Requests
from ..clock import LARGEST_TIME
from ..format import Format, names
from ..json_columns import Row, each, numbered, turns, whole_value
from ..options import TraceOptions
from ..prompts import apart
from ..records import records
from ..rows import shown
from ..source import Trace
from ..table import request_table

NOT_READ = "latencies as measured are not replayed, and texts are not recorded: no prompts are shared"


@dataclass(frozen=True)
class Call:
    """One request; conversation None where it has none."""

    start_ns: int
    prompt_tokens: int
    output_tokens: int
    conversation: str | None


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests in order of their start. UsageError on wrong rows, unless they are skipped, or when all failed."""
    found = records(trace)
    faults = found.faults
    served = [_is_served(row) for row in found.rows]
    calls = each(found.rows, faults, lambda row: _call(row) if _is_served(row) else None)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    chosen = sorted((call for i in kept if (call := calls[i])), key=lambda call: call.start_ns)
    chosen = chosen[: options.num_prompts or None]
    if not chosen:
        raise UsageError(f"{trace.name}: none of the {len(served)} requests was served; name another file")
    left = sum(not good for good, bad in zip(served, faults.bad, strict=True) if not bad)
    dropped = (f"{left} of {len(served)} requests failed, were cancelled or belong to the warm-up: left out",)
    start = np.array([call.start_ns for call in chosen], np.int64)
    prompt_tokens = np.array([call.prompt_tokens for call in chosen], np.int64)
    session = numbered([call.conversation for call in chosen])
    return request_table(
        len(chosen),
        arrival_ns=start - start[0],
        prompt_tokens=prompt_tokens,
        output_tokens=np.array([call.output_tokens for call in chosen], np.int64),
        session_id=session,
        turn=np.where(session < 0, 0, turns(session)[0]),
        **apart(prompt_tokens),
        notes=(*faults.note(), *found.notes, *(dropped if left else ()), NOT_READ),
    )


FORMAT = Format(read, keys=names("metadata metrics"))


def _is_served(row: Row) -> bool:
    told = row.get("metadata")
    about: Row = told if isinstance(told, dict) else {}
    measured = about.get("benchmark_phase") in (None, "profiling")
    return measured and not row.get("error") and not about.get("was_cancelled")


def _call(row: Row) -> Call:
    """ValueError says what is wrong."""
    about, metrics = row.get("metadata"), row.get("metrics")
    if not isinstance(about, dict) or not isinstance(metrics, dict):
        raise ValueError("metadata or metrics is no object")
    conversation = about.get("conversation_id")
    return Call(
        whole_value(about, ("request_start_ns",), 0, LARGEST_TIME, "metadata."),
        _tokens(metrics, "input_sequence_length"),
        _tokens(metrics, "output_sequence_length"),
        None if conversation is None else str(conversation),
    )


def _tokens(metrics: Row, name: str) -> int:
    metric: Any = metrics.get(name)
    if not isinstance(metric, dict):
        raise ValueError(f"metrics.{name} is {shown(metric)}, an object with a value is wanted")
    return whole_value(metric, ("value",), 1, MAX_STREAM_TOKENS - 1, f"metrics.{name}.")
