"""How experts can lie on ranks, and what every placement algorithm is given and gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UsageError

I64 = np.ndarray[Any, np.dtype[np.int64]]
F64 = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Layout:
    """Slots of one layer: slot s lies on rank s // slots_per_rank, ranks are dealt to nodes in order.

    experts   of the model (logical)
    slots     experts that there is room for on all ranks together (physical)
    ranks     of the expert-parallel group
    groups    of experts that are routed to together (DeepSeek's node-limited groups); 1: none
    nodes     that the ranks are dealt to
    """

    experts: int
    slots: int
    ranks: int
    groups: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        wrong = self._wrong()
        if wrong:
            raise UsageError(f"{wrong} ({self.experts} experts, {self.slots} slots, {self.ranks} ranks)")

    def _wrong(self) -> str:
        if min(self.experts, self.slots, self.ranks, self.groups, self.nodes) < 1:
            return "experts, slots, ranks, groups and nodes are 1 or more"
        if self.slots % self.ranks:
            return "every rank holds as many experts as the others: change eplb.redundant or the ranks"
        if self.slots < self.experts:
            return "every expert needs a slot"
        return ""

    @property
    def slots_per_rank(self) -> int:
        return self.slots // self.ranks

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes

    @property
    def redundant(self) -> int:
        return self.slots - self.experts

    def first_map(self, layers: int) -> I64:
        """(layers, slots) the map before any placement: expert after expert, then from the first again."""
        return np.tile(np.arange(self.slots, dtype=np.int64) % self.experts, (layers, 1))


@dataclass(frozen=True)
class Placement:
    """What an algorithm decides.

    experts    (layers, slots) the expert in each slot
    replicas   (layers, slots) how many replicas of that expert were made before this one: the order in which
               engines list replicas
    """

    experts: I64
    replicas: I64

    def slots_of(self, layer: int, num_experts: int) -> list[list[int]]:
        """The slots of every expert of a layer, in the order in which the replicas were made."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(num_experts)]
        for slot, (expert, replica) in enumerate(zip(self.experts[layer], self.replicas[layer], strict=True)):
            found[expert].append((int(replica), slot))
        return [[slot for _, slot in sorted(pairs)] for pairs in found]


def placement_of(experts: I64) -> Placement:
    """A map whose replicas are listed by ascending slot."""
    replicas = np.zeros_like(experts)
    for layer, row in enumerate(experts):
        order = np.argsort(row, kind="stable")
        ordered = row[order]
        first = np.searchsorted(ordered, ordered)
        replicas[layer, order] = np.arange(row.size) - first
    return Placement(experts, replicas)


def replica_counts(experts: I64, num_experts: int) -> I64:
    """(layers, num_experts) slots that hold each expert."""
    layers = experts.shape[0]
    counts = np.zeros((layers, num_experts), np.int64)
    np.add.at(counts, (np.arange(layers)[:, None], experts), 1)
    return counts


def check_map(experts: I64, layout: Layout) -> None:
    """UsageError that names the layer when a map leaves an expert without a slot, or names one that is not there."""
    if experts.ndim != 2 or experts.shape[1] != layout.slots:
        raise UsageError(f"a map has {layout.slots} slots a layer, this one has shape {experts.shape}")
    if experts.min() < 0 or experts.max() >= layout.experts:
        raise UsageError(f"a map names experts 0 to {layout.experts - 1}, this one {experts.min()} to {experts.max()}")
    missing = np.argwhere(replica_counts(experts, layout.experts) == 0)
    if missing.size:
        layer, expert = missing[0]
        raise UsageError(f"expert {expert} has no slot in layer {layer} of the map")
