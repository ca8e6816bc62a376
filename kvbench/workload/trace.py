"""A trace -> Requests: read, recognise the format by its content, change times, set max_tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..core.requests import Requests
from . import retime
from .detect import READERS, UNTIMED, recognised
from .lengths import max_tokens, produced_tokens
from .options import TraceOptions
from .source import open_trace


@dataclass(frozen=True)
class TraceInfo:
    """Where requests came from.

    sha256         of the whole file, also when only its first rows are read
    num_rows       rows that became requests
    block_tokens   prompt tokens that one hash id covers; 0 where the format has no ids
    """

    path: str
    format: str
    sha256: str
    num_rows: int
    block_tokens: int


def load_trace(path: str | Path, options: TraceOptions | None = None) -> tuple[Requests, TraceInfo]:
    """Requests of a trace. UsageError: no such file, not a trace, a wrong row (`path:line: ...`)."""
    options = options or TraceOptions()
    trace = open_trace(str(path))
    kind = recognised(trace) if options.format == "auto" else options.format
    requests = READERS[kind](trace, options)
    read = TraceInfo(str(path), kind, trace.sha256(), len(requests), requests.block_hint)
    return _told(_retimed(requests, kind, options), options), read


def _retimed(requests: Requests, kind: str, options: TraceOptions) -> Requests:
    requests = retime.scaled(requests, options.time_scale)
    untimed = kind in UNTIMED and not requests.arrival_ns.any()
    if untimed:
        requests = retime.drawn(requests, options.rate, options.burstiness, options.arrival_seed)
    if kind != "servegen":  # its reader draws that window only
        requests = retime.window(requests, options.start_s, options.duration_s)
    if untimed:
        return requests
    requests = retime.at_rate(requests, options.rate)
    if options.jitter_ms:
        return retime.jittered(requests, options.jitter_ms, options.arrival_seed)
    return replace(requests, notes=(*requests.notes, *retime.coarse_note(requests)))


def _told(requests: Requests, options: TraceOptions) -> Requests:
    """What the scheduler is told, where a rule says more than the trace."""
    if options.max_tokens == "output":
        return requests
    told = max_tokens(options.max_tokens, requests.output_tokens)
    produced, cut = produced_tokens(requests.output_tokens, told)
    return replace(requests, max_tokens=told, output_tokens=produced, notes=(*requests.notes, *cut))
