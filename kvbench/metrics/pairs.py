"""What a run of prefill and decode engines shows: where the first token's time went, what moved, what was stranded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.journal import FINISHED, NEVER, Counters, Journal
from ..core.requests import I64
from ..core.units import NS_PER_MS, NS_PER_S
from .latency import wall_time_ns
from .percentiles import distribution

TTFT_PARTS = ("before", "queue", "prefill", "transfer", "decode_queue", "first_step")
"""They sum to TTFT exactly. before: routing and tokenising; queue: to its first step, under push with the wait for the
decode side's memory; prefill: to its last, whatever ran beside it; transfer: what was not hidden behind the prefill;
decode_queue: waiting on the decode side; first_step: there, until the first token is handed out. Where the prefill side
hands it out, transfer and decode_queue come after it, and first_step is what it takes to hand it out."""
HANDOFF_PARTS = ("transfer", "decode_queue")
"""They sum to the time from a computed prompt to the first step on the decode side."""


@dataclass(frozen=True)
class PairTimes:
    """(sequences,) ns; NEVER = did not happen.

    computed, begun, arrived, freed   the prompt was computed; its KV began to move, was there; the prefill side let go
    decoded        first step on the decode side
    held_bytes     (sequences,) KV that the prefill side held from computed to freed
    moved_bytes, attempts   (sequences,)
    failed, expired, heartbeats   of all
    hands_out      the prefill side hands out the first token
    """

    computed: I64
    begun: I64
    arrived: I64
    freed: I64
    decoded: I64
    held_bytes: I64
    moved_bytes: I64
    attempts: I64
    failed: int
    expired: int
    heartbeats: int
    hands_out: bool = False


@dataclass(frozen=True)
class SideFigures:
    """One side: engines and devices, and the share of the time in which none of their steps ran."""

    engines: int
    devices: int
    idle_share: float


@dataclass(frozen=True)
class PairFigures:
    """All of it. Times in ms as (mean, p50, p99); None: nothing got so far.

    handoff_ms   where the prefill side hands out the first token, else empty: TTFT has it
    """

    sides: Mapping[str, SideFigures]
    ttft_ms: Mapping[str, tuple[float, float, float] | None]
    handoff_ms: Mapping[str, tuple[float, float, float] | None]
    transfers: int
    transferred_bytes: int
    transfer_ms: tuple[float, float, float] | None
    retried: int
    failed: int
    expired_leases: int
    heartbeats: int
    held_ms: tuple[float, float, float] | None
    stranded_bytes_mean: float
    stranded_bytes_peak: int
    output_tokens_per_s_device: float
    goodput_per_device: float | None


def pair_figures(
    journal: Journal,
    times: PairTimes,
    counters: Mapping[str, Sequence[Counters]],
    devices: Mapping[str, int],
    goodput: float | None,
) -> PairFigures:
    """counters, devices: of each side, of every engine of it. goodput: of the run, None without promises."""
    wall = max(wall_time_ns(journal), 1)
    sides = {
        name: SideFigures(len(of), devices[name] * len(of), max(1 - sum(c.busy_ns for c in of) / (len(of) * wall), 0.0))
        for name, of in counters.items()
    }
    num_devices = sum(side.devices for side in sides.values())
    moved = (times.begun != NEVER) & (times.arrived != NEVER)
    held = (times.computed != NEVER) & (times.freed != NEVER)
    tokens = int(journal.output_tokens[journal.status == FINISHED].sum())
    return PairFigures(
        sides,
        {name: _spread(values) for name, values in ttft_parts(journal, times).items()},
        {name: _spread(values) for name, values in handoff_parts(journal, times).items()} if times.hands_out else {},
        int((times.begun != NEVER).sum()),
        int(times.moved_bytes.sum()),
        _spread((times.arrived - times.begun)[moved]),
        int(np.maximum(times.attempts - 1, 0).sum()),
        times.failed,
        times.expired,
        times.heartbeats,
        _spread((times.freed - times.computed)[held]),
        float(((times.freed - times.computed) * times.held_bytes.astype(np.float64))[held].sum() / wall),
        _peak(times.computed[held], times.freed[held], times.held_bytes[held]),
        tokens / (wall / NS_PER_S) / num_devices,
        None if goodput is None else goodput / num_devices,
    )


def ttft_parts(journal: Journal, times: PairTimes) -> dict[str, I64]:
    """Of sequences that finished on two engines, (those,) ns each; see TTFT_PARTS."""
    j = journal
    before = j.tokenize_ns if j.tokenize_ns.size else np.zeros_like(j.arrival_ns)
    transfer, waiting = _handoff(times)
    if times.hands_out:
        two, transfer, waiting = times.computed != NEVER, transfer * 0, waiting * 0
    else:
        two = (times.computed != NEVER) & (times.decoded != NEVER) & (times.decoded <= j.first_token_ns)
    two &= (j.status == FINISHED) & (j.first_token_ns != NEVER)
    parts = (
        before,
        j.scheduled_ns - j.arrival_ns - before,
        times.computed - j.scheduled_ns,
        transfer,
        waiting,
        j.first_token_ns - times.computed - transfer - waiting,
    )
    return {name: part[two] for name, part in zip(TTFT_PARTS, parts, strict=True)}


def handoff_parts(journal: Journal, times: PairTimes) -> dict[str, I64]:
    """Of sequences that finished and decoded, (those,) ns each; see HANDOFF_PARTS."""
    two = (journal.status == FINISHED) & (times.computed != NEVER) & (times.decoded > times.computed)
    return {name: part[two] for name, part in zip(HANDOFF_PARTS, _handoff(times), strict=True)}


def _handoff(times: PairTimes) -> tuple[I64, I64]:
    """(sequences,) ns between a computed prompt and the first step of the decode: moving, and waiting for it."""
    until = np.where(times.arrived != NEVER, np.minimum(times.arrived, times.decoded), times.decoded)
    moving = np.where(times.begun != NEVER, np.maximum(until - np.maximum(times.begun, times.computed), 0), 0)
    return moving, times.decoded - times.computed - moving


def _spread(ns: I64) -> tuple[float, float, float] | None:
    """As the table of latencies has it."""
    found = distribution(ns)
    if found.mean is None or found.p50 is None or found.p99 is None:
        return None
    return found.mean / NS_PER_MS, found.p50 / NS_PER_MS, found.p99 / NS_PER_MS


def _peak(begin: I64, end: I64, size: I64) -> int:
    """The most that was held at one time; what ends at a time is gone before what begins."""
    at = np.concatenate([begin, end])
    change = np.concatenate([size, -size])
    order = np.lexsort((change, at))
    return int(max(np.cumsum(change[order]).max(initial=0), 0))
