"""The maps that steps read: per layer one version of who holds what, switched as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.errors import KvbenchError
from .layout import I64, Layout, Placement, replica_counts
from .replica_choice import sglang_static

NO_FAULT = "none"


@dataclass
class ExpertTables:
    """What a step looks up, (layers, ...) arrays that are changed row by row.

    experts, replica   (layers, slots) expert of each slot, and its number among the replicas of that expert
    replicas           (layers, experts) slots of each expert
    served             (layers, slots, 2) devices that use the replicas of the slot's expert before it, and with it:
                       for the choice of the nearest
    map_version, table_version   (layers,) decisions that a layer's map, and the tables made of it, belong to
    device_version     (layers, devices) the same of each device's own table
    """

    layout: Layout
    experts: I64
    replica: I64
    replicas: I64
    served: I64
    map_version: I64
    table_version: I64
    device_version: I64
    is_nearest: bool

    def switch(self, layer: int, placement: Placement, version: int, fault: str = NO_FAULT) -> None:
        """A layer's map becomes another one between two steps; a planted fault does half of it."""
        self.experts[layer] = placement.experts[layer]
        self.map_version[layer] = version
        if fault == "half_switched":
            return
        self.replica[layer] = placement.replicas[layer]
        self.replicas[layer] = replica_counts(placement.experts[layer : layer + 1], self.layout.experts)[0]
        if self.is_nearest:
            self.served[layer] = _served(placement, layer, self.layout)
        self.table_version[layer] = version
        self.device_version[layer] = version
        if fault == "replicas_differ":
            self.device_version[layer, self.layout.ranks - 1] = version - 1

    def check(self) -> None:
        """Every layer is read in one version, by every device. KvbenchError that names the layer."""
        if not np.array_equal(self.map_version, self.table_version):
            layer = int(np.flatnonzero(self.map_version != self.table_version)[0])
            raise KvbenchError(
                f"eplb: the map of layer {layer} was read half switched: its slots are of decision "
                f"{self.map_version[layer]}, its replicas of decision {self.table_version[layer]}"
            )
        differ = self.device_version != self.map_version[:, None]
        if differ.any():
            layer, device = np.argwhere(differ)[0]
            raise KvbenchError(
                f"eplb: devices choose replicas differently in layer {layer}: device {device} by decision "
                f"{self.device_version[layer, device]}, the others by decision {self.map_version[layer]}; tokens would "
                "arrive where their expert is not"
            )


def tables_of(placement: Placement, layout: Layout, is_nearest: bool) -> ExpertTables:
    """At t = 0: decision 0."""
    layers = placement.experts.shape[0]
    experts = np.ascontiguousarray(placement.experts)
    served = np.zeros((layers, layout.slots, 2), np.int64)
    if is_nearest:
        served = np.stack([_served(placement, layer, layout) for layer in range(layers)])
    return ExpertTables(
        layout,
        experts.copy(),
        np.ascontiguousarray(placement.replicas).copy(),
        replica_counts(experts, layout.experts),
        served,
        np.zeros(layers, np.int64),
        np.zeros(layers, np.int64),
        np.zeros((layers, layout.ranks), np.int64),
        is_nearest,
    )


def _served(placement: Placement, layer: int, layout: Layout) -> I64:
    """(slots, 2) for pricing.fill_nearest."""
    slots = placement.slots_of(layer, layout.experts)
    table = sglang_static(slots, layout)
    users = np.zeros(layout.slots, np.int64)
    np.add.at(users, table.ravel(), 1)
    found = np.zeros((layout.slots, 2), np.int64)
    for of_expert in slots:
        ends = np.cumsum(users[of_expert])
        found[of_expert, 0] = ends - users[of_expert]
        found[of_expert, 1] = ends
    return found
