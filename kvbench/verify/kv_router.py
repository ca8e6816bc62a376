"""Recorded decisions of Dynamo's KV router: what it knows of every worker, the cost of each, and whom it may choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..core.jit import entry
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import block_keys, sequence_keys
from ..routing import kv_aware
from ..routing.policies import verbs_of
from ..routing.router import ENDED, FIRST_TOKEN, IN_FLIGHT, OUTPUT_BLOCK, PENDING_TOKENS, REMOVED, SENT, STORED
from ..routing.settings import RouterSettings
from .content import Asked, request_table
from .recording import Row
from .routers import router_parts
from .stream import Observed
from .xxh3 import xxh3_64


@entry
def _costs(router: Any, seqs: Any, seq: int) -> None:
    kv_aware.costs(router, seqs, np.int64(seq))


@entry
def _decode_blocks(router: Any, engine: int, blocks: int) -> int:
    return kv_aware.decode_blocks(router, np.int64(engine), np.int64(blocks))


class KvRouter:
    """select books a request; the engine breaks ties by chance, so a worker is right if it is among the cheapest."""

    ENGINE: ClassVar[str] = "dynamo (ai-dynamo-runtime)"
    VERSIONS: ClassVar[tuple[str, ...]] = ("1.6.1",)
    PARAMS: ClassVar[frozenset[str]] = frozenset(
        "workers block_size override overlap_score_credit prefill_load_scale router_track_output_blocks".split()
    )
    FIXED: ClassVar[dict[str, Any]] = {"override": {}}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset("select prefill_complete free output_block stored removed".split())

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        p = header["params"]
        self.bt = p["block_size"]
        settings = RouterSettings(
            policy="kv-aware",
            block_tokens=self.bt,
            credit=p.get("overlap_score_credit", 1.0),
            prefill_scale=p.get("prefill_load_scale", 1.0),
        )
        prompts = [row.get("tokens", row.get("prefix", (0,))) for row in rows]
        self.router, self.seqs = router_parts(prompts, [-1] * len(rows), settings, p["workers"])
        self.verbs = verbs_of(settings)
        self.number = {row["id"]: i for i, row in enumerate(rows) if row["op"] == "select"}
        self.where: dict[Any, int] = {}
        self.ops = -1
        self.selects = 0

    def recorded(self, row: Row) -> Observed:
        return row.get("out", {})

    def step(self, row: Row) -> Observed:
        self.ops += 1
        if row["op"] == "select":
            return self._select(row)
        if row["op"] in ("stored", "removed"):
            self._event(row)
        else:
            event = {"prefill_complete": FIRST_TOKEN, "free": ENDED, "output_block": OUTPUT_BLOCK}[row["op"]]
            self._hear(event, self.number[row["id"]], self.where[row["id"]])
        return {}

    def _select(self, row: Row) -> Observed:
        router, seq = self.router, self.ops
        self.selects += 1
        _costs(router, self.seqs, seq)
        prompt = len(row["tokens"])
        before = router.load.copy()
        cost = router.cost.tolist()
        cached = router.cached.copy()
        decode = [int(_decode_blocks(router, e, prompt // self.bt)) for e in range(len(cost))]
        tied = [e for e, c in enumerate(cost) if c == min(cost)]
        chosen = int(self.verbs.route(router, self.seqs, seq, 0))
        worker = row["out"]["worker"] if row["out"]["worker"] in tied and chosen in tied else chosen
        self.where[row["id"]] = worker
        self._hear(SENT, seq, worker)
        return {
            "overlap": (cached // self.bt).tolist(),
            "prefill_tokens": (before[:, PENDING_TOKENS] + np.maximum(prompt - cached, 0)).tolist(),
            "decode_blocks": decode,
            "active": before[:, IN_FLIGHT].tolist(),
            "logit": cost,
            "tied": tied,
            "worker": worker,
            "effective_prefill_tokens": int(router.booked[seq]),
        }

    def _event(self, row: Row) -> None:
        tokens = row["tokens" if row["op"] == "stored" else "prefix"]
        content, blocks = root_hash(np.int64(0)), len(tokens) // self.bt
        last = (0, blocks) if row["op"] == "stored" else (blocks - 1, 1)
        first = row.get("first_block", last[0])
        for i, key in enumerate(sequence_keys(self.router.block_keys, self.ops, blocks)):
            content = chain(content, key)
            if first <= i < first + row.get("blocks", last[1]):
                self._hear(STORED if row["op"] == "stored" else REMOVED, np.int64(content), row["worker"])

    def _hear(self, event: Any, subject: Any, engine: int) -> None:
        self.verbs.hear(self.router, self.seqs, event, subject, engine, 0)

    def last(self) -> Observed:
        return {"summary": {"ops": self.ops + 1, "selects": self.selects}}


class KvRouterHashes:
    """Names of blocks: which blocks there are and which are the same say kvbench's keys, what each is called XXH3."""

    ENGINE: ClassVar[str] = KvRouter.ENGINE
    VERSIONS: ClassVar[tuple[str, ...]] = KvRouter.VERSIONS
    PARAMS: ClassVar[frozenset[str]] = frozenset()
    FIXED: ClassVar[dict[str, Any]] = {}
    OPERATIONS: ClassVar[frozenset[str]] = frozenset(["hash"])
    SEED = 1337

    def __init__(self, header: Row, rows: Sequence[Row]) -> None:
        table = request_table([Asked(row["tokens"]) for row in rows])
        self.keys = {bt: block_keys(table, bt) for bt in {row["block_size"] for row in rows}}
        self.names: dict[tuple[int, int], int] = {}
        self.ops = 0

    def step(self, row: Row) -> Observed:
        bt, names = row["block_size"], []
        for i, key in enumerate(sequence_keys(self.keys[bt], self.ops, len(row["tokens"]) // bt)):
            content = np.array(row["tokens"][bt * i : bt * (i + 1)], "<u4").tobytes()
            names.append(str(self.names.setdefault((bt, int(key)), xxh3_64(content, self.SEED))))
        self.ops += 1
        return {"hashes": names}

    def last(self) -> Observed:
        return {"summary": {"ops": self.ops}}
