"""Generated requests: phases of sessions of turns, and what they have in common.

    values of a phase -> Part (columns by row) -> joined -> prompts -> Requests

A row is a request, or a turn that a user had before t = 0 (arrivals.process = users), which is part of later prompts
and is left out of the table. The table is in order of session, then position. A prompt is

    [layers] [documents] text 0, answer 0, [answers of its calls] [documents] text 1, answer 1, ..., text t

with lengths.prompt drawing each text: what is shared and what was said before come on top. The answer that goes on in
a session is the first sample's, without its thinking, and where it is tokenised again other tokens from a point on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE, Requests
from . import layout, lengths, sharing
from .arrivals import MAX_ARRIVAL_NS, cancel_times_ns, rate_note, session_starts_ns
from .draws import Purpose, Seeds, uniforms
from .layout import Layout, drawn
from .pieces import Pieces, one_below_the_other, prompts, side_by_side, single
from .table import request_table

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Phase:
    """A part of the workload. number: it draws by; values: every key, with what the part overrides."""

    name: str
    number: int
    values: Values

    @property
    def is_excluded(self) -> bool:
        """Left out of the results."""
        return bool(self.values["exclude"] or self.values.get("warm_up"))


@dataclass(frozen=True)
class Part:
    """The rows of one phase: (n,) columns; indices count from the phase's first row.

    arrival_ns       from the phase's start; 0 for a row that waits for another one
    parent, after, joins   see layout
    session_id       NONE where no sessions are asked for
    text_tokens      new text
    thinking         generated before the answer, and stripped from later turns; output_tokens holds it
    retokenised      where in an answer its tokens change when it comes back, as a share; above 1: nowhere
    layer, layer_tokens   (n, used) set of each layer that is used, NONE without one
    client           what its namespace is made of, see sharing.clients
    """

    arrival_ns: I64
    parent: I64
    after: I64
    joins: I64
    is_call: NDArray[np.bool_]
    session_id: I64
    turn: I64
    think_ns: I64
    text_tokens: I64
    thinking: I64
    output_tokens: I64
    max_tokens: I64
    samples: I64
    retokenised: F64
    layer: I32
    layer_tokens: I32
    tenant: I64
    client: I64
    priority: I64
    cancel_ns: I64


_INDICES = ("parent", "after", "joins")


def generate(phases: Sequence[Phase], seeds: Seeds, flushes: Sequence[Mapping[str, Any]] = ()) -> Requests:
    """Requests of named phases, one after the other in time. UsageError names the key at fault."""
    told = [phase.values for phase in phases]
    used = [layer for layer, sets in enumerate(zip(*map(sharing.layer_sets, told), strict=True)) if any(sets)]
    made = [_part(phase.values, seeds, phase.number, used) for phase in phases]
    part = _joined([part for part, _, _ in made], told)
    ignore_eos = told[0]["client.ignore_eos"]
    produced, notes = lengths.produced_tokens(part.output_tokens, part.max_tokens, ignore_eos)
    for (own, _, _), values in zip(made, told, strict=True):
        notes += rate_note(values, int(own.arrival_ns.max()), own.parent.size)
    streams = _Streams(told, part)
    documents = one_below_the_other([own for _, own, _ in made])
    prompt = _prompts(part, documents, produced, streams, used)
    namespaces = sharing.Namespaces(told, [p.client for p, _, _ in made])
    flushed = namespaces.flushes(flushes)
    sizes = [p.parent.size for p, _, _ in made]
    kept = np.concatenate([order + first for (_, _, order), first in zip(made, np.cumsum([0, *sizes]), strict=False)])
    renumber = np.full(part.parent.size, NONE, np.int64)
    renumber[kept] = np.arange(kept.size)
    prompt = prompt if kept.size == renumber.size else prompt.of(kept)
    return request_table(
        kept.size,
        arrival_ns=part.arrival_ns[kept],
        prompt_tokens=np.add.reduceat(prompt.runs[2], prompt.offset[:-1]),
        output_tokens=produced[kept],
        max_tokens=part.max_tokens[kept],
        samples=part.samples[kept],
        session_id=part.session_id[kept],
        turn=part.turn[kept],
        after=_renumbered(part.after[kept], renumber),
        think_ns=part.think_ns[kept],
        tenant=part.tenant[kept],
        namespace=namespaces.index[kept],
        priority=part.priority[kept],
        phase=np.repeat(np.arange(len(made)), sizes)[kept],
        cancel_ns=part.cancel_ns[kept],
        output_stream=streams.output[kept],
        segment_offset=prompt.offset,
        segment_stream=prompt.runs[0].copy(),
        segment_start=prompt.runs[1].copy(),
        segment_length=prompt.runs[2].copy(),
        joins=_renumbered(part.joins[kept], renumber) if part.is_call.any() else None,
        flush_ns=None if flushed is None else flushed[0],
        flush_namespace=None if flushed is None else flushed[1],
        tenants=_tenants(max(values["sharing.tenants"] for values in told)),
        namespaces=namespaces.names(),
        phases=tuple(phase.name for phase in phases),
        excluded=tuple(phase.name for phase in phases if phase.is_excluded),
        notes=notes,
    )


def _renumbered(rows: I64, renumber: I64) -> I64:
    return np.where(rows == NONE, NONE, renumber[rows])


# ---------------------------------------------------------------- one phase


def _part(values: Values, seeds: Seeds, phase: int, used: list[int]) -> tuple[Part, Pieces, I64]:
    """Columns and documents of all rows, and the rows that are asked, in the order of the table."""
    n = layout.number_of_requests(values)
    if values["arrivals.process"] == "users":
        users = layout.users(values, seeds, phase, n)
        rows, order, arrival = users.layout, users.order, users.arrival_ns
    else:
        rows = layout.sessions(values, seeds, phase, n)
        order = np.arange(n)
        starts = session_starts_ns(values, rows.num_sessions, n, seeds, phase)
        arrival = np.where(rows.after == NONE, starts[rows.session], 0)
    own_documents = sharing.documents(values, seeds, phase, ~rows.is_call & ~rows.is_scan)
    return _columns(values, seeds, phase, rows, arrival, used), own_documents, order


def _columns(values: Values, seeds: Seeds, phase: int, rows: Layout, arrival: I64, used: list[int]) -> Part:
    n, session = rows.session.size, rows.session
    text, output = _lengths(values, seeds, phase, rows)
    thinking = _thinking(values, seeds, phase, rows)
    output = output + thinking
    layer, layer_tokens = sharing.layers(values, seeds, phase, rows.num_sessions, used)
    layer, own_prefix = sharing.with_private(values, seeds, phase, layer, layer_tokens, used)
    bare = (rows.parent != NONE) | rows.is_scan
    text = text + np.where(bare, 0, own_prefix[session])
    layer = np.where(bare, np.int32(NONE), layer[:, session]).T
    tenant, client = sharing.clients(values, seeds, phase, rows.num_sessions)
    priority = sharing.levels(values["arrivals.priorities"], seeds.arrivals, Purpose.PRIORITY, rows.num_sessions, phase)
    think_ns = layout.think_times_ns(values, seeds, phase, n)
    plain = values["sessions.turns"] == 1 and values["agents.calls"] == 0
    return Part(
        arrival_ns=arrival,
        parent=rows.parent,
        after=rows.after,
        joins=rows.joins,
        is_call=rows.is_call,
        session_id=np.full(n, NONE, np.int64) if plain else session,
        turn=rows.position,
        think_ns=np.where((rows.after != NONE) & ~rows.is_call, think_ns, 0),
        text_tokens=text,
        thinking=thinking,
        output_tokens=output,
        max_tokens=lengths.max_tokens(values["lengths.max_tokens"], output),
        samples=drawn(values, "lengths.samples", seeds.lengths, Purpose.SAMPLES, n, phase),
        retokenised=_retokenised(values, seeds, phase, n),
        layer=layer,
        layer_tokens=layer_tokens[:, session].T,
        tenant=tenant[session],
        client=client[session],
        priority=priority[session],
        cancel_ns=cancel_times_ns(values["arrivals.cancel_share"], values["arrivals.cancel_after_s"], n, seeds, phase),
    )


def _lengths(values: Values, seeds: Seeds, phase: int, rows: Layout) -> tuple[I64, I64]:
    """(n,) tokens of each row's own text and of its answer."""
    n = rows.session.size
    text = drawn(values, "lengths.prompt", seeds.lengths, Purpose.PROMPT, n, phase)
    together = values["lengths.joint"]
    if together:
        lengths.check_joint(values["lengths.prompt"], values["lengths.output"])
    purpose = Purpose.PROMPT if together else Purpose.OUTPUT
    output = drawn(values, "lengths.output", seeds.lengths, purpose, n, phase, low=0)
    if rows.is_call.any():
        prompt = drawn(values, "agents.prompt", seeds.lengths, Purpose.CALL_PROMPT, n, phase)
        answer = drawn(values, "agents.output", seeds.lengths, Purpose.CALL_OUTPUT, n, phase, low=0)
        text, output = np.where(rows.is_call, prompt, text), np.where(rows.is_call, answer, output)
    if rows.is_scan.any():
        scan = drawn(values, "sharing.scan", seeds.sharing, Purpose.SCAN_TOKENS, n, phase)
        text = np.where(rows.is_scan, scan, text)
    return text, output


def _thinking(values: Values, seeds: Seeds, phase: int, rows: Layout) -> I64:
    n = rows.session.size
    if values["lengths.thinking"] == 0:
        return np.zeros(n, np.int64)
    tokens = drawn(values, "lengths.thinking", seeds.lengths, Purpose.THINKING, n, phase, low=0)
    return np.where(rows.is_call, 0, tokens)


def _retokenised(values: Values, seeds: Seeds, phase: int, n: int) -> F64:
    """(n,) see Part."""
    share = values["sessions.retokenised"]
    if share == 0.0:
        return np.full(n, 2.0)
    chosen = uniforms(seeds.sharing, Purpose.RETOKENISED, n, phase) < share
    return np.where(chosen, uniforms(seeds.sharing, Purpose.RETOKENISED_FROM, n, phase), 2.0)


# ---------------------------------------------------------------- all phases


def _joined(parts: list[Part], phases: list[Values]) -> Part:
    """One part of all phases: each starts `pause_s` after the last arrival of the one before."""
    rows = sessions = time_ns = 0
    moved: list[dict[str, Any]] = []
    for part, values in zip(parts, phases, strict=True):
        if moved:
            time_ns += round(values.get("pause_s", 0.0) * 1e6) * 1000
        columns = {f.name: getattr(part, f.name) for f in fields(part)}
        for name in _INDICES:
            columns[name] = np.where(columns[name] == NONE, NONE, columns[name] + rows)
        columns["session_id"] = np.where(part.session_id == NONE, NONE, part.session_id + sessions)
        columns["arrival_ns"] = np.where(part.after == NONE, part.arrival_ns + time_ns, 0)
        moved.append(columns)
        rows += part.parent.size
        sessions = max(sessions, int(columns["session_id"].max()) + 1)
        time_ns = int(columns["arrival_ns"].max())
        if time_ns > MAX_ARRIVAL_NS:
            raise UsageError("the phases last more than 70 years together; raise arrivals.rate")
    if len(moved) == 1:
        return Part(**moved[0])
    return Part(**{name: np.concatenate([columns[name] for columns in moved]) for name in moved[0]})


class _Streams:
    """Numbers of the virtual streams, from 1: shared prefixes, texts, outputs, and behind them all else.

    output   (rows,) of the first sample. layers: first stream of each layer. documents, retokenised: first stream
    """

    def __init__(self, phases: list[Values], part: Part) -> None:
        n = part.parent.size
        sets = [max(counts) for counts in zip(*map(sharing.layer_sets, phases), strict=True)]
        groups = sets[sharing.PREFIX]
        self.texts = 1 + groups
        self.output: I64 = 1 + groups + n + np.cumsum(part.samples) - part.samples
        at = 1 + groups + n + int(part.samples.sum())
        self.layers = [0, 0, 0, 1]
        for layer in range(sharing.PREFIX):
            self.layers[layer] = at
            at += sets[layer]
        self.documents = at
        self.retokenised = at + max(values["documents.count"] for values in phases)


def _prompts(part: Part, documents: Pieces, produced: I64, streams: _Streams, used: list[int]) -> Pieces:
    """The prompts of all rows."""
    n = part.parent.size
    row = np.arange(n)
    answer = _answers(part, produced, streams)
    parts = []
    for column, layer in enumerate(used):
        which = part.layer[:, column].astype(np.int64)
        tokens = np.where(which == NONE, 0, part.layer_tokens[:, column])
        parts.append(single(streams.layers[layer] + which, tokens))
    if part.is_call.any():
        parts.append(_answers_of_calls(part, answer))
    if documents.runs.size:
        shift = np.array([[streams.documents], [0], [0]])
        parts.append(Pieces(documents.offset, documents.runs + shift))
    parts.append(single(streams.texts + row, part.text_tokens))
    own = side_by_side(*parts) if len(parts) > 1 else parts[0]
    return prompts(part.parent, answer, own)


def _answers(part: Part, produced: I64, streams: _Streams) -> Pieces:
    """What later turns hold of each row's answer."""
    said = np.maximum(produced - part.thinking, 0)
    first = np.where(part.retokenised > 1, said, (part.retokenised * said).astype(np.int64))
    whole = single(streams.output, first, part.thinking)
    if (first == said).all():
        return whole
    return side_by_side(whole, single(streams.retokenised + np.arange(said.size), said - first))


def _answers_of_calls(part: Part, answer: Pieces) -> Pieces:
    """For each turn, the answers of all calls of the turn that it goes on from; for calls and openers none."""
    n = part.parent.size
    calls = np.flatnonzero(part.is_call)
    count = np.bincount(part.parent[calls], minlength=n)
    first = np.full(n, NONE, np.int64)
    first[part.parent[calls[::-1]]] = calls[::-1]
    asks = (part.parent != NONE) & ~part.is_call
    mine = np.where(asks, count[part.parent], 0)
    begin = np.cumsum(mine) - mine
    rows = np.repeat(first[part.parent] - begin, mine) + np.arange(int(mine.sum()))
    joined = answer.of(rows)
    owner_end = np.cumsum(mine)
    return Pieces(joined.offset[np.concatenate((np.zeros(1, np.int64), owner_end))], joined.runs)


def _tenants(count: int) -> tuple[str, ...]:
    return ("default",) if count == 1 else tuple(f"tenant-{i}" for i in range(count))
