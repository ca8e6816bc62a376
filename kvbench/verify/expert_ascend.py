"""Load balancers of experts: vllm-ascend's policies default, swift and flashlb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..experts import ascend, balance
from ..experts.layout import F64, I64, Layout
from ..experts.moves import ascend_moves, held
from ..experts.policies import Policy, policy_named
from .recording import Row
from .stream import Observed

POLICIES = {"default": "vllm-ascend", "swift": "vllm-ascend-swift", "flashlb": "vllm-ascend-flashlb"}
"""By the name in a recording. `random` is none: it swaps one pair of slots, whatever the loads."""


class AscendPolicies:
    """Each policy starts from the table of its row; in a chain from the one that was accepted, with its memory."""

    ENGINE: ClassVar[str] = "several"
    VERSIONS: ClassVar[tuple[str, ...]] = ("vllm_ascend main 182b75ea (after v0.19.1rc1)",)
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.cases = 0
        self.accepted = np.zeros((0, 0, 0), np.int64)
        self.policies: dict[str, Policy] = {}

    def recorded(self, row: Row) -> Observed:
        return {name: {"table": entry["table"], "plan": _received(entry)} for name, entry in _entries(row)}

    def step(self, row: Row) -> Observed:
        self.cases += 1
        is_next = row["table"] == "previous"
        table = self.accepted if is_next else np.array(row["table"])
        layers, ranks, size = table.shape
        layout, old = Layout(row["experts"], ranks * size, ranks), table.reshape(layers, -1)
        load = _by_expert(np.array(row["work"]), old, layout)
        found: Observed = {}
        for name, entry in _entries(row):
            if not is_next or name not in self.policies:
                self.policies[name] = policy_named(POLICIES[name])
            placed = self.policies[name](load, layout, old).experts
            if name == "flashlb":
                placed = _one_of_equals(placed, np.array(entry["table"]).reshape(layers, -1), load.sum(0), ranks)
            returned = _before_rejection(placed, load.sum(0), layout, old) if name == "default" else placed
            found[name] = {
                "table": returned.reshape(table.shape).tolist(),
                "plan": _plan(old, placed, ranks),
            }
            self.accepted = placed.reshape(table.shape)
        return found

    def last(self) -> Observed:
        return {"summary": {"cases": self.cases}}


def _entries(row: Row) -> list[tuple[str, dict[str, Any]]]:
    return [(entry["policy"], entry) for entry in row["out"] if entry["policy"] in POLICIES]


def _by_expert(work: I64, old: I64, layout: Layout) -> F64:
    """(stages, layers, experts) of loads by slot: (layers, ranks, slots of a rank), or those of several stages."""
    stages = work.reshape(-1, *old.shape)
    load = np.zeros((len(stages), len(old), layout.experts))
    for of_stage, slots in zip(load, stages, strict=True):
        np.add.at(of_stage, (np.arange(len(old))[:, None], old), slots)
    return load


def _one_of_equals(placed: I64, recorded: I64, load: F64, ranks: int) -> I64:
    """Where all loads of a layer are equal an unstable sort chose among maps: as even as the recorded one is enough."""
    found = placed.copy()
    for layer, weights in enumerate(load):
        maps = (placed[layer : layer + 1], recorded[layer : layer + 1])
        even = [balance.balancedness(balance.rank_loads(balance.slot_loads(weights[None], m), ranks)) for m in maps]
        if np.ptp(weights) == 0.0 and even[0] == even[1]:
            found[layer] = recorded[layer]
    return found


def _before_rejection(placed: I64, load: F64, layout: Layout, old: I64) -> I64:
    """The default policy's own tables: those of rejected layers too, whose old map the worker keeps."""
    tables = placed.copy()
    for layer, weights in enumerate(load):
        boxes, before = ascend.proposed(weights, layout), old[layer].reshape(layout.ranks, -1).tolist()
        if any(len(set(box)) < len(box) for box in boxes):
            tables[layer] = np.concatenate(
                [ascend.keep_places(box, rank) for box, rank in zip(boxes, before, strict=True)]
            )
    return tables


def _received(entry: dict[str, Any]) -> list[Observed]:
    return [{rank: sorted(pairs) for rank, pairs in layer["recv"].items()} for layer in entry["plan"]]


def _plan(old: I64, new: I64, ranks: int) -> list[Observed]:
    """What each rank receives from whom, by layer."""
    plan = []
    for before, after in zip(old, new, strict=True):
        received: dict[str, list[list[int]]] = {}
        for move in sorted(ascend_moves(held(before, after, ranks)), key=lambda m: m.target):
            received.setdefault(str(move.target), []).append([move.source, move.expert])
        plan.append({rank: sorted(pairs) for rank, pairs in received.items()})
    return plan
