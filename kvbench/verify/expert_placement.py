"""Load balancers of experts: placements by DeepSeek, SGLang and vLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.errors import UsageError
from ..experts import balance, boustrophedon, greedy
from ..experts.layout import I64, Layout, Placement
from ..experts.moves import held
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
