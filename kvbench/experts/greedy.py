"""The greedy placement of DeepSeek's EPLB, as DeepSeek, SGLang and vLLM run it.

Three steps, each of them heaviest first: groups of experts onto nodes, replicas to the experts with the highest load
per replica, replicas onto ranks. Global placement is the same with one group and one node. The engines differ in the
precision of their sums alone, which decides only between loads that are almost equal. Engines sort unstably; here
equal loads keep the order of their index.

Rows (layers, or layers x nodes) are placed at once: a loop over items, vectors over rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .layout import F64, I64, Layout, Placement

AnyFloat = np.ndarray[Any, np.dtype[np.floating[Any]]]


@dataclass(frozen=True)
class Precision:
    """quotients: type of load / replicas; totals: of what is summed up on a rank. Group loads are summed in float32."""

    quotients: type[np.floating[Any]]
    totals: type[np.floating[Any]]


DEEPSEEK = Precision(np.float32, np.float32)
SGLANG = Precision(np.float32, np.float64)
VLLM = Precision(np.float64, np.float64)


def is_hierarchical(layout: Layout) -> bool:
    """Groups can be dealt to nodes evenly; else placement is global."""
    return layout.groups % layout.nodes == 0


def place(load: I64 | F64, layout: Layout, precision: Precision, hierarchical: bool) -> Placement:
    """Place by load.

    load  (layers, experts) tokens
    raises  UsageError: slots do not divide among nodes, or groups
    """
    groups, nodes = (layout.groups, layout.nodes) if hierarchical else (1, 1)
    if layout.slots % nodes or layout.experts % groups or groups % nodes or layout.ranks % nodes:
        raise UsageError(
            f"{layout.slots} slots and {layout.ranks} ranks on {nodes} nodes, {layout.experts} experts in {groups} "
            "groups: hierarchical placement needs all of them to divide; use a global policy"
        )
    weight = np.asarray(load).astype(np.float32)
    layers = weight.shape[0]
    order = by_node(weight, groups, nodes, precision)  # (layers, experts): experts in the order of their nodes
    of_node = np.take_along_axis(weight, order, 1).reshape(layers * nodes, -1)
    expert, replica, count = replicate(of_node, layout.slots // nodes, precision)
    heat = _quotients(of_node, count, precision)
    rank, position = pack(np.take_along_axis(heat, expert, 1), layout.ranks // nodes, precision)
    slot = rank * layout.slots_per_rank + position
    placed, made = np.empty_like(expert), np.empty_like(replica)
    np.put_along_axis(placed, slot, expert, 1)
    np.put_along_axis(made, slot, replica, 1)
    first = np.arange(nodes, dtype=np.int64) * (layout.experts // nodes)
    placed = (placed.reshape(layers, nodes, -1) + first[:, None]).reshape(layers, -1)
    return Placement(np.take_along_axis(order, placed, 1), made.reshape(layers, -1))


def by_node(weight: AnyFloat, groups: int, nodes: int, precision: Precision, always: bool = False) -> I64:
    """(layers, experts) experts in the order in which their groups lie on nodes. always: see pack."""
    layers, experts = weight.shape
    size = experts // groups
    node, position = pack(weight.reshape(layers, groups, size).sum(-1, dtype=np.float32), nodes, precision, always)
    at = node * (groups // nodes) + position
    order = np.empty((layers, experts), np.int64)
    places = (at[:, :, None] * size + np.arange(size)).reshape(layers, experts)
    np.put_along_axis(order, places, np.broadcast_to(np.arange(experts), order.shape), 1)
    return order


def pack(weight: AnyFloat, packs: int, precision: Precision, always: bool = False) -> tuple[I64, I64]:
    """Items into packs of equally many, heaviest first, each into the lightest that is not full.

    weight   (rows, items)
    always   one item a pack goes by weight too; else it is the identity, whatever the weights
    returns  (pack, position in it) of each item
    """
    rows, items = weight.shape
    size = items // packs
    if size == 1 and not always:
        return np.tile(np.arange(items, dtype=np.int64), (rows, 1)), np.zeros((rows, items), np.int64)
    order = np.argsort(-weight, axis=1, kind="stable")
    every = np.arange(rows)
    totals, filled = np.zeros((rows, packs), precision.totals), np.zeros((rows, packs), np.int64)
    pack, position = np.empty((rows, items), np.int64), np.empty((rows, items), np.int64)
    for i in range(items):
        item = order[:, i]
        to = np.where(filled < size, totals, np.inf).argmin(1)
        pack[every, item], position[every, item] = to, filled[every, to]
        totals[every, to] += weight[every, item].astype(precision.totals)
        filled[every, to] += 1
    return pack, position


def replicate(weight: AnyFloat, slots: int, precision: Precision) -> tuple[I64, I64, I64]:
    """Slots for experts: one each, then one more for whoever has the highest load per replica.

    weight   (rows, experts)
    returns  (expert, number of its replica) of each slot, and (rows, experts) replicas of each expert
    """
    rows, experts = weight.shape
    every = np.arange(rows)
    expert = np.tile(np.arange(slots, dtype=np.int64), (rows, 1))
    replica = np.zeros((rows, slots), np.int64)
    count = np.ones((rows, experts), np.int64)
    for slot in range(experts, slots):
        hottest = _quotients(weight, count, precision).argmax(1)
        expert[:, slot], replica[:, slot] = hottest, count[every, hottest]
        count[every, hottest] += 1
    return expert, replica, count


def _quotients(weight: AnyFloat, count: I64, precision: Precision) -> AnyFloat:
    kind = precision.quotients
    return weight.astype(kind) / count.astype(kind)


def keep_rows(new: Placement, old: I64, layout: Layout) -> Placement:
    """vLLM's step afterwards: an expert that stays on its rank keeps its slot; the rest fill up in order.

    Ranks hold the same experts as before it: it spares copies within a rank only.
    """
    experts, replicas, size = new.experts.copy(), new.replicas.copy(), layout.slots_per_rank
    for layer, first in np.ndindex(experts.shape[0], layout.ranks):
        rows = slice(first * size, (first + 1) * size)
        wanted = list(zip(new.experts[layer, rows].tolist(), new.replicas[layer, rows].tolist(), strict=True))
        kept: list[tuple[int, int] | None] = []
        for expert in old[layer, rows].tolist():
            found = next((pair for pair in wanted if pair[0] == expert), None)
            if found is not None:
                wanted.remove(found)
            kept.append(found)
        filled = [pair if pair is not None else wanted.pop(0) for pair in kept]
        experts[layer, rows] = [expert for expert, _ in filled]
        replicas[layer, rows] = [replica for _, replica in filled]
    return Placement(experts, replicas)


def place_active(
    load: I64 | F64, layout: Layout, active: list[bool], hierarchical: bool
) -> tuple[Placement, list[bool]]:
    """SGLang's placement when ranks are down (elasticity_aware): globally, on those that are up.

    active   by rank
    returns  the placement on the slots of ranks that are up, and which slots of the whole these are
    raises  UsageError: they have no room for all experts
    """
    if all(active):
        return place(load, layout, SGLANG, hierarchical), [True] * layout.slots
    size = layout.slots_per_rank
    left = Layout(layout.experts, size * sum(active), sum(active))
    return place(load, left, SGLANG, hierarchical=False), [up for up in active for _ in range(size)]
