"""Load balancers of experts: placements by DeepSeek, SGLang and vLLM, and by vllm-ascend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.errors import UsageError
from ..experts import ascend, balance, boustrophedon, greedy
from ..experts.layout import F64, I64, Layout, Placement
from ..experts.moves import ascend_moves, held
from .recording import Row
from .stream import Observed

DECIMALS = 6


class Placements:
    """One case a row: loads, and what each algorithm makes of them.

    Engines sort unstably. Where that decided, the recording has the map of a stable sort too, which is compared
    instead; what follows from the other map is not.
    """

    ENGINE: ClassVar[str] = "several"
    VERSIONS: ClassVar[tuple[str, ...]] = ("deepseek-ai/EPLB d52c72d5, sglang 0.5.23, vllm 0.33.0",)
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.cases = 0

    def recorded(self, row: Row) -> Observed:
        return {name: _recorded(row["out"], name) for name in row["out"]}

    def step(self, row: Row) -> Observed:
        self.cases += 1
        layout = Layout(row["experts"], row["physical"], row["ranks"], row["groups"], row["nodes"])
        steps = np.array(row["steps"]) if "steps" in row else np.array(row["load"])[None]
        first = layout.first_map(row["layers"])
        old = first if row["old"] == "initial" else np.array(row["old"])
        if "active" in row:
            return {name: _elastic(row, layout, steps[0], name) for name in row["out"]}
        return {name: _case(row["out"], name, layout, steps, old) for name in row["out"]}

    def last(self) -> Observed:
        return {"summary": {"cases": self.cases}}


def _recorded(out: dict[str, Any], name: str) -> Any:
    """One algorithm's entry with its references followed; `*_stable` in the place of what it replaces."""
    found: dict[str, Any] = dict(out[name])
    while "same_as" in found:
        own = {key: value for key, value in found.items() if key != "same_as"}
        found = {**out[found["same_as"]], **own} if "p2l_stable" not in own else own
    if name.startswith("vllm"):
        found = {key: value for key, value in found.items() if not key.startswith("l2p")}
    stable = {key.removesuffix("_stable"): value for key, value in found.items() if key.endswith("_stable")}
    compared = {key: found[key] for key in ("p2l", "l2p", "bal", "moved", "error") if found.get(key) is not None}
    if "p2l" in stable:
        compared = {key: value for key, value in compared.items() if key == "l2p"}
    return compared | stable


Algorithm = Callable[[Layout, I64, I64], Placement]

ALGORITHMS: dict[str, Algorithm] = {
    "deepseek": lambda lay, steps, old: greedy.place(steps.sum(0), lay, greedy.DEEPSEEK, greedy.is_hierarchical(lay)),
    "sglang.deepseek": lambda lay, steps, old: greedy.place(steps.sum(0), lay, greedy.SGLANG, False),
    "sglang.deepseek_hierarchical": lambda lay, steps, old: greedy.place(steps.sum(0), lay, greedy.SGLANG, True),
    "sglang.deepseek_vec": lambda lay, steps, old: boustrophedon.place(steps, lay, False),
    "sglang.deepseek_vec_hierarchical": lambda lay, steps, old: boustrophedon.place(steps, lay, True),
    "vllm.default": lambda lay, steps, old: greedy.keep_rows(
        greedy.place(steps.sum(0), lay, greedy.VLLM, greedy.is_hierarchical(lay)), old, lay
    ),
    "vllm.default_nopreserve": lambda lay, steps, old: greedy.place(
        steps.sum(0), lay, greedy.VLLM, greedy.is_hierarchical(lay)
    ),
}


def _case(out: dict[str, Any], name: str, layout: Layout, steps: I64, old: I64) -> Observed:
    wanted = _recorded(out, name)
    try:
        placed = ALGORITHMS[name](layout, steps, old)
    except UsageError:
        return {"error": "assert"}
    got: Observed = {"p2l": placed.experts.tolist()}
    if "l2p" in wanted:
        got["l2p"] = [placed.slots_of(layer, layout.experts) for layer in range(placed.experts.shape[0])]
    if "bal" in wanted:
        each = balance.slot_loads(steps.sum(0), placed.experts).astype(np.float32)
        loads = balance.rank_loads(each, layout.ranks)
        measures = {"vllm": balance.balancedness(loads), "sglang": balance.sglang_balancedness(loads)}
        got["bal"] = {kind: _as_recorded(value, wanted["bal"][kind]) for kind, value in measures.items()}
    if "moved" in wanted:
        got["moved"] = _moved(placed.experts, old, layout)
    return got


def _as_recorded(value: float, recorded: float) -> float:
    """The engines sum in float32, in an order of their own: the last decimal may differ."""
    return recorded if abs(value - recorded) < 2 * 10.0**-DECIMALS else round(value, DECIMALS)


def _moved(new: I64, old: I64, layout: Layout) -> Observed:
    pairs = [held(before, after, layout.ranks).needs for before, after in zip(old, new, strict=True)]
    return {
        "recv": [sum(len(needy) for _, _, needy in needs) for needs in pairs],
        "slots": (new != old).sum(1).tolist(),
    }


def _elastic(row: Row, layout: Layout, load: I64, name: str) -> Observed:
    """Slots of ranks that are down have expert 0 in them, and nothing points there."""
    wanted = _recorded(row["out"], name)
    placed, up = greedy.place_active(load, layout, [bool(a) for a in row["active"]], name.endswith("_hierarchical"))
    where = np.flatnonzero(up)
    experts = np.zeros((load.shape[0], layout.slots), np.int64)
    experts[:, where] = placed.experts
    got: Observed = {"p2l": experts.tolist()}
    if "l2p" in wanted:
        layers = range(load.shape[0])
        got["l2p"] = [[where[s].tolist() for s in placed.slots_of(layer, layout.experts)] for layer in layers]
    if "moved" in wanted:
        got["moved"] = _moved(experts, layout.first_map(load.shape[0]), layout)
    return got


class AscendPolicies:
    """vllm-ascend's policies; only `default` is in kvbench. A chain keeps the table that was accepted."""

    ENGINE: ClassVar[str] = "several"
    VERSIONS: ClassVar[tuple[str, ...]] = ("vllm_ascend main 182b75ea (after v0.19.1rc1)",)
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.cases = 0
        self.accepted = np.zeros((0, 0, 0), np.int64)

    def recorded(self, row: Row) -> Observed:
        found = _default_entry(row)
        if found is None:
            return {}
        received = [{rank: sorted(pairs) for rank, pairs in layer["recv"].items()} for layer in found["plan"]]
        return {"table": found["table"], "plan": received}

    def step(self, row: Row) -> Observed:
        self.cases += 1
        if _default_entry(row) is None:
            return {}
        table = self.accepted if row["table"] == "previous" else np.array(row["table"])
        work = np.array(row["work"])
        layers, ranks, size = table.shape
        layout = Layout(row["experts"], ranks * size, ranks)
        old = table.reshape(layers, -1)
        load = np.zeros((layers, layout.experts))
        np.add.at(load, (np.arange(layers)[:, None], old), work.reshape(layers, -1))
        placed = ascend.place(load, layout, old)
        self.accepted = placed.experts.reshape(table.shape)
        return {"table": _as_returned(placed, load, layout, old), "plan": _plan(old, placed.experts, ranks)}

    def last(self) -> Observed:
        return {"summary": {"cases": self.cases}}


def _default_entry(row: Row) -> dict[str, Any] | None:
    return next((entry for entry in row["out"] if entry["policy"] == "default"), None)


def _as_returned(placed: Placement, load: F64, layout: Layout, old: I64) -> list[list[list[int]]]:
    """The policy's own tables: those of rejected layers too, whose old map the worker keeps."""
    tables = placed.experts.reshape(load.shape[0], layout.ranks, -1).tolist()
    for layer, weights in enumerate(load):
        boxes, before = ascend.proposed(weights, layout), old[layer].reshape(layout.ranks, -1).tolist()
        if any(len(set(box)) < len(box) for box in boxes):
            tables[layer] = [ascend.keep_places(box, rank) for box, rank in zip(boxes, before, strict=True)]
    return tables


def _plan(old: I64, new: I64, ranks: int) -> list[Observed]:
    """What each rank receives from whom, by layer."""
    plan = []
    for before, after in zip(old, new, strict=True):
        received: dict[str, list[list[int]]] = {}
        for move in sorted(ascend_moves(held(before, after, ranks)), key=lambda m: m.target):
            received.setdefault(str(move.target), []).append([move.source, move.expert])
        plan.append({rank: sorted(pairs) for rank, pairs in received.items()})
    return plan
