"""From the clocks that an engine read for each sequence to the parts of its life (core.journal.PARTS)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.journal import CANCELLED, FINISHED, NEVER, PARTIAL, PARTS, REFUSED
from ..scheduler.spent import AGAIN, DECODE, PREFILL, STEPS
from .settings import EngineSettings

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Fetch:
    """(sequences,) ns that each waited for lower tiers: before it was admitted, and in steps of its prefill."""

    queued: I64
    in_steps: I64


@dataclass(frozen=True)
class Parts:
    """ns: (sequences, len(names)), rows sum to end minus arrival. before_queue: (sequences,), Journal.tokenize_ns."""

    names: tuple[str, ...]
    ns: I64
    before_queue: I64


def parts_of(
    sequences: Mapping[str, I64],
    status: I64,
    settings: tuple[EngineSettings, ...],
    waits: Mapping[str, I64],
    fetch: Fetch | None = None,
) -> Parts:
    """Where the time went; NEVER for sequences that have not ended.

    sequences   arrays of scheduler.state.Sequences by name
    status      (sequences,) of the journal
    settings    of every engine
    waits       part -> (sequences,) ns that it took of the time before the sequence was in its engine's queue
    fetch       what they waited for tiers, where there are any
    """
    q, spent = sequences, sequences["spent"]
    engine = np.maximum(q["engine"], 0)
    end, ran = q["finish"], q["scheduled"] != NEVER
    before = _tokenize_of(q, status, settings, engine)
    detokenize_ns = np.array([s.detokenize_ns for s in settings])[engine]
    has_stage = np.array([s.output_ns_per_token > 0 for s in settings])[engine]
    detokenize = np.where(status == FINISHED, np.where(has_stage, q["finish"] - q["last_token"], detokenize_ns), 0)
    waited = sum(waits.values(), np.zeros(status.size, np.int64))
    before = np.minimum(before, np.maximum(end - q["arrival"] - waited, 0))  # of one that ended while it was tokenised
    queue = np.where(ran, q["scheduled"], end) - q["arrival"] - before - waited
    known = [
        before + detokenize,
        queue,
        spent[:, PREFILL],
        spent[:, DECODE],
        spent[:, STEPS] - spent[:, PREFILL] - spent[:, DECODE],
        spent[:, AGAIN],
    ]
    parts = np.stack([*known, end - q["arrival"] - sum(known) - waited, *waits.values()], axis=1)
    _cut_at_the_end(parts, status)
    names = (*PARTS, *waits)
    if fetch is not None:
        parts, names = _with_fetch(parts, fetch), (*names, "fetch")
    parts[(status == PARTIAL) | (end == NEVER)] = NEVER
    return Parts(names, parts, before + waited)


def _cut_at_the_end(parts: I64, status: I64) -> None:
    """Of a sequence that was given up: a prefill that went on after its end is not its own time."""
    prefill, rest = PARTS.index("prefill"), PARTS.index("transfer")
    beyond = np.where(status == FINISHED, 0, np.maximum(-parts[:, rest], 0))
    beyond = np.minimum(beyond, parts[:, prefill])
    parts[:, prefill] -= beyond
    parts[:, rest] += beyond


def _with_fetch(parts: I64, fetch: Fetch) -> I64:
    """One column more: waits for tiers, taken out of queue and prefill. A step that somebody left counts no wait."""
    queue, prefill = PARTS.index("queue"), PARTS.index("prefill")
    in_steps = np.minimum(fetch.in_steps, parts[:, prefill])
    parts[:, queue] -= fetch.queued
    parts[:, prefill] -= in_steps
    return np.column_stack((parts, fetch.queued + in_steps))


def _tokenize_of(q: Mapping[str, I64], status: I64, settings: tuple[EngineSettings, ...], engine: I64) -> I64:
    """(sequences,) ns that turned the text of each into tokens: a part of no queue, in parts or in the table."""
    queued = (q["queued"] != NEVER) & (status != REFUSED) & ((status != CANCELLED) | (q["queued"] <= q["finish"]))
    per_request = np.array([s.tokenize_ns_per_request for s in settings])[engine]
    per_token = np.array([s.tokenize_ns_per_token for s in settings])[engine]
    return np.where(queued, per_request + per_token * q["prompt"], 0)
