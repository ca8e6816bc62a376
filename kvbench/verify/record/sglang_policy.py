"""SGLang's order of the waiting list and its admission as a subject of recordings, request by request."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..recording import Row
from .adapting import Open, call
from .scripts import Fields, Script
from .sglang_engine import Engine

_SEEDED = ("lpm", "dfs-weight", "hrrn", "shortest-prefill-first")


class Policy:
    """One tree that is written to between; no request is ever computed."""

    def __init__(self, script: Script) -> None:
        self.params: Fields = script.header["params"]
        self.engine = Engine(self.params, 1024)
        self.order = self.params["schedule_policy"]
        self.policy = self.engine.policies.SchedulePolicy(self.order, self.engine.tree, False, False, False)
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Fields:
        got: Fields = getattr(self, f"_{row['op']}")(row)
        return got

    def _insert(self, row: Row) -> Fields:
        e = self.engine
        whole = len(row["key"]) // e.page * e.page
        e_slots = self._take(whole)
        key = e.key(row["key"][:whole], row.get("ns"))
        value = e_slots.clone()
        present = int(e.tree.insert(call(e.types.InsertParams, key=key, value=value)).prefix_len)
        if not e.new:  # 0.5.23's tree gives duplicates back by itself
            e.allocator.free(e_slots[:present])
        return {"prefix_len": present, "mem": e.sizes()}

    def _take(self, tokens: int) -> Any:
        e = self.engine
        if tokens == 0:
            return e.torch.empty((0,), dtype=e.torch.int64)
        short = tokens - e.allocator.available_size()
        if short > 0:
            e.tree.evict(call(e.types.EvictParams, num_tokens=tokens if not e.new else short))
        return e.allocator.alloc(tokens)

    def _evict(self, row: Row) -> Fields:
        e = self.engine
        e.evicted.clear()
        e.tree.evict(call(e.types.EvictParams, num_tokens=row["n"]))
        return {"evicted": sum(e.evicted), "mem": e.sizes()}

    def _waiting(self, spec: Row) -> Any:
        made = self.engine.request(spec["id"], spec, self.params.get("ignore_eos", False))
        self.engine.says(made, spec.get("output_so_far", []))
        made.time_stats.set_wait_queue_entry_time()
        made.arrival_processed_tokens = spec.get("arrival_processed", 0)
        return made

    def _calc_priority(self, row: Row) -> Fields:
        names = [spec["id"] for spec in row["waiting"]]
        queue = [self._waiting(spec) for spec in row["waiting"]]
        if self.engine.new:
            self.policy.calc_priority(queue, None, processed_tokens=row.get("processed", 0))
        else:
            self.policy.calc_priority(queue, None)
        got: Fields = {"order": [r.rid for r in queue], "mem": self.engine.sizes()}
        too_many = self.order in ("lpm", "hrrn") and len(names) > 128
        if self.order in _SEEDED and not too_many:
            by_name = {r.rid: self._found(r) for r in queue}
            got["prefix_lens"] = {name: by_name[name] for name in names}
        self.totals.update(calc=1, moved=got["order"] != names)
        return got

    def _found(self, request: Any) -> int:
        return int(request.prefix_len if self.engine.new else len(request.prefix_indices))

    # ------------------------------------------------------------ admission

    def _prefill_adder(self, row: Row) -> Fields:
        e = self.engine
        held = e.allocator.alloc(min(row["held_tokens"], e.allocator.available_size()))
        running = [self._running(i, spec) for i, spec in enumerate(row["running"])]
        got: Fields = {"mem0": e.sizes()}
        adder = call(
            e.policies.PrefillAdder,
            page_size=e.page,
            tree_cache=e.tree,
            token_to_kv_pool_allocator=e.allocator,
            running_batch=Open(reqs=running, batch_size=lambda: len(running)),
            new_token_ratio=row["new_token_ratio"],
            rem_input_tokens=row["rem_input_tokens"],
            rem_chunk_tokens=row["rem_chunk_tokens"],
            num_mixed_decode_tokens=row["num_mixed_decode_tokens"],
            prefill_max_requests=row["prefill_max_requests"],
        )
        got["budget0"] = self._budget(adder)
        got["steps"] = [self._feed(adder, spec) for spec in row["reqs"]]
        got["mem1"] = e.sizes()
        for request in adder.can_run_list:
            if e.new:
                e.tree.unlock(request.lock)
            else:
                e.tree.dec_lock_ref(request.last_node)
        if held is not None and len(held):
            e.allocator.free(held)
        self.totals["adder"] += 1
        return got

    def _running(self, number: int, spec: Row) -> Any:
        filled = {"prompt": [0], "max_tokens": spec["max_tokens"]}
        made = self.engine.request(f"running{number}", filled, self.params.get("ignore_eos", False))
        self.engine.says(made, [0] * spec["num_output"])
        return made

    def _feed(self, adder: Any, spec: Row) -> Fields:
        request = self._waiting(spec)
        request.init_next_round_input(self.engine.tree)
        before = adder.new_chunked_req
        result = adder.add_one_req(request, has_chunked_req=False, truncation_align_size=None)
        added = request in adder.can_run_list
        cut = added and adder.new_chunked_req is request and before is not request
        self.totals.update({"chunked": cut, {"CONTINUE": "cont"}.get(result.name, result.name.lower()): 1})
        tokens = 0
        if added:
            tokens = int(request.extend_len if self.engine.new else request.extend_input_len)
        return {
            "id": spec["id"],
            "prefix_len": self._found(request),
            "added": added,
            "result": result.name,
            "extend_len": tokens if added else None,
            "chunked": bool(cut),
            "budget": self._budget(adder),
        }

    def _budget(self, adder: Any) -> Fields:
        return {
            "rem_total": round(float(adder.rem_total_tokens), 6),
            "cur_rem": int(adder.cur_rem_tokens),
            "rem_input": adder.rem_input_tokens,
            "rem_chunk": adder.rem_chunk_tokens,
        }

    def last(self) -> Fields:
        names = ("calc", "adder", "moved", "chunked", "no_token", "other", "cont")
        return {"summary": {name: self.totals[name] for name in names}}
