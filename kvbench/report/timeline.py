"""A run as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open: Chrome's trace-event JSON.

Requests are async spans with their phases nested. Batch places and steps are complete events on threads of their own,
as is what moves over each link (one that is shared has as many tracks as it moved at once); blocks, queue and batch are
counters; evictions and preemptions are instants; an arrow leads from the prefill of a prompt to its first step on a
decode engine. Times are microseconds from t = 0 on the run's clock. A place is the lowest one free when a sequence
first runs, kept until it ends: a picture of the batch, not the engine's own number.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.journal import FINISHED, MOVE_COLUMNS, MOVE_KINDS, NEVER, REFUSED, STATUS_NAMES, STEP_COLUMNS, Journal
from ..core.requests import Requests
from .record import RunRecord

MOST_REQUESTS, MOST_STEPS = 2_000, 20_000
"""Of one file; beyond them every k-th is kept, which viewers still open quickly."""

ENGINE, BATCH, REQUESTS, LINKS = 1, 2, 3, 4
FIRST_OF_SEVERAL = 10
"""Processes of the trace. Engines of a fleet are processes of their own, from FIRST_OF_SEVERAL on."""
STEPS = 1
"""The thread of the steps."""

# Order at one instant: an inner span ends before the outer one, and begins after it.
_META, _END_INNER, _END_OUTER, _BEGIN_OUTER, _BEGIN_INNER, _OTHER, _AFTER = range(7)

NOBODY = np.zeros(0, np.int64)

MOST_LANES = 64
"""Of a link; more at once share the last."""
MOVE_START = MOVE_COLUMNS.index("start_ns")

Event = tuple[int, int, dict[str, Any]]
"""(ns, order at that instant, event)."""


@dataclass(frozen=True)
class Sampling:
    """Every how many sequences and steps one is kept, of how many there are."""

    every_sequence: int
    every_step: int
    sequences: int
    steps: int

    def __str__(self) -> str:
        """One line; empty when everything is kept."""
        said = []
        if self.every_sequence > 1:
            said.append(f"one of {self.every_sequence} of {self.sequences:,} sequences")
        if self.every_step > 1:
            said.append(f"one of {self.every_step} of {self.steps:,} steps (evictions and preemptions are summed)")
        return f"sampled: {' and '.join(said)}" if said else ""


def sampling(journal: Journal) -> Sampling:
    """What a timeline of this run keeps."""
    sequences, steps = journal.status.size, journal.steps.shape[0]
    return Sampling(max(-(-sequences // MOST_REQUESTS), 1), max(-(-steps // MOST_STEPS), 1), sequences, steps)


def timeline_json(record: RunRecord, journal: Journal, requests: Requests) -> Iterator[str]:
    """The file in pieces, an event per line, in order of time."""
    kept = sampling(journal)
    order = np.argsort(journal.arrival_ns, kind="stable")[:: kept.every_sequence]
    end_ns = int(max(journal.finish_ns.max(initial=0), journal.arrival_ns.max(initial=0), *_last_step(journal)))
    places = _places(journal, order, end_ns)
    engines = _engines(journal)
    events: list[Event] = list(_names(max(places.values(), default=-1) + 1, engines))
    for seq in order.tolist():
        events += _sequence(journal, requests, seq, end_ns)
        if seq in places:
            events.append(_place(journal, requests, seq, places[seq], end_ns))
    if kept.every_step == 1:  # else an arrow would hang in the air
        for seq in order.tolist():
            events += _flow(journal, seq)
    for pid, _, rows in engines:
        events += _steps(journal.steps[rows], kept.every_step, pid)
    events += _moves(journal, kept.every_step)
    events.sort(key=lambda event: event[:2])
    head = {
        "run": record.run,
        "clock": record.clock,
        "cache_state": record.cache_state,
        "preset": record.preset,
        "device": record.device,
        "model": record.model,
        "seed": record.seed,
        "fingerprint": record.fingerprint,
        "complete": record.complete,
        "sampled": str(kept).removeprefix("sampled: ") or "no: every sequence and step",
    }
    yield '{"displayTimeUnit": "ms", "otherData": ' + json.dumps(head, ensure_ascii=False) + ',\n"traceEvents": [\n'
    for i, (_, _, event) in enumerate(events):
        yield (",\n" if i else "") + json.dumps(event, ensure_ascii=False)
    yield "\n]}\n"


def _engines(journal: Journal) -> list[tuple[int, str, np.ndarray[Any, Any]]]:
    """(process, name, rows of its steps) of each engine."""
    if journal.step_engine.size == 0:
        return [(ENGINE, "engine", np.arange(journal.steps.shape[0]))]
    numbers = range(int(journal.step_engine.max()) + 1)
    role = dict.fromkeys(_those(journal, "prefill_engine"), ", prefill")
    role |= dict.fromkeys(_those(journal, "decode_engine"), ", decode")
    names = [(n, f"engine {n}{role.get(n, '')}") for n in numbers]
    return [(FIRST_OF_SEVERAL + n, name, np.flatnonzero(journal.step_engine == n)) for n, name in names]


def _those(journal: Journal, column: str) -> list[int]:
    """Engines that a column names."""
    return [n for n in np.unique(journal.columns.get(column, NOBODY)).tolist() if n != NEVER]


def _flow(journal: Journal, seq: int) -> Iterator[Event]:
    """From the step that computed a prompt to the first step with it on a decode engine: an arrow between the two."""
    columns = journal.columns
    if "decode_began_ns" not in columns or NEVER in (
        columns["prompt_computed_ns"][seq],
        columns["decode_began_ns"][seq],
    ):
        return
    flow = {"name": "KV", "cat": "kv", "id": seq, "tid": STEPS}
    for side, kind, at in (
        ("prefill_engine", {"ph": "s"}, int(columns["prompt_computed_ns"][seq]) - 1),  # inside the step that ends then
        ("decode_engine", {"ph": "f", "bp": "e"}, int(columns["decode_began_ns"][seq])),
    ):
        yield at, _AFTER, {**flow, **kind, "ts": _us(at), "pid": FIRST_OF_SEVERAL + int(columns[side][seq])}


def _names(places: int, engines: list[tuple[int, str, np.ndarray[Any, Any]]]) -> Iterator[Event]:
    for pid, name in (*((pid, name) for pid, name, _ in engines), (BATCH, "batch"), (REQUESTS, "requests")):
        yield _meta("process_name", pid, 0, name)
        yield (
            0,
            _META,
            {"ph": "M", "ts": 0, "name": "process_sort_index", "pid": pid, "tid": 0, "args": {"sort_index": pid}},
        )
    for pid, _, _ in engines:
        yield _meta("thread_name", pid, STEPS, "steps")
    yield _meta("thread_name", REQUESTS, 1, "requests")
    for place in range(places):
        yield _meta("thread_name", BATCH, place + 1, f"place {place}")


def _meta(kind: str, pid: int, tid: int, name: str) -> Event:
    return 0, _META, {"ph": "M", "ts": 0, "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _sequence(journal: Journal, requests: Requests, seq: int, end_ns: int) -> Iterator[Event]:
    """Its span with the phases in it; an instant for one that was refused at its arrival."""
    name, args = _title(journal, requests, seq), _facts(journal, requests, seq)
    start, end = int(journal.arrival_ns[seq]), _end(journal, seq, end_ns)
    if journal.status[seq] == REFUSED or end <= start:
        instant = {"ph": "i", "s": "t", "name": f"{name} {args['status']}", "pid": REQUESTS, "tid": 1, "args": args}
        yield start, _OTHER, {"ts": _us(start), **instant}
        return
    span = {"cat": "request", "id": seq, "pid": REQUESTS, "tid": 1}
    yield start, _BEGIN_OUTER, {"ph": "b", "ts": _us(start), "name": name, **span, "args": args}
    for phase, a, b in _phases(journal, seq, end):
        yield a, _BEGIN_INNER, {"ph": "b", "ts": _us(a), "name": phase, **span}
        yield b, _END_INNER, {"ph": "e", "ts": _us(b), "name": phase, **span}
    yield end, _END_OUTER, {"ph": "e", "ts": _us(end), "name": name, **span}


def _phases(journal: Journal, seq: int, end: int) -> Iterator[tuple[str, int, int]]:
    """(name, from, to) of the phases that took time, one after another."""
    marks = [("tokenise", journal.arrival_ns), ("queue", journal.queued_ns), ("prefill", journal.scheduled_ns)]
    marks.append(("decode", journal.first_token_ns))
    known = [(name, int(at[seq])) for name, at in marks if at[seq] != NEVER]
    for i, (name, start) in enumerate(known):
        until = min(known[i + 1][1] if i + 1 < len(known) else end, end)
        if until > start:
            yield name, start, until


def _place(journal: Journal, requests: Requests, seq: int, place: int, end_ns: int) -> Event:
    start = int(journal.scheduled_ns[seq])
    length = _end(journal, seq, end_ns) - start
    event = {"ph": "X", "ts": _us(start), "dur": _us(length), "name": _title(journal, requests, seq), "cat": "place"}
    return start, _OTHER, {**event, "pid": BATCH, "tid": place + 1}


def _places(journal: Journal, order: np.ndarray[Any, Any], end_ns: int) -> dict[int, int]:
    """Sequence that ran -> the lowest place that is free from its first step to its end."""
    ran = order[journal.scheduled_ns[order] != NEVER]
    ran = ran[np.argsort(journal.scheduled_ns[ran], kind="stable")]
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    found: dict[int, int] = {}
    for seq in ran.tolist():
        while busy and busy[0][0] <= journal.scheduled_ns[seq]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        place = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (_end(journal, seq, end_ns), place))
        found[seq] = place
    return found


def _steps(steps: np.ndarray[Any, Any], every: int, pid: int) -> Iterator[Event]:
    """Spans and counters of an engine's steps that are kept; evictions and preemptions of all."""
    if steps.shape[0] == 0:
        return
    starts = np.arange(0, steps.shape[0], every)
    evicted = np.add.reduceat(steps[:, STEP_COLUMNS.index("evicted_blocks")], starts)
    preempted = np.add.reduceat(steps[:, STEP_COLUMNS.index("preempted")], starts)
    for i, blocks, victims in zip(starts.tolist(), evicted.tolist(), preempted.tolist(), strict=True):
        step = dict(zip(STEP_COLUMNS, steps[i].tolist(), strict=True))
        at, where = step.pop("start_ns"), {"pid": pid, "tid": STEPS}
        head = {"ts": _us(at), **where}
        kind = "prefill" if step["decode_seqs"] == 0 else "mixed" if step["prefill_seqs"] else "decode"
        yield (
            at,
            _OTHER,
            {"ph": "X", "dur": _us(step.pop("duration_ns")), "name": kind, "cat": "step", **head, "args": step},
        )
        counters = {
            "blocks": {"used": step["used_blocks"], "cached": step["cached_blocks"]},
            "queue": {"waiting": step["waiting"]},
            "running": {"running": step["running"]},
        }
        for name, values in counters.items():
            yield at, _OTHER, {"ph": "C", "name": name, **head, "args": values}
        for name, what, count in (("eviction", "blocks", blocks), ("preemption", "sequences", victims)):
            if count:
                yield at, _OTHER, {"ph": "i", "s": "t", "name": name, **head, "args": {what: count}}


def _moves(journal: Journal, every: int) -> Iterator[Event]:
    """A track for each link: what moved over it, and when; a fair one has as many as it moved at once."""
    moves = journal.moves[np.argsort(journal.moves[:, MOVE_START], kind="stable")][::every]
    if moves.shape[0] == 0:
        return
    yield _meta("process_name", LINKS, 0, "links")
    lanes: dict[int, list[int]] = {}
    for link, kind, start, end, num_bytes, failed in moves.tolist():
        ends = lanes.setdefault(link, [])
        lane = next((i for i, free in enumerate(ends) if free <= start), len(ends))
        track = link * MOST_LANES + min(lane, MOST_LANES - 1) + 1
        if lane == len(ends):
            ends.append(end)
            if lane < MOST_LANES:
                yield _meta("thread_name", LINKS, track, journal.link_names[link] + (f" ({lane + 1})" if lane else ""))
        ends[lane] = end
        args = {"bytes": num_bytes, "failed": bool(failed)}
        what = {"ph": "X", "dur": _us(end - start), "name": MOVE_KINDS[kind], "cat": "link", "args": args}
        yield start, _OTHER, {"ts": _us(start), **what, "pid": LINKS, "tid": track}


def _title(journal: Journal, requests: Requests, seq: int) -> str:
    request, sample = int(journal.request_index[seq]), int(journal.sample[seq])
    several = int(requests.samples[request]) > 1
    return f"request {request}" + (f", sample {sample}" if several else "")


def _facts(journal: Journal, requests: Requests, seq: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "status": STATUS_NAMES[int(journal.status[seq])],
        "prompt_tokens": int(requests.prompt_tokens[journal.request_index[seq]]),
        "cached_tokens": int(journal.cached_tokens[seq]),
        "output_tokens": int(journal.output_tokens[seq]),
        "recomputed_tokens": int(journal.recomputed_tokens[seq]),
        "preemptions": int(journal.preemptions[seq]),
    }
    facts |= {name: int(values[seq]) for name, values in journal.columns.items() if not name.endswith("_ns")}
    if journal.parts_ns.shape[0] == journal.status.size and journal.status[seq] == FINISHED:
        parts = zip(journal.part_names, journal.parts_ns[seq].tolist(), strict=True)
        facts |= {f"time_{part}_ms": ns / 1e6 for part, ns in parts}
    return facts


def _end(journal: Journal, seq: int, end_ns: int) -> int:
    """When it ended; of one that was cut off, when the run did."""
    finish = int(journal.finish_ns[seq])
    return end_ns if finish == NEVER else finish


def _last_step(journal: Journal) -> tuple[int, ...]:
    return (int(journal.steps[-1, 0] + journal.steps[-1, 1]),) if journal.steps.shape[0] else (0,)


def _us(ns: int) -> float:
    return ns / 1000
