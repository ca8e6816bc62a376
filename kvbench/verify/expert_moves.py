"""Plans of moves of experts between ranks, and the choice of a replica for a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..experts import moves, replica_choice
from ..experts.layout import Layout, placement_of
from .recording import Row
from .stream import Observed

_ASCEND = "vllm_ascend main 182b75ea (after v0.19.1rc1)"


class TransferPlans:
    """Who sends which expert of a layer to whom, under each engine."""

    ENGINE: ClassVar[str] = "several"
    VERSIONS: ClassVar[tuple[str, ...]] = (f"vllm 0.33.0, sglang 0.5.23, {_ASCEND}", "vllm 0.33.0")
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.cases = 0

    def recorded(self, row: Row) -> Observed:
        out = row["out"]
        found = {"vllm": out["vllm"]}
        if "sglang" in out:
            found["sglang"] = _sglang_recorded(out["sglang"])
        if "ascend" in out and "error" not in out["ascend"]:
            found["ascend"] = {"recv": {rank: sorted(p) for rank, p in out["ascend"]["recv"].items() if p}}
        return found

    def step(self, row: Row) -> Observed:
        self.cases += 1
        of = moves.held(row["old"], row["new"], row["ranks"])
        got: Observed = {"vllm": _vllm(of)}
        if "sglang" in row["out"]:
            got["sglang"] = _sglang(of, row["nodes"])
        if "ascend" in row["out"] and "error" not in row["out"]["ascend"]:
            received: dict[str, list[list[int]]] = {}
            for move in moves.ascend_moves(of):
                received.setdefault(str(move.target), []).append([move.source, move.expert])
            got["ascend"] = {"recv": {rank: sorted(pairs) for rank, pairs in received.items()}}
        return got

    def last(self) -> Observed:
        return {"summary": {"cases": self.cases}}


def _vllm(of: moves.Held) -> Observed:
    planned = moves.vllm_moves(of)
    ranks = []
    for rank in range(len(of.old)):
        rows = moves.fill(of, rank)
        ranks.append(
            {
                "unchanged": rows.unchanged,
                "local": rows.local,
                "remote": rows.remote,
                "dup": rows.copied,
                "sends": [[m.expert, m.target] for m in planned if m.source == rank],
                "recvs": [[m.expert, m.source] for m in planned if m.target == rank],
            }
        )
    batches = [[[source, target, experts] for source, target, experts in b] for b in moves.free_batches(planned)]
    return {"experts_sent": len(planned), "ranks": ranks, "batches": batches}


def _sglang(of: moves.Held, nodes: int) -> Observed:
    planned, per_node = moves.sglang_moves(of, nodes), len(of.old) // nodes
    return {
        "experts_sent": len(planned),
        "cross_node": sum(m.source // per_node != m.target // per_node for m in planned),
        "sent": sorted([m.expert, m.source, m.target] for m in planned),
    }


def _sglang_recorded(out: dict[str, Any]) -> Observed:
    sent = [
        [expert, rank, peer]
        for rank, of_rank in enumerate(out["ranks"])
        for batch in of_rank["ops"]
        for kind, expert, peer in batch
        if kind == "s"
    ]
    return {"experts_sent": out["experts_sent"], "cross_node": out["cross_node"], "sent": sorted(sent)}


class ReplicaChoices:
    """Which replica a token goes to, under each engine."""

    ENGINE: ClassVar[str] = "several"
    VERSIONS: ClassVar[tuple[str, ...]] = ("vllm 0.33.0, sglang 0.5.23, vllm_ascend main 182b75ea",)
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        self.cases = 0

    def recorded(self, row: Row) -> Observed:
        out = row["out"]
        sglang = {name: out["sglang"][name] for name in ("static_map", "dynamic_invariant")}
        drawn = out["sglang"]["dynamic_random"]["physical"]
        found: Observed = {"vllm": out["vllm"]["physical"], "load": out["vllm"]["load"], **sglang, "drawn": drawn}
        found |= {f"ascend tp {tp[2:]}": table for tp, table in out["ascend_v1"].items() if tp != "error"}
        return found | {"ascend_v2": out["ascend_v2"]["physical"]}

    def step(self, row: Row) -> Observed:
        self.cases += 1
        layout = Layout(row["experts"], row["physical"], row["ranks"], 1, row["nodes"])
        slots = placement_of(np.array([row["p2l"]])).slots_of(0, layout.experts)
        ids, out = np.array(row["ids"]), row["out"]
        chosen = replica_choice.vllm(slots, ids)
        real = chosen[: out["vllm"]["unpadded_tokens"]]
        draws = np.array(out["sglang"]["dynamic_random"]["draws"])
        got: Observed = {
            "vllm": chosen.tolist(),
            "load": np.bincount(real.ravel(), minlength=layout.slots).tolist(),
            "static_map": replica_choice.sglang_static(slots, layout).tolist(),
            "dynamic_invariant": replica_choice.sglang_rows(slots, ids).tolist(),
            "drawn": replica_choice.sglang_drawn(slots, ids, draws).tolist(),
        }
        for tp in (name for name in out["ascend_v1"] if name != "error"):
            table = replica_choice.ascend_by_rank(slots, layout.ranks, int(tp[2:]))
            got[f"ascend tp {tp[2:]}"] = table.tolist()
        ranks = out["ascend_v2"]["ranks"]
        return got | {"ascend_v2": [replica_choice.ascend_by_row(slots, ids, rank).tolist() for rank in ranks]}

    def last(self) -> Observed:
        return {"summary": {"cases": self.cases}}
