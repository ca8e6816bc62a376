"""SGLang's vectorised placement (`deepseek_vec`): it looks at every step of the window, not at their sum alone.

A replica goes where it lowers the summed maximum of the steps most. Replicas are dealt to ranks heaviest first, one
row from left to right, the next from right to left.
"""

from __future__ import annotations

import numpy as np

from ..core.errors import UsageError
from . import greedy
from .greedy import AnyFloat
from .layout import F64, I64, Layout, Placement

_APART = np.float32(1e-4)
"""Loads are made distinct by as much for each expert before it; a score of the expert with one more replica is not."""


def place(steps: I64 | F64, layout: Layout, hierarchical: bool) -> Placement:
    """Place by the loads of steps.

    steps   (steps, layers, experts) tokens
    raises  UsageError: the redundant experts do not divide among nodes
    """
    groups, nodes = (layout.groups, layout.nodes) if hierarchical else (1, 1)
    if layout.redundant % nodes or layout.experts % groups or groups % nodes or layout.slots % nodes:
        raise UsageError(f"deepseek_vec deals {layout.redundant} redundant experts to {nodes} nodes: they must divide")
    weight = np.asarray(steps).astype(np.float32)
    layers = weight.shape[1]
    order = greedy.by_node(weight.sum(0, dtype=np.float32), groups, nodes, greedy.SGLANG, always=True)
    of_node = np.take_along_axis(weight, order[None], 2)
    expert, replica, count = _replicate(of_node, layout, nodes)
    heat = np.take_along_axis(of_node.sum(0, dtype=np.float32), expert, 1) / np.take_along_axis(count, expert, 1)
    source = _deal(heat.astype(np.float32).reshape(layers, nodes, -1), layout)
    expert, replica = np.take_along_axis(expert, source, 1), np.take_along_axis(replica, source, 1)
    return Placement(np.take_along_axis(order, expert, 1), replica)


def _replicate(weight: AnyFloat, layout: Layout, nodes: int) -> tuple[I64, I64, I64]:
    """As greedy.replicate, for chunks of experts that each have slots of their own.

    weight  (steps, layers, experts)
    """
    steps, layers, experts = weight.shape
    of_chunk, slots = experts // nodes, layout.slots // nodes
    expert = np.empty((layers, nodes, slots), np.int64)
    expert[:, :, :of_chunk] = np.arange(experts).reshape(nodes, -1)
    replica = np.zeros((layers, nodes, slots), np.int64)
    count = np.ones((layers, experts), np.int64)
    distinct = weight + np.arange(experts, dtype=np.float32) * _APART
    first = np.arange(nodes) * of_chunk
    row, chunk = np.arange(layers)[:, None], np.arange(nodes)[None, :]
    for slot in range(of_chunk, slots):
        held = count.astype(np.float32)
        score = (distinct / held).reshape(steps, layers, nodes, of_chunk)
        relieved = (weight / (held + 1)).reshape(steps, layers, nodes, of_chunk)
        hottest = score.argmax(-1)[..., None]
        highest = np.broadcast_to(np.take_along_axis(score, hottest, -1), score.shape).copy()
        np.put_along_axis(score, hottest, np.take_along_axis(relieved, hottest, -1), -1)
        np.put_along_axis(highest, hottest, score.max(-1, keepdims=True), -1)
        chosen = highest.sum(0, dtype=np.float32).argmin(-1) + first
        expert[row, chunk, slot] = chosen
        replica[row, chunk, slot] = count[row, chosen]
        count[row, chosen] += 1
    return expert.reshape(layers, -1), replica.reshape(layers, -1), count


def _deal(heat: AnyFloat, layout: Layout) -> I64:
    """(layers, slots) which replica comes into each slot. heat: (layers, nodes, slots of a node)."""
    layers, nodes, slots = heat.shape
    if layout.slots_per_rank == 1:
        return np.tile(np.arange(nodes * slots, dtype=np.int64), (layers, 1))
    order = np.argsort(-heat, axis=-1, kind="stable") + np.arange(nodes)[:, None] * slots
    rows = order.reshape(layers, nodes, layout.slots_per_rank, -1)
    rows[:, :, 1::2] = rows[:, :, 1::2, ::-1].copy()
    return rows.swapaxes(2, 3).reshape(layers, -1)
