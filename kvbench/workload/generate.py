"""Generated requests: phases of sessions of turns, with shared prefixes.

    values of a phase -> Part (columns, counted within the phase) -> joined -> segments -> Requests

The table is in order of session, then turn. A prompt is

    [shared prefix] text 0, output 0, text 1, output 1, ..., text t

with lengths.prompt drawing each text: the shared prefix and what was said before come on top. The output
that goes on in a session is the first sample's. A shared prefix belongs to its group in every phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE, Requests
from . import lengths
from .arrivals import MAX_ARRIVAL_NS, arrival_times_ns, cancel_times_ns
from .draws import F64, Purpose, Seeds, uniforms
from .keys import DEFAULT_NUM_PROMPTS
from .table import request_table

I64 = NDArray[np.int64]
Values = Mapping[str, Any]

MAX_SEGMENTS = 30_000_000
"""A session of t turns has about t * t segments; beyond this the table takes over 2 GB."""


@dataclass(frozen=True)
class Part:
    """The requests of one phase: (n,) int64 columns; indices count from the phase's first request.

    arrival_ns   from the phase's start; 0 for later turns
    first        index of the session's first request
    session_id   NONE where no sessions are asked for
    text_tokens  new text
    group        group of the shared prefix, NONE without one
    """

    arrival_ns: I64
    first: I64
    turn: I64
    session_id: I64
    think_ns: I64
    text_tokens: I64
    output_tokens: I64
    max_tokens: I64
    samples: I64
    group: I64
    prefix_tokens: I64
    tenant: I64
    namespace: I64
    priority: I64
    cancel_ns: I64


def generate(phases: Sequence[tuple[str, Values]], seeds: Seeds) -> Requests:
    """Requests of named phases, one after the other in time. UsageError names the key at fault."""
    parts = [_part(values, seeds, index) for index, (_, values) in enumerate(phases)]
    part = _joined(parts)
    n = part.first.size
    num_groups = max(values["sharing.groups"] for _, values in phases)
    output_stream = 1 + num_groups + n + np.cumsum(part.samples) - part.samples
    produced, notes = lengths.produced_tokens(part.output_tokens, part.max_tokens)
    stream, length, offset = _segments(part, num_groups, produced, output_stream)
    return request_table(
        n,
        arrival_ns=part.arrival_ns,
        prompt_tokens=np.add.reduceat(length, offset[:-1]),
        output_tokens=produced,
        max_tokens=part.max_tokens,
        samples=part.samples,
        session_id=part.session_id,
        turn=part.turn,
        after=np.where(part.turn > 0, np.arange(n) - 1, NONE),
        think_ns=part.think_ns,
        tenant=part.tenant,
        namespace=part.namespace,
        priority=part.priority,
        phase=np.repeat(np.arange(len(parts)), [p.first.size for p in parts]),
        cancel_ns=part.cancel_ns,
        output_stream=output_stream,
        segment_offset=offset,
        segment_stream=stream,
        segment_start=np.zeros(stream.size, np.int64),
        segment_length=length,
        tenants=_names("tenant", max(values["sharing.tenants"] for _, values in phases), "default"),
        namespaces=_names("namespace", max(values["sharing.namespaces"] for _, values in phases), ""),
        phases=tuple(name for name, _ in phases),
        notes=notes,
    )


def _part(values: Values, seeds: Seeds, phase: int) -> Part:
    n = values["num_prompts"] or DEFAULT_NUM_PROMPTS
    first, turn, session = _sessions(values, seeds, phase, n)
    num_sessions = int(session[-1]) + 1
    output = _drawn(values, "lengths.output", seeds.lengths, Purpose.OUTPUT, n, phase, low=0)
    max_tokens = lengths.max_tokens(values["lengths.max_tokens"], output)
    group, prefix_tokens = _prefixes(values, seeds, phase, num_sessions)
    tenant, namespace = _clients(values, seeds, phase, num_sessions)
    priority = _levels(values["arrivals.priorities"], seeds.arrivals, Purpose.PRIORITY, num_sessions, phase)
    think_u = uniforms(seeds.lengths, Purpose.THINK, n, phase)
    think_ns = lengths.durations_ns(values["sessions.think_s"], think_u, "sessions.think_s")
    return Part(
        arrival_ns=np.where(turn == 0, _session_starts(values, seeds, phase, num_sessions, n)[session], 0),
        first=first,
        turn=turn,
        session_id=np.full(n, NONE, np.int64) if values["sessions.turns"] == 1 else session,
        think_ns=np.where(turn > 0, think_ns, 0),
        text_tokens=_drawn(values, "lengths.prompt", seeds.lengths, Purpose.PROMPT, n, phase),
        output_tokens=output,
        max_tokens=max_tokens,
        samples=_drawn(values, "lengths.samples", seeds.lengths, Purpose.SAMPLES, n, phase),
        group=group[session],
        prefix_tokens=prefix_tokens[session],
        tenant=tenant[session],
        namespace=namespace[session],
        priority=priority[session],
        cancel_ns=cancel_times_ns(values["arrivals.cancel_share"], values["arrivals.cancel_after_s"], n, seeds, phase),
    )


def _drawn(values: Values, name: str, seed: int, purpose: Purpose, size: int, phase: int, low: int = 1) -> I64:
    return lengths.whole_numbers(values[name], uniforms(seed, purpose, size, phase), name, low)


def _sessions(values: Values, seeds: Seeds, phase: int, n: int) -> tuple[I64, I64, I64]:
    """(n,) index of the session's first request, turn, session; the last session is cut at n requests."""
    turns = _drawn(values, "sessions.turns", seeds.lengths, Purpose.TURNS, n, phase)
    starts = np.cumsum(turns) - turns
    num_sessions = int(np.searchsorted(starts, n))
    session = np.repeat(np.arange(num_sessions), turns[:num_sessions])[:n]
    first = starts[session]
    return first, np.arange(n) - first, session


def _session_starts(values: Values, seeds: Seeds, phase: int, num_sessions: int, n: int) -> I64:
    """(num_sessions,) arrivals. `rate` counts requests: sessions of t turns start at rate / t."""
    return arrival_times_ns(
        values["arrivals.process"],
        num_sessions,
        values["arrivals.rate"] * num_sessions / n,
        values["arrivals.burstiness"],
        uniforms(seeds.arrivals, Purpose.GAP, num_sessions, phase),
    )


def _prefixes(values: Values, seeds: Seeds, phase: int, num_sessions: int) -> tuple[I64, I64]:
    """(num_sessions,) group and tokens of its prefix. A group's length does not depend on the phase."""
    num_groups = values["sharing.groups"]
    if num_groups == 0:
        return np.full(num_sessions, NONE, np.int64), np.zeros(num_sessions, np.int64)
    popularity = np.cumsum(np.arange(1, num_groups + 1, dtype=np.float64) ** -values["sharing.zipf"])
    u = uniforms(seeds.sharing, Purpose.GROUP, num_sessions, phase)
    group = np.searchsorted(popularity[:-1], u * popularity[-1], side="right").astype(np.int64)
    prefix_tokens = _drawn(values, "sharing.prefix", seeds.sharing, Purpose.PREFIX, num_groups, 0)
    return group, prefix_tokens[group]


def _clients(values: Values, seeds: Seeds, phase: int, num_sessions: int) -> tuple[I64, I64]:
    """(num_sessions,) tenant and namespace, both dealt from one draw.

    As many namespaces as tenants give each tenant its own; fewer are shared by several tenants.
    """
    tenants, namespaces = values["sharing.tenants"], values["sharing.namespaces"]
    client = _levels(max(tenants, namespaces), seeds.sharing, Purpose.CLIENT, num_sessions, phase)
    return client % tenants, client % namespaces


def _levels(count: int, seed: int, purpose: Purpose, size: int, phase: int) -> I64:
    """(size,) whole numbers from 0 to count - 1, all equally likely."""
    u: F64 = uniforms(seed, purpose, size, phase)
    return np.minimum((u * count).astype(np.int64), count - 1)


def _joined(parts: list[Part]) -> Part:
    """One part of all phases: each starts at the last arrival of the one before."""
    requests = sessions = time_ns = 0
    moved: list[Part] = []
    for part in parts:
        columns = {f.name: getattr(part, f.name) for f in fields(part)}
        columns["first"] = part.first + requests
        columns["session_id"] = np.where(part.session_id == NONE, NONE, part.session_id + sessions)
        columns["arrival_ns"] = np.where(part.turn == 0, part.arrival_ns + time_ns, 0)
        moved.append(Part(**columns))
        requests += part.first.size
        sessions = max(sessions, int(columns["session_id"].max()) + 1)
        time_ns = int(columns["arrival_ns"].max())
        if time_ns > MAX_ARRIVAL_NS:
            raise UsageError("the phases last more than 70 years together; raise arrivals.rate")
    return Part(**{f.name: np.concatenate([getattr(p, f.name) for p in moved]) for f in fields(Part)})


def _segments(part: Part, num_groups: int, produced: I64, output_stream: I64) -> tuple[I64, I64, I64]:
    """(segments,) stream and length of each piece; (n + 1,) offset of each request's first."""
    n = part.first.size
    with_prefix = (part.group != NONE).astype(np.int64)
    counts = with_prefix + 2 * part.turn + 1
    if int(counts.sum()) > MAX_SEGMENTS:
        raise UsageError(f"sessions.turns makes over {MAX_SEGMENTS} prompt pieces; lower it or num_prompts")
    offset = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(n), counts)
    position = np.arange(owner.size) - (offset[:-1] + with_prefix)[owner]  # -1 is the prefix
    source = part.first[owner] + position // 2
    source[position < 0] = 0
    is_text = position % 2 == 0
    stream = np.where(is_text, 1 + num_groups + source, output_stream[source])
    length = np.where(is_text, part.text_tokens[source], produced[source])
    is_prefix = position < 0
    stream[is_prefix] = 1 + part.group[owner[is_prefix]]
    length[is_prefix] = part.prefix_tokens[owner[is_prefix]]
    kept = length > 0  # an output of 0 tokens leaves no piece
    counts = np.bincount(owner[kept], minlength=n)
    return stream[kept], length[kept], np.concatenate(([0], np.cumsum(counts)))


def _names(word: str, count: int, single: str) -> tuple[str, ...]:
    return (single,) if count == 1 else tuple(f"{word}-{i}" for i in range(count))
