"""Balancers over time: when they record, decide and commit, and the maps that come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..experts import balance, greedy
from ..experts.clocks import AscendClock, SglangClock, VllmClock, Window
from ..experts.layout import F64, I64, Layout, Placement
from ..experts.policies import policy_named
from .recording import Row
from .stream import Observed

GIVEN = frozenset("step dummy phys layer_ready collecting".split())
"""Fields of a row that are not observed but done."""


class _Timeline:
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        self.layout = Layout(p["experts"], p["experts"] + p["redundant"], p["ranks"], p["groups"], p["nodes"])
        self.layers: int = p["layers"]
        self.map = self.layout.first_map(self.layers)
        self.steps = 0

    def recorded(self, row: Row) -> Observed:
        return {name: value for name, value in row.items() if name not in GIVEN}

    def last(self) -> Observed:
        return {"summary": {"steps": self.steps}}


class VllmTimeline(_Timeline):
    ENGINE: ClassVar[str] = "vllm"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.33.0",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "layers experts redundant ranks nodes groups window_size step_interval use_async async_layer_delay".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows)
        p = header["params"]
        self.is_async: bool = p["use_async"]
        self.clock = VllmClock(p["window_size"], p["step_interval"])
        self.window = Window(p["window_size"], self.layers, self.layout.slots)
        self.planned = self.map

    def step(self, row: Row) -> Observed:
        self.steps += 1
        records = self.clock.records
        if records and not row["dummy"]:
            self.window.record(np.array(row["phys"]))
        got: Observed = {"should_record": records}
        if "layer_ready" in row:
            got |= self._commit(row["layer_ready"])
        if self.clock.tick():
            got |= self._decide()
        return got | {"counter": self.clock.counter, "window_pos": self.window.at}

    def _decide(self) -> Observed:
        loads = self.window.by_expert(self.map, self.layout.experts)
        self.planned = policy_named("vllm")(loads, self.layout, self.map).experts
        found: Observed = {"load": loads.sum(0).astype(np.int64).tolist()}
        if self.is_async:
            self.clock.moving = True
            return found | {"async_started": True}
        self.map = self.planned
        return found | {"rearranged": True, "p2l": self.map.tolist()}

    def _commit(self, layer: int) -> Observed:
        self.map = self.map.copy()
        self.map[layer] = self.planned[layer]
        self.clock.moving = layer < self.layers - 1
        return {"layer_committed": layer, "p2l_layer": self.map[layer].tolist()}


class SglangTimeline(_Timeline):
    ENGINE: ClassVar[str] = "sglang"
    VERSIONS: ClassVar[tuple[str, ...]] = ("0.5.23",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "layers experts redundant ranks nodes groups rebalance_num_iterations buffer_size layers_per_chunk "
        "min_utilization_threshold".split()
    )

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        super().__init__(header, rows)
        p = header["params"]
        self.chunk: int = p["layers_per_chunk"] or self.layers
        chunks = -(-self.layers // self.chunk)
        self.clock = SglangClock(p["rebalance_num_iterations"], chunks, p["min_utilization_threshold"])
        self.window = Window(p["buffer_size"], self.layers, self.layout.slots)
        self.planned: I64 = self.map

    def step(self, row: Row) -> Observed:
        self.steps += 1
        of_slots = np.array(row["phys"])
        self.window.record(of_slots)
        even = balance.sglang_balancedness(balance.rank_loads(of_slots, self.layout.ranks))
        got: Observed = {"balancedness": _single(even, row["balancedness"])}
        if self.clock.pending:
            first = self.clock.commit() * self.chunk
            return got | self._update(range(first, min(first + self.chunk, self.layers)))
        if not self.clock.tick(even):
            return got
        loads = self.window.by_expert(self.map, self.layout.experts)
        self.window.clear()
        got["dump"] = {"logical_count_sum": loads.sum(0).astype(np.int64).tolist(), "utilization": None}
        self.planned = self._place(loads).experts
        return got | self._update(range(self.layers)) if self.clock.begin() else got

    def _place(self, loads: F64) -> Placement:
        return greedy.place(loads.sum(0), self.layout, greedy.SGLANG, greedy.is_hierarchical(self.layout))

    def _update(self, layers: range) -> Observed:
        self.map = self.map.copy()
        self.map[list(layers)] = self.planned[list(layers)]
        return {"updated_layers": list(layers), "p2l": self.map.tolist()}


def _single(value: float, recorded: float) -> float:
    """A mean over layers in float32: the order of its sums is the engine's own."""
    return recorded if abs(value - recorded) < 2e-7 else value


class AscendTimeline:
    ENGINE: ClassVar[str] = "vllm_ascend"
    VERSIONS: ClassVar[tuple[str, ...]] = ("main 182b75ea",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "expert_heat_collection_interval algorithm_execution_interval moe_layers".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        intervals = (p["expert_heat_collection_interval"], p["algorithm_execution_interval"])
        self.clock = AscendClock(*intervals, p["moe_layers"])
        self.steps = 0

    def recorded(self, row: Row) -> Observed:
        return {name: value for name, value in row.items() if name not in GIVEN}

    def step(self, row: Row) -> Observed:
        self.steps += 1
        before = self.clock.passes
        acts, layer = self.clock.tick(row["collecting"])
        moved = [] if layer < 0 else [["transfer", layer], "install"]
        after = self.clock.passes
        return {"iter": before, "acts": [*acts, *moved], "cleared": after < before, "iter_after": after}

    def last(self) -> Observed:
        return {"summary": {"steps": self.steps}}
