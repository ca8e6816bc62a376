"""EPLB over the steps of a run: collect loads, decide, move layer by layer, switch the map.

off            the map of t = 0 stays
static         placed once, from the loads of a window before
dynamic-sync   every rank stops while it is decided and moved
dynamic-async  decided on another thread, moved beside the steps; a layer a step is switched when it has come
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..costs.exchange import Exchange
from . import balance
from .clocks import VllmClock, Window
from .keys import EplbSettings
from .layout import F64, I64, Layout, Placement, placement_of
from .moves import Move, held, plan_of
from .policies import policy_named
from .tables import tables_of

_BATCH_NS = 20_000.0
"""A batch of transfers of one layer begins: group launch, hand-shake."""


@dataclass
class Rearrangement:
    """One decision and what came of it.

    step, at_ns       when it was made
    before, after     balancedness of the window's loads under the map of then, and under the new one
    moves, num_bytes  experts that went to another device, of all layers
    pause_ns          in which nobody computed
    ready_ns          when the last layer was there; layers: switched so far
    kept              why nothing was moved; ""
    """

    step: int
    at_ns: int
    before: float
    after: float
    moves: int = 0
    num_bytes: int = 0
    pause_ns: int = 0
    ready_ns: int = 0
    layers: int = 0
    kept: str = ""


@dataclass(frozen=True)
class _Pending:
    """A layer on its way."""

    layer: int
    ready_ns: int


class Balancer:
    """The maps of a run. `before_step` and `after_step` are called in turn, between two steps."""

    def __init__(self, layout: Layout, layers: int, settings: EplbSettings, exchange: Exchange) -> None:
        self.layout, self.layers, self.settings, self.exchange = layout, layers, settings, exchange
        self.policy = policy_named(settings.policy)
        self.is_nearest = settings.replicas == "nearest"
        self.tables, self.loading = (
            tables_of(placement_of(layout.first_map(layers)), layout, self.is_nearest) for _ in range(2)
        )
        """The maps of now, and those that the experts were loaded by."""
        self.window = Window(settings.window, layers, layout.slots)
        self.clock = VllmClock(settings.window, settings.interval)
        self.history: list[Rearrangement] = []
        self.collect_ns = 0
        self.static_pause_ns = 0
        """What a synchronous move from the first map to the one of t = 0 would take."""
        self._planned: Placement | None = None
        self._pending: list[_Pending] = []
        self._pause_ns = 0
        self._is_dead = False

    @property
    def is_dynamic(self) -> bool:
        return self.settings.mode.startswith("dynamic")

    @property
    def is_moving(self) -> bool:
        """Weights are on their way beside the steps."""
        return bool(self._pending) and not self._is_dead

    def place_static(self, load: F64) -> None:
        """The map of t = 0 from the loads of a window before the run. load: (layers, experts)."""
        old = self.tables.experts.copy()
        placed = self.policy(load[None], self.layout, old)
        moves = self._moves(placed)
        self.history.append(self._described(0, 0, load, placed, moves))
        self.static_pause_ns = self._pause_of([self._move_ns(of_layer) for of_layer in moves])
        self.tables = tables_of(placed, self.layout, self.is_nearest)
        self.history[-1].layers = self.layers

    # ------------------------------------------------------------ a step

    def before_step(self, now_ns: int) -> int:
        """What has come is switched. Returns ns in which nobody computes before this step."""
        pause, self._pause_ns = self._pause_ns, 0
        if self._pending and self._pending[0].ready_ns <= now_ns and not self._is_dead:
            assert self._planned is not None
            layer = self._pending.pop(0).layer
            self.tables.switch(layer, self._planned, len(self.history), self.settings.fault)
            self.history[-1].layers += 1
            self._give_way()
        self.clock.moving = bool(self._pending)
        self.tables.check()
        return pause

    def _give_way(self) -> None:
        """Planted faults of a move that is half done."""
        done = self.history[-1].layers
        if self.settings.fault == "worker_dies" and 2 * done >= self.layers:
            self._is_dead = True
        if self.settings.fault == "cancelled" and 2 * done >= self.layers:
            self.history[-1].kept = f"cancelled after {done} of {self.layers} layers: the others keep their map"
            self._pending.clear()

    def after_step(self, step: int, end_ns: int, of_slots: I64, is_real: bool) -> None:
        """Loads are collected, and it is decided when it is time."""
        if not self.is_dynamic:
            return
        if self.clock.records and is_real:
            self.window.record(of_slots)
            cost = round(self.settings.collect_us * 1e3)
            self.collect_ns += cost
            self._pause_ns += cost
        if self.clock.tick():
            self._decide(step, end_ns)

    def _decide(self, step: int, now_ns: int) -> None:
        loads = self.window.by_expert(self.tables.experts, self.layout.experts)
        placed = self.policy(loads, self.layout, self.tables.experts.copy())
        moves = self._moves(placed)
        made = self._described(step, now_ns, loads.sum(0), placed, moves)
        self.history.append(made)
        if self.settings.threshold < 1.0 and made.before > self.settings.threshold:
            made.kept = f"balancedness {made.before:.3f} is above eplb.threshold"
            made.moves = made.num_bytes = 0
            return
        times = [self._move_ns(of_layer) for of_layer in moves]
        if self.settings.mode == "dynamic-sync":
            made.pause_ns = self._pause_of(times)
            made.ready_ns = now_ns + made.pause_ns
            self._pause_ns += made.pause_ns
            for layer in range(self.layers):
                self.tables.switch(layer, placed, len(self.history), self.settings.fault)
            made.layers = self.layers
            return
        ready, self._planned = float(now_ns + self._decide_ns), placed
        for layer, ns in enumerate(times):
            ready += ns / self.settings.async_share
            self._pending.append(_Pending(layer, round(ready)))
        made.ready_ns = round(ready)
        self.clock.moving = True

    @property
    def _decide_ns(self) -> int:
        return round(self.settings.decide_us * 1e3 * self.layers * self.layout.slots)

    def _pause_of(self, times: list[float]) -> int:
        """Decided, then every layer moved. times: ns of each layer's transfers."""
        return self._decide_ns + round(sum(times))

    def _described(
        self, step: int, now_ns: int, load: F64, placed: Placement, moves: list[list[Move]]
    ) -> Rearrangement:
        """The decision, with its effect on the loads that it has seen and its moves."""
        before, after = self._balance(load, self.tables.experts), self._balance(load, placed.experts)
        num = sum(len(of_layer) for of_layer in moves)
        return Rearrangement(step, now_ns, before, after, num, round(num * self.exchange.expert_bytes))

    def _balance(self, load: F64, experts: I64) -> float:
        return balance.balancedness(balance.rank_loads(balance.slot_loads(load, experts), self.layout.ranks))

    # ------------------------------------------------------------ moves

    def _moves(self, placed: Placement) -> list[list[Move]]:
        """By layer, as the policy's engine plans them."""
        plan = plan_of(self.settings.policy)
        pairs = zip(self.tables.experts, placed.experts, strict=True)
        return [plan(held(old, new, self.layout.ranks), self.exchange.nodes) for old, new in pairs]

    def _move_ns(self, moves: list[Move]) -> float:
        """A layer's transfers: as long as the device that sends or receives most over one of its links."""
        if not moves:
            return 0.0
        per_node = self.exchange.node_devices
        ns = np.zeros((2, 2, self.layout.ranks))  # near and far, sent and received
        for move in moves:
            far = int(move.source // per_node != move.target // per_node)
            byte_ns = self.exchange.far_ns if far else self.exchange.near_ns
            ns[far, 0, move.source] += self.exchange.expert_bytes * byte_ns
            ns[far, 1, move.target] += self.exchange.expert_bytes * byte_ns
        return _BATCH_NS + float(ns.max())

    def notes(self) -> tuple[str, ...]:
        """What somebody has to know of the maps at the end, one line each."""
        if self._is_dead:
            left = len(self._pending)
            return (
                f"eplb: the worker that moves experts ended silently at decision {len(self.history)}; {left} of "
                f"{self.layers} layers keep the old map for ever, and no decision follows",
            )
        if self.is_dynamic and not self.history:
            interval = self.settings.interval
            return (
                f"eplb: no decision was made: the first comes after {interval // 4:,} steps, a quarter of "
                f"eplb.interval = {interval:,}, and there were fewer",
            )
        return tuple(f"eplb: decision at step {r.step}: {r.kept}" for r in self.history if r.kept)
