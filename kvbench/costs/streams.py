"""Work in two streams of one device: by what each wants of compute, memory, link and launches.

    one after the other   both as long as they take alone
    at once               the largest of: what both want of a resource, summed; what either takes alone; and an end
                          that waits for both

So work gains from a stream of its own as far as it wants other things, and loses the synchronisation where it wants the
same. Nothing here says that two kernels that fit together really do: caches and occupancy are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .axes import Line, axis_points
from .roofline import MAX_STEP_TOKENS, Rank
from .stream_keys import StreamSettings

RESOURCES = ("compute", "memory", "link", "launch")
NEITHER = "chain"
"""What decides when no resource does: the longer of the two, alone."""


@dataclass(frozen=True)
class Demand:
    """ns of each resource, if the work had it alone."""

    compute: float = 0.0
    memory: float = 0.0
    link: float = 0.0
    launch: float = 0.0

    @property
    def alone(self) -> float:
        """Weights and products go on together; the exchange and the launches come before and after."""
        return max(self.compute, self.memory) + self.link + self.launch

    def __add__(self, other: Demand) -> Demand:
        pairs = zip(self.values, other.values, strict=True)
        return Demand(*(a + b for a, b in pairs))

    @property
    def values(self) -> tuple[float, float, float, float]:
        return self.compute, self.memory, self.link, self.launch


def at_once(one: Demand, other: Demand, sync_ns: float, core_split: float = 0.0) -> tuple[float, str]:
    """ns of both in two streams, and the resource that decides.

    core_split  share of the cores that `one` gets; 0: both use all cores as they come
    """
    if core_split > 0.0:
        one = Demand(one.compute / core_split, one.memory, one.link, one.launch)
        other = Demand(other.compute / (1.0 - core_split), other.memory, other.link, other.launch)
        compute = max(one.compute, other.compute)
    else:
        compute = one.compute + other.compute
    both = Demand(compute, one.memory + other.memory, one.link + other.link, max(one.launch, other.launch))
    longest = max(one.alone, other.alone)
    most = max(both.values)
    if longest >= most:
        return longest + sync_ns, NEITHER
    return most + sync_ns, RESOURCES[both.values.index(most)]


def demand_of(rank: Rank, prefix: str, tokens: float, launch_us: float) -> Demand:
    """Matrices whose name begins so (`shared_`, `expert_`), of all layers of a step; nothing where there are none."""
    compute = memory = 0.0
    kernels = 0
    for name, layers, products, moved in rank.matmul_bounds(tokens):
        if name.startswith(prefix):
            compute, memory, kernels = compute + products, memory + moved, kernels + layers
    return Demand(compute, memory, 0.0, kernels * launch_us * 1e3)


@dataclass(frozen=True)
class Gain:
    """What streams save in one step, and what decides: a resource, NEITHER, or "" where they are not used."""

    ns: float = 0.0
    decides: str = ""


class Streams:
    """The streams of a deployment. layers: that have experts."""

    def __init__(self, rank: Rank, settings: StreamSettings, layers: int, launch_us: float) -> None:
        self.rank, self.settings, self.launch_us = rank, settings, launch_us
        self.sync_ns = settings.sync_us * 1e3 * layers
        self._shared: dict[int, Demand] = {}
        self._linear: dict[int, float] = {}

    def shared(self, tokens: int, routed: Demand) -> Gain:
        """Shared experts beside routed ones, of a step with so many tokens on this rank."""
        if self.settings.shared_expert == "off" or tokens > self.settings.tokens or tokens == 0:
            return Gain()
        if tokens not in self._shared:
            self._shared[tokens] = demand_of(self.rank, "shared_", float(tokens), self.launch_us)
        shared = self._shared[tokens]
        if shared.memory == 0.0:
            return Gain()
        ns, decides = at_once(shared, routed, self.sync_ns, self.settings.core_split)
        return Gain(shared.alone + routed.alone - ns, decides)

    def two_batch(self, tokens: int, routed: Demand, fixed_ns: float) -> Gain:
        """Exchange of one half of a step beside compute of the other.

        Weights are read twice, and exchanges are twice as many. Attention, which covers exchanges too, is left out: the
        gain is that or more.
        """
        if self.settings.two_batch == "off" or tokens < self.settings.two_batch_tokens:
            return Gain()
        whole = self._linear_ns(tokens)
        experts = max(routed.compute, routed.memory)
        halves = 2.0 * self._linear_ns(-(-tokens // 2)) + max(routed.compute, 2.0 * routed.memory)
        exchange = routed.link + fixed_ns
        decides = "compute" if halves >= exchange else "link"
        return Gain(whole + experts + routed.link - max(halves, exchange) - self.sync_ns, decides)

    def _linear_ns(self, tokens: int) -> float:
        if tokens not in self._linear:
            self._linear[tokens] = float(self.rank.linear_ns(np.array(float(tokens))))
        return self._linear[tokens]


def streamed(line: Line, streams: Streams) -> Line:
    """The linear part of a step whose experts divide like everything else, by tokens, with streams."""
    tokens = axis_points(line.bits, MAX_STEP_TOKENS)
    gains = [
        streams.shared(int(n), demand_of(streams.rank, "expert_", n, streams.launch_us)).ns for n in tokens.tolist()
    ]
    return Line(line.bits, np.maximum(line.ns - np.array(gains), 0.0))
