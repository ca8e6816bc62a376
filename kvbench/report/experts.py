"""What is told of ranks that step together and of their experts: lines of the table, files, a picture's data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class RankRow:
    """A rank: its own steps; ns of its steps, dummies among them, of its waits and of the dummies; dummy steps.

    engine   of a fleet, the instance that it is one of
    """

    rank: int
    steps: int
    busy_ns: int
    wait_ns: int
    dummy_ns: int
    dummy_steps: int
    engine: int = 0


@dataclass(frozen=True)
class StepRow:
    """A step of the instance, its pause among its length. mean, most: tokens of a device, of the fullest.

    saved_ns   by its map, of what it would have taken under the map of loading
    """

    step: int
    begin_ns: int
    length_ns: int
    pause_ns: int
    has_prefill: bool
    mean: float
    most: float
    decision: int
    saved_ns: int = 0
    engine: int = 0


@dataclass(frozen=True)
class MoveRow:
    """A decision; see experts.balancer.Rearrangement."""

    step: int
    at_ns: int
    before: float
    after: float
    moves: int
    num_bytes: int
    pause_ns: int
    ready_ns: int
    layers: int
    kept: str
    engine: int = 0


@dataclass(frozen=True)
class LayerBalance:
    """Mean over maximum load of a layer's devices, summed over steps, under the first map and later ones."""

    layer: int
    phase: str
    before: float
    after: float


@dataclass(frozen=True)
class StreamRow:
    """Steps of a kind in which two streams ran, what decided, and ns that they saved (below 0: lost)."""

    has_prefill: bool
    name: str
    decides: str
    steps: int
    saved_ns: float


@dataclass(frozen=True)
class ExpertReport:
    """steps, step_ns: of the instance. The rest from `settings` on where experts are spread.

    instances      of a fleet: steps and times are sums over them
    experts_ns, exchange_ns   that all waited for
    chosen         choices of tokens, all steps and layers
    active         slots of a layer that had a token, mean over steps and layers
    device_loads   (steps, devices) tokens
    """

    steps: int
    step_ns: int
    ranks: tuple[RankRow, ...]
    settings: str = ""
    experts_ns: int = 0
    exchange_ns: int = 0
    chosen: int = 0
    active: float = 0.0
    steps_of: tuple[StepRow, ...] = ()
    moves: tuple[MoveRow, ...] = ()
    layers: tuple[LayerBalance, ...] = ()
    device_loads: np.ndarray[Any, np.dtype[np.int64]] = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    streams: tuple[StreamRow, ...] = ()
    notes: tuple[str, ...] = ()
    instances: int = 1


def expert_lines(report: ExpertReport) -> list[tuple[str, str]]:
    """Rows of the run's table."""
    rows = [("ranks", _ranks_line(report)), ("barrier", _barrier_line(report))]
    if not report.settings:
        return rows
    rows += [
        ("experts", report.settings),
        ("", _share_line(report)),
        ("balance", _balance_line(report)),
        ("", _layer_line(report)),
    ]
    rows += [("streams", _stream_line(s)) for s in report.streams]
    if report.moves:
        rows += [("EPLB", line) for line in _move_lines(report)]
    return rows


def _ranks_line(r: ExpertReport) -> str:
    dummies, of_each = sum(rank.dummy_steps for rank in r.ranks), len(r.ranks) // r.instances
    who = f"{of_each} step together" if r.instances == 1 else f"{of_each} of each of {r.instances} step together"
    return (
        f"{who}: {r.steps:,} steps of {r.step_ns / max(r.steps, 1) / 1e6:,.2f} ms in the mean; "
        f"{dummies:,} of {of_each * r.steps:,} were dummies"
    )


def _barrier_line(r: ExpertReport) -> str:
    whole = max(sum(rank.wait_ns + rank.busy_ns for rank in r.ranks), 1)
    waits = [rank.wait_ns / max(rank.wait_ns + rank.busy_ns, 1) for rank in r.ranks]
    dummies = sum(rank.dummy_ns for rank in r.ranks) / whole
    return (
        f"{_percent(sum(rank.wait_ns for rank in r.ranks) / whole)} of the ranks' time waits for the slowest "
        f"({_percent(min(waits))} to {_percent(max(waits))} of a rank's), {_percent(dummies)} is dummies"
    )


def _share_line(r: ExpertReport) -> str:
    of = max(r.step_ns, 1)
    return (
        f"{_percent(r.experts_ns / of)} of the steps' time in experts, {_percent(r.exchange_ns / of)} in dispatch and "
        f"combine; {r.active:,.1f} slots of a layer have a token"
    )


def balance_of(steps: Sequence[StepRow]) -> float:
    """Mean over maximum load of a device, summed over steps and layers; NaN without steps."""
    most = sum(s.most for s in steps)
    return sum(s.mean for s in steps) / most if most > 0 else math.nan


def _balance_line(r: ExpertReport) -> str:
    """Balancedness, by phase, before the first new map and after it."""
    parts = []
    for name, has_prefill in (("decode", False), ("with prefill", True)):
        of = [s for s in r.steps_of if s.has_prefill == has_prefill]
        before, after = [s for s in of if s.decision == 0], [s for s in of if s.decision > 0]
        if before and after:
            parts.append(f"{name} {balance_of(before):.3f} -> {balance_of(after):.3f}")
        elif of:
            parts.append(f"{name} {balance_of(of):.3f}")
    return "; ".join(parts) + " (mean / fullest device)"


def _layer_line(r: ExpertReport) -> str:
    """The least and the most even layer."""
    parts = []
    for name in ("decode", "with prefill"):
        of = [layer for layer in r.layers if layer.phase == name]
        spans = [
            f"{min(shares):.3f} to {max(shares):.3f}"
            for shares in ([x.before for x in of], [x.after for x in of])
            if shares and not any(map(math.isnan, shares))
        ]
        if spans:
            parts.append(f"{name} {' -> '.join(spans)}")
    return "by layer " + "; ".join(parts)


def _stream_line(s: StreamRow) -> str:
    kind = "with prefill" if s.has_prefill else "decode"
    each = s.saved_ns / s.steps / 1e3
    what = "the longer of the two alone" if s.decides == "chain" else s.decides
    does = "saves" if each >= 0 else "loses"
    return f"{s.name}, {kind}: {does} {abs(each):,.0f} us a step in {s.steps:,} ({what} decides)"


def _move_lines(r: ExpertReport) -> list[str]:
    pauses = sum(m.pause_ns for m in r.moves)
    moved = [m for m in r.moves if m.layers]
    lines = [
        f"{len(r.moves):,} decision{'s' * (len(r.moves) != 1)}, {sum(m.moves for m in moved):,} experts moved, "
        f"{sum(m.num_bytes for m in moved) / 1e9:,.2f} GB; {pauses / 1e6:,.1f} ms of pauses "
        f"({_percent(pauses / max(r.step_ns, 1))} of the time)"
    ]
    return [*lines, payback(r)] if moved and r.instances == 1 else lines


def payback(r: ExpertReport) -> str:
    """What the new maps have saved, on the very tokens of their steps, against what they cost; and from when on."""
    later = sum(s.decision > 0 for s in r.steps_of)
    saved, cost = sum(s.saved_ns for s in r.steps_of), sum(s.pause_ns for s in r.steps_of)
    each, sign = saved / max(later, 1) / 1e3, saved >= 0
    told = (
        f"a step under a new map is {abs(each):,.0f} us {'shorter' if sign else 'longer'} than under that of loading: "
        f"{abs(saved) / 1e6:,.1f} ms {'saved' if sign else 'lost'} in this run, for {cost / 1e6:,.1f} ms of pauses "
        "and statistics"
    )
    if cost == 0:
        return told
    steps = paid_back(r.steps_of)
    return told + ("; not paid back" if steps is None else f"; paid back after {steps:,} steps")


def paid_back(steps: Sequence[StepRow]) -> int | None:
    """Steps under new maps until these have saved, for good, what all pauses and statistics took. None: never."""
    first = next((i for i, s in enumerate(steps) if s.decision > 0), len(steps))
    net = np.cumsum([s.saved_ns - s.pause_ns for s in steps])[first:]
    behind = np.flatnonzero(net < 0)
    if net.size == 0 or (behind.size and behind[-1] == net.size - 1):
        return None
    return int(behind[-1]) + 1 if behind.size else 0


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f} %"
