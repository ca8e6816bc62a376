"""A trace -> Requests: read, recognise the format by its content, change times, set max_tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..core.errors import UsageError
from ..core.requests import Requests
from . import retime
from .detect import recognised
from .format import Format, all_formats
from .lengths import max_tokens, produced_tokens
from .options import TraceOptions
from .source import open_trace


@dataclass(frozen=True)
class TraceInfo:
    """Where requests came from.

    sha256         of the whole file, also when only its first rows are read
    num_rows       rows that became requests
    block_tokens   prompt tokens that one hash id covers; 0 where the format has no ids
    time_unit      of its times, and how that is known; "" where it has none, or they are stamps
    turns          whether rows of sessions are deltas or whole, and how that is known; "" without sessions
    """

    path: str
    format: str
    sha256: str
    num_rows: int
    block_tokens: int
    time_unit: str = ""
    turns: str = ""


def load_trace(path: str | Path, options: TraceOptions | None = None) -> tuple[Requests, TraceInfo]:
    """Requests of a trace. UsageError: no such file, not a trace, a wrong row (`path:line: ...`)."""
    options = options or TraceOptions()
    trace = open_trace(str(path))
    kind = options.format
    if kind == "auto":
        kind = "lengths" if options.columns else recognised(trace)
    if options.columns and kind != "lengths":
        raise UsageError(f"trace.columns names the columns of trace.format = lengths; it is {kind}: remove one of them")
    form = all_formats()[kind]
    requests = form.read(trace, options)
    requests = replace(requests, notes=(*requests.notes, *trace.notes))
    read = TraceInfo(str(path), kind, trace.sha256(), len(requests), requests.block_hint,
                     trace.found.get("time unit", ""), trace.found.get("turns", ""))  # fmt: skip
    is_untimed = not form.timed or "untimed" in trace.found
    return _told(_retimed(requests, form, is_untimed, options), options), read


def _retimed(requests: Requests, form: Format, is_untimed: bool, options: TraceOptions) -> Requests:
    requests = retime.scaled(requests, options.time_scale)
    untimed = is_untimed and not requests.arrival_ns.any()
    if untimed:
        requests = retime.drawn(requests, options.rate, options.burstiness, options.arrival_seed)
    if not form.windowed:
        requests = retime.window(requests, options.start_s, options.duration_s)
    if untimed:
        return requests
    if options.arrivals == "poisson":
        return retime.as_poisson(requests, options.rate, options.arrival_seed)
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
