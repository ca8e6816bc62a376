"""What one run says about its ailments: shares of time and of tokens, from its journal, its counters and its steps.

Every share of waiting is of the time to first token, every share of stalls of the time after it, summed over the
finished sequences.

A step in which somebody waits says what held the head of the queue back:

    places   as many sequences run as may
    device   the step's tokens are used up: whoever waits, waits for the device
    memory   neither: there were no blocks for it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bench.run import Result
from ..bench.step_times import found_times, graphs_of
from ..bench.system import System, engine_limits
from ..core.config import Config
from ..core.journal import FINISHED, STEP_COLUMNS, Counters, Journal
from ..core.units import NS_PER_MS
from ..costs.axes import Line, axis_points
from ..scheduler.rules import TOKEN_BUDGET

I64 = NDArray[np.int64]

_NEAR = 0.02
"""A step within this share of its floor is at it."""


@dataclass(frozen=True)
class Evidence:
    """Of one run. A share that does not exist (nobody decoded) is 0.

    figures     of its summary: scalar or "ttft.p99" -> value, ms
    first       share of the time from arrival to end that is TTFT
    memory, places, device   share of TTFT spent waiting for them
    prefill     share of TTFT in steps that computed a part of the prompt
    preempted   share of the time from arrival to end between losing memory and having it back
    stall       share of the time after the first token that no decode of its own took
    decode_ms   a step of decodes alone, median over the tokens that such steps gave; 0: there were none
    exposed     share of the time in which a step ran that the device waited for the host
    launch      share of the device's time in steps of decodes that it waits for their launches
    attention   share of a decode step that reading KV takes
    running     sequences that run at once, in the mean over the steps
    idle        share of the time between first and last arrival in which no step ran
    fetch       share of TTFT in which nothing is computed because KV is still on its way
    ranks_wait  share of the ranks' time that they wait for the slowest of each step
    exchange    share of the ranks' steps that they dispatch and combine tokens, and compute nothing
    cached      of prompt tokens: found, at most found in this memory, at most found in an endless one
    routed      of prompt tokens: found at most by engines with endless memory of their own, as requests were routed
    """

    figures: dict[str, float]
    first: float
    memory: float
    places: float
    device: float
    prefill: float
    preempted: float
    stall: float
    decode_ms: float
    exposed: float
    launch: float
    attention: float
    running: float
    idle: float
    fetch: float
    ranks_wait: float
    exchange: float
    cached: tuple[float, float, float]
    routed: float

    @property
    def needless(self) -> float:
        """Of the prompt tokens that were computed: an endless cache would have found them."""
        found, _, endless = self.cached
        return (endless - found) / (1 - found) if found < 1 else 0.0

    def __getitem__(self, name: str) -> float:
        """A figure of the summary; 0 where it does not exist."""
        return self.figures.get(name, 0.0)


def evidence_of(result: Result, system: System) -> Evidence:
    """Of a run that recorded its steps."""
    journal, counters, config = result.journal, result.counters, system.config
    done = journal.status == FINISHED
    first = int((journal.first_token_ns - journal.arrival_ns)[done].sum())
    after = int((journal.finish_ns - journal.first_token_ns)[done].sum())
    parts = dict(zip(journal.part_names, journal.parts_ns[done].sum(axis=0).tolist(), strict=True))
    waits = waiting_by_cause(journal.steps, config)
    waited = max(sum(waits.values()), 1)
    decode, exposed = _decode_only(journal.steps), counters.exposed_host_ns
    summary = result.record.summary
    ranks = next((section.figures for section in result.record.sections if section.name == "ranks"), {})
    found, optimum, endless = (float(summary[f"hit_rate{bound}"] or 0.0) for bound in ("", "_optimum", "_infinite"))
    return Evidence(
        figures=_figures(summary),
        first=_share(first, first + after),
        **{cause: _share(parts["queue"] * ns // waited, first) for cause, ns in waits.items()},
        prefill=_share(parts["prefill"], first),
        preempted=_share(parts["preempted"], first + after),
        stall=_share(after - parts["decode"] - parts["preempted"], after),
        decode_ms=_median_step(decode) / NS_PER_MS,
        exposed=_share(exposed, exposed + counters.device_ns),
        **_of_device(decode, counters, system, bool(ranks)),
        running=_running(journal.steps),
        idle=_idle(journal, counters.num_engines),
        fetch=_share(sum(parts.get(name, 0) for name in ("transfer", "fetch")), first),
        ranks_wait=ranks_wait(ranks),
        exchange=_share(ranks.get("exchange_ns", 0), ranks.get("step_ns", 0)),
        cached=(found, optimum, endless),
        routed=float(summary["hit_rate_routed"] or 0.0) if "hit_rate_routed" in summary.scalars else endless,
    )


def waiting_by_cause(steps: I64, config: Config) -> dict[str, int]:
    """memory, places, device -> sequences x ns that waited for it while a step ran."""
    column = {name: steps[:, i] for i, name in enumerate(STEP_COLUMNS)}
    limits = engine_limits(config)
    weight = column["waiting"] * column["duration_ns"]
    full = column["running"] >= limits.max_num_seqs
    if config["scheduler.discipline"] == TOKEN_BUDGET:
        busy = column["prefill_tokens"] + column["decode_seqs"] >= limits.max_batched_tokens
    else:
        busy = column["prefill_tokens"] > 0  # prefill goes first: whoever waits beside it comes next
    if config["batching"] == "static":
        full = np.ones_like(full)  # nobody joins a batch that runs
    return {
        "memory": int(weight[~full & ~busy].sum()),
        "places": int(weight[full].sum()),
        "device": int(weight[~full & busy].sum()),
    }


def _figures(summary: Any) -> dict[str, float]:
    found = {name: float(value) for name, (value, _) in summary.scalars.items() if value is not None}
    for name, d in summary.latencies.items():
        found |= {f"{name}.{p}": v for p in ("mean", "p50", "p90", "p99") if (v := getattr(d, p)) is not None}
    return found


def _decode_only(steps: I64) -> I64:
    return steps[
        (steps[:, STEP_COLUMNS.index("prefill_tokens")] == 0) & (steps[:, STEP_COLUMNS.index("decode_seqs")] > 0)
    ]


def _median_step(steps: I64) -> int:
    """Of the tokens that these steps gave: the duration that half of them took at most, ns."""
    if not len(steps):
        return 0
    duration, tokens = steps[:, STEP_COLUMNS.index("duration_ns")], steps[:, STEP_COLUMNS.index("decode_seqs")]
    order = np.argsort(duration, kind="stable")
    ends = np.cumsum(tokens[order])
    return int(duration[order][np.searchsorted(ends, (ends[-1] + 1) // 2)])


def _of_device(decode: I64, counters: Counters, system: System, in_ranks: bool) -> dict[str, float]:
    """What decode steps wait for launches and, their time less what the tables say of the rest, spend on reading KV.

    A step that takes as long as its launches do waits for them, whatever it reads. Of ranks that step together nothing
    is known: their steps hold waits and exchanges of tokens.
    """
    if not len(decode) or in_ranks:
        return {"launch": 0.0, "attention": 0.0}
    times, graphs = found_times(system), graphs_of(system)
    tokens = decode[:, STEP_COLUMNS.index("decode_seqs")].astype(np.float64)
    device = decode[:, STEP_COLUMNS.index("duration_ns")] * (counters.device_ns / max(counters.busy_ns, 1))
    rest = np.sum([_at(line, tokens) for line in (times.linear, times.communication, times.head)], axis=0)
    floor = np.full(tokens.size, times.floor_ns)
    if graphs.named:
        covered = tokens <= max(graphs.sizes, default=0)
        floor = np.where(covered, graphs.decode_floor_ns, graphs.eager_floor_ns)
    bound = (floor > 0) & (device <= floor * (1 + _NEAR))
    launch = np.where(bound, np.maximum(floor - rest, 0), 0)
    attention = np.where(bound, 0, np.maximum(device - rest - times.launch_ns, 0))
    total = float(device.sum())
    return {"launch": _share(float(launch.sum()), total), "attention": _share(float(attention.sum()), total)}


def _at(line: Line, counts: NDArray[np.float64]) -> NDArray[np.float64]:
    points = axis_points(line.bits, 2)
    while points.size < line.ns.size:
        points = axis_points(line.bits, int(points[-1]) * 2)
    return np.interp(counts, points[: line.ns.size], line.ns)


def _running(steps: I64) -> float:
    duration = steps[:, STEP_COLUMNS.index("duration_ns")]
    return float((steps[:, STEP_COLUMNS.index("running")] * duration).sum() / max(duration.sum(), 1))


def ranks_wait(figures: Mapping[str, Any]) -> float:
    """Of ranks that step together, at the barrier or within a layer for the fullest device; 0 where there are none.

    figures   of their section of the report
    """
    if not figures:
        return 0.0
    waited = sum(figures["wait_ns"])
    barrier = _share(waited, waited + sum(figures["busy_ns"]))
    layers = [layer["after"] or layer["before"] for layer in figures.get("balancedness", ())]
    even = [share for share in layers if share]
    idle = 1 - sum(even) / len(even) if even else 0.0
    return max(barrier, _share(figures.get("experts_ns", 0) * idle, figures["step_ns"]))


def _idle(journal: Journal, engines: int) -> float:
    """Between the first arrival and the last: draining at the end is no sign of anything."""
    came = journal.arrival_ns[journal.arrival_ns >= 0]
    if not came.size or not len(journal.steps):
        return 0.0
    begin, end = int(came.min()), int(came.max())
    start = journal.steps[:, STEP_COLUMNS.index("start_ns")]
    stop = start + journal.steps[:, STEP_COLUMNS.index("duration_ns")]
    ran = int(np.maximum(np.minimum(stop, end) - np.maximum(start, begin), 0).sum())
    return max(1.0 - _share(ran, (end - begin) * engines), 0.0) if end > begin else 0.0


def _share(part: float, whole: float) -> float:
    return float(min(max(part / whole, 0.0), 1.0)) if whole > 0 else 0.0
