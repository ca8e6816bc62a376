"""The experts of an instance over a run: what each step's tokens choose, what it costs, and how even it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..costs.exchange import LOW_LATENCY, NORMAL, Exchange
from ..costs.streams import Demand, Streams
from . import draws, pricing
from .balancer import Balancer
from .keys import EplbSettings, LoadSettings
from .layout import F64, I64, Layout
from .popularity import DECODE, PREFILL, Popularity, Routing, inclusion
from .tables import ExpertTables

_SEED_OF_DRAWS = np.uint64(0xD1B54A32D192ED03)
_SEED_OF_DOMAIN = np.uint64(0x8CB92BA72F3D8DD7)
_KEPT_STAGES = 4


@dataclass
class StepRecords:
    """One entry a step.

    begin_ns, pause_ns   when it was priced, and the pause before it
    mean, most           tokens of a device and of the fullest one, layers summed
    has_prefill          it had prompt tokens
    decision             decisions whose maps it has read (of the first layer)
    saved_ns             by its map: what experts and exchanges would have taken longer under the map of loading
    loads                (devices,) tokens of each device, layers summed
    """

    begin_ns: list[int] = field(default_factory=list)
    pause_ns: list[int] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)
    has_prefill: list[bool] = field(default_factory=list)
    decision: list[int] = field(default_factory=list)
    saved_ns: list[int] = field(default_factory=list)
    loads: list[I64] = field(default_factory=list)


@dataclass(frozen=True)
class _Drawn:
    """What draws of one stage and phase need."""

    weights: F64
    sums: F64
    included: F64


@dataclass(frozen=True)
class _Work:
    """Of a step: (layers, experts) choices, and (ranks,) choices of the tokens of each rank's devices, one device."""

    index: int
    counts: I64
    sent: F64


@dataclass(frozen=True)
class Ranks:
    """Of an instance: tp devices each. mode: kernels of the exchange, "auto" as the step has a chunk or not."""

    count: int
    tp: int
    mode: str = "auto"


class Mixture:
    """One instance's experts.

    step      tokens of each rank -> terms of their queries, ns that all wait for, ns of pause
    """

    def __init__(
        self,
        routing: Routing,
        layout: Layout,
        ranks: Ranks,
        exchange: Exchange,
        load: LoadSettings,
        eplb: EplbSettings,
        seed: int,
        streams: Streams | None = None,
        domains: int = 1,
    ) -> None:
        """domains: of requests, whose tokens have popularities of their own; see `step`."""
        self.streams, self.domains = streams, domains
        self.gains: dict[tuple[bool, str, str], tuple[int, float]] = {}
        """(with prefill, which streams, what decides) -> steps, ns saved."""
        self.routing, self.layout, self.ranks, self.exchange = routing, layout, ranks, exchange
        self.popularity = Popularity(load, routing, seed)
        self.balancer = Balancer(layout, routing.layers, eplb, exchange)
        self.records = StepRecords()
        self.by_layer = np.zeros((2, 2, routing.layers, 2))
        """(decode or with prefill, before or after the first new map, layer, mean and maximum) summed over steps."""
        self.experts_ns = self.exchange_ns = 0
        self.chosen = 0
        self.active = 0.0
        self._seed = seed
        self._is_nearest = eplb.replicas == "nearest"
        self._drawn: dict[tuple[int, int], _Drawn] = {}
        self._counts = np.zeros((routing.layers, routing.experts), np.int64)
        self._of_slots = np.zeros((routing.layers, layout.slots), np.int64)
        self._of_devices = np.zeros((routing.layers, layout.ranks), np.float64)
        self._together = np.zeros(2, np.float64)
        if eplb.mode == "static":
            self.balancer.place_static(self._expected())

    def _expected(self) -> F64:
        """(layers, experts) loads of a window before the run: as many tokens of each phase and domain."""
        kinds = [(domain, phase) for domain in range(self.domains) for phase in (PREFILL, DECODE)]
        load = np.sum([self._stage(self.popularity.stage(0, d), phase).included for d, phase in kinds], axis=0)
        return np.floor(load / self.domains * 100_000.0)

    def _stage(self, stage: int, phase: int) -> _Drawn:
        if (stage, phase) not in self._drawn:
            while len(self._drawn) >= max(_KEPT_STAGES, 2 * self.domains):
                self._drawn.pop(next(iter(self._drawn)))
            weights = np.ascontiguousarray(self.popularity.weights(stage, phase))
            sums = weights.reshape(self.routing.layers, self.routing.groups, -1).sum(-1)
            self._drawn[stage, phase] = _Drawn(weights, sums, inclusion(weights, self.routing))
        return self._drawn[stage, phase]

    def draw(self, step: int, tokens: I64) -> I64:
        """(layers, experts) choices of a step's tokens. The array is used again.

        tokens  (2, domains) prefill and decode tokens
        """
        self._counts[:] = 0
        for phase, domain in np.argwhere(tokens).tolist():
            drawn = self._stage(self.popularity.stage(step, domain), phase)
            state = np.array([_SEED_OF_DRAWS * np.uint64(1 + self._seed * 4 + phase)], np.uint64)
            state[0] += np.uint64(step) * np.uint64(0x9E3779B97F4A7C15) * np.uint64(1 << 20 | 1)
            state[0] += np.uint64(domain) * _SEED_OF_DOMAIN
            draws.draw_counts(
                state,
                int(tokens[phase, domain]),
                self.routing.top_k,
                self.routing.group_limit,
                drawn.weights,
                drawn.sums,
                drawn.included,
                self._counts,
            )
        return self._counts

    def step(self, index: int, now_ns: int, tokens: I64, terms: F64, by_domain: I64 | None = None) -> tuple[int, int]:
        """One step of the instance.

        tokens     (ranks, 2) prefill and decode tokens of each
        terms      (ranks, 4) overwritten, see pricing
        by_domain  (2, domains) the same tokens, of all ranks; None: all are of one
        returns    ns of experts and exchanges that all wait for; ns of pause before the step
        """
        with np.errstate(over="ignore"):
            pause = self.balancer.before_step(now_ns)
            both = tokens.sum(0)
            counts = self.draw(index, both[:, None] if by_domain is None else by_domain)
            mode = self.ranks.mode
            is_normal = both[PREFILL] > 0 if mode == "auto" else mode == "normal"
            work = _Work(index, counts, tokens.sum(1) * (self.routing.top_k / self.ranks.tp))
            kernel = NORMAL if is_normal else LOW_LATENCY
            before = 0.0
            if self.balancer.history:
                self._price(work, self.balancer.loading, self._prices(kernel, is_moving=False), terms)
                before = float(self._together.sum())
            self._price(work, self.balancer.tables, self._prices(kernel, self.balancer.is_moving), terms)
        saved = round(before - float(self._together.sum())) if self.balancer.history else 0
        has_prefill = bool(both[PREFILL] > 0)
        if self.streams is not None:
            self._run_streams(self.streams, tokens, has_prefill, terms)
        self._note(now_ns, pause, has_prefill, saved)
        self.balancer.after_step(index, now_ns, self._of_slots, is_real=True)
        experts, exchange = round(float(self._together[0])), round(float(self._together[1]))
        self.experts_ns += experts
        self.exchange_ns += exchange
        return experts + exchange, pause

    def _run_streams(self, streams: Streams, tokens: I64, has_prefill: bool, terms: F64) -> None:
        """What streams save, or cost, comes off what all wait for."""
        times, x, layers = self.exchange.times, self.exchange, self.routing.layers
        widest, of_devices = int(tokens.sum(1).max()), self._of_devices.sum(0)
        active = np.count_nonzero(self._of_slots.reshape(layers, self.layout.ranks, -1), axis=(0, 2))
        weights = active + of_devices * x.activation
        compute, memory = float(of_devices.max()) * times.token_ns, float(weights.max()) * times.read_ns
        routed = Demand(compute, memory, float(self._together[1]))
        for name, gain in (
            ("shared expert", streams.shared(widest, routed)),
            ("two batches", streams.two_batch(widest, routed, layers * x.fixed_ns)),
        ):
            if gain.decides:
                steps, saved = self.gains.get((has_prefill, name, gain.decides), (0, 0.0))
                self.gains[has_prefill, name, gain.decides] = (steps + 1, saved + gain.ns)
                terms[:, pricing.FIXED] -= gain.ns
                self._together[1] = max(float(self._together[1]) - gain.ns, 0.0)

    def _price(self, work: _Work, tables: ExpertTables, prices: F64, terms: F64) -> None:
        """A step under a map: terms, tokens by slot and device, and what all wait for."""
        if self._is_nearest:
            pricing.fill_nearest(work.counts, tables.experts, tables.served, self.layout.ranks, self._of_slots)
        else:
            args = (work.counts, tables.experts, tables.replica, tables.replicas)
            pricing.fill_slots(*args, work.index, self._of_slots)
        pricing.price_step(self._of_slots, work.sent, prices, self.ranks.tp, terms, self._of_devices, self._together)

    def _prices(self, mode: int, is_moving: bool) -> F64:
        x = self.exchange
        pair = x.pair_bytes[mode]
        if is_moving:  # the links carry weights too
            pair /= 1.0 - self.balancer.settings.async_share
        times = x.times
        return np.array(
            [times.token_ns, times.read_ns, x.activation, pair, times.dispatch_ns_per_byte, x.fixed_ns], np.float64
        )

    def _note(self, now_ns: int, pause: int, has_prefill: bool, saved: int) -> None:
        r, of_devices = self.records, self._of_devices
        mean, most = of_devices.mean(1), of_devices.max(1)
        decisions = len([h for h in self.balancer.history if h.layers])
        r.begin_ns.append(now_ns)
        r.pause_ns.append(pause)
        r.mean.append(float(mean.sum()))
        r.most.append(float(most.sum()))
        r.has_prefill.append(has_prefill)
        r.saved_ns.append(saved)
        r.decision.append(decisions)
        r.loads.append(of_devices.sum(0).astype(np.int64))
        cell = self.by_layer[int(has_prefill), min(decisions, 1)]
        cell[:, 0] += mean
        cell[:, 1] += most
        self.chosen += int(self._counts.sum())
        self.active += float(np.count_nonzero(self._of_slots))
