"""vLLM's KV cache manager and scheduler as subjects of recordings.

Written against the public classes of `vllm.v1.core` in 0.19 and 0.33, and run with both. It cannot be run where vLLM is
missing, so tests hold the scripts and the format, on kvbench's own code. One group of full attention, no speculation,
synchronous scheduling; hooks only watch evictions and preemptions.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from ..recording import Row
from .adapting import Open, call
from .scripts import Fields, Script


class _Package:
    """The names that are needed, from where this version has them."""

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        self.interface: Any = import_module("vllm.v1.kv_cache_interface")
        self.utils: Any = import_module("vllm.v1.core.kv_cache_utils")
        self.manager: Any = import_module("vllm.v1.core.kv_cache_manager")
        self.request: Any = import_module("vllm.v1.request")
        self.sampling: Any = import_module("vllm.sampling_params")
        try:
            self.sha256: Any = import_module("vllm.utils.hashing").sha256
        except ImportError:
            self.sha256 = import_module("vllm.utils").sha256
        self.utils.init_none_hash(self.sha256)

    def blocks(self, params: Fields) -> Any:
        """The configuration of one group of full attention."""
        spec = call(
            self.interface.FullAttentionSpec,
            block_size=params["block_size"],
            num_kv_heads=1,
            head_size=1,
            dtype=self.torch.float32,
            use_mla=False,
        )
        group = self.interface.KVCacheGroupSpec(["layer"], spec)
        return call(
            self.interface.KVCacheConfig, num_blocks=params["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[group]
        )

    def new_request(self, spec: Row, params: Fields, arrival: int) -> Any:
        caching = params["enable_prefix_caching"]
        hasher = self.utils.get_request_block_hasher(params["block_size"], self.sha256) if caching else None
        stops = [spec["eos"]] if "eos" in spec else None
        return call(
            self.request.Request,
            request_id=spec["id"],
            prompt_token_ids=list(spec["prompt"]),
            sampling_params=self.sampling.SamplingParams(max_tokens=spec.get("max_tokens", 1), stop_token_ids=stops),
            pooling_params=None,
            eos_token_id=None,
            arrival_time=float(arrival),
            cache_salt=spec.get("salt"),
            priority=spec.get("priority", 0),
            block_hasher=hasher,
        )


class _Pool:
    """What is to be seen of a block pool."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.evicted: list[int] = []
        evict = pool._maybe_evict_cached_block

        def watched(block: Any) -> Any:
            done = evict(block)
            if done:
                self.evicted.append(block.block_id)
            return done

        pool._maybe_evict_cached_block = watched

    def free(self) -> int:
        return int(self.pool.get_num_free_blocks())

    def distinct(self) -> int:
        return len(self.pool.cached_block_hash_to_block)

    def queue(self) -> list[int]:
        return [block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()]

    def drain(self) -> list[int]:
        evicted, self.evicted[:] = list(self.evicted), []
        return evicted


class Tables:
    """The cache manager by itself."""

    def __init__(self, script: Script) -> None:
        self.package, self.params = _Package(), script.header["params"]
        p = self.params
        self.manager = call(
            self.package.manager.KVCacheManager,
            kv_cache_config=self.package.blocks(p),
            max_model_len=p["max_model_len"],
            scheduler_block_size=p["block_size"],
            hash_block_size=p["block_size"],
            enable_caching=p["enable_prefix_caching"],
            log_stats=False,
        )
        self.pool = _Pool(self.manager.block_pool)
        self.requests: dict[str, Any] = {}
        self.looked_up: tuple[Any, int] = (None, 0)
        self.totals: Counter[str] = Counter()

    def step(self, row: Row) -> Fields:
        if row["op"] == "reset_prefix_cache":
            got: Fields = {"ok": bool(self.manager.reset_prefix_cache())}
        else:
            got = getattr(self, f"_{row['op']}")(row)
        evicted = self.pool.drain()
        self.totals.update(ops=1, evict=len(evicted))
        return got | {
            "free": self.pool.free(),
            "cached_hashes": self.pool.distinct(),
            "evicted": evicted,
            "free_queue": self.pool.queue(),
        }

    def _new(self, row: Row) -> Fields:
        request = self.package.new_request(row, self.params, len(self.requests))
        self.requests[row["id"]] = request
        return {"num_hashes": len(request.block_hashes or ())}

    def _append(self, row: Row) -> Fields:
        request = self.requests[row["id"]]
        request.append_output_token_ids(list(row["tokens"]))
        return {"num_hashes": len(request.block_hashes or ())}

    def _get_computed(self, row: Row) -> Fields:
        blocks, tokens = self.manager.get_computed_blocks(self.requests[row["id"]])[:2]
        self.looked_up = (blocks, int(tokens))
        return {"blocks": list(blocks.get_block_ids()[0]), "n": int(tokens)}

    def _allocate(self, row: Row) -> Fields:
        request, size = self.requests[row["id"]], self.params["block_size"]
        hits, tokens = row["n_computed"] // size, row["n_computed"]
        blocks = self.looked_up[0] if tokens else None
        new = self.manager.allocate_slots(request, row["n_new"], tokens, blocks)
        full = hits > 0 and hits == (request.num_tokens - 1) // size
        self.totals.update({"fail": new is None, "hit": new is not None and hits > 0, "full": full})
        if new is None:
            return {"ok": False}
        request.num_computed_tokens += tokens + row["n_new"]
        return {
            "ok": True,
            "new_blocks": list(new.get_block_ids()[0]),
            "all_blocks": list(self.manager.get_block_ids(row["id"])[0]),
        }

    def _free(self, row: Row) -> Fields:
        self.manager.free(self.requests.pop(row["id"]))
        return {}

    def _preempt(self, row: Row) -> Fields:
        request = self.requests[row["id"]]
        self.manager.free(request)
        request.num_computed_tokens = 0
        return {}

    def last(self) -> Fields:
        return {"summary": {name: self.totals[name] for name in ("evict", "hit", "fail", "full", "ops")}}


class Scheduling:
    """The whole scheduler over its cache manager, with a model that emits the tokens of the script."""

    def __init__(self, script: Script) -> None:
        self.package, self.params = _Package(), script.header["params"]
        self.specs: dict[str, Fields] = {r["id"]: r for r in script.header["requests"]}
        self.requests: dict[str, Any] = {}
        self.status: Any = self.package.request.RequestStatus
        self.outputs: Any = import_module("vllm.v1.outputs")
        self.scheduler: Any = self._scheduler()
        self.pool = _Pool(self.scheduler.kv_cache_manager.block_pool)
        self.preempted: list[str] = []
        self._watch_preemptions()
        self.first: dict[str, int] = {}
        self.over: dict[str, tuple[int, str]] = {}
        self.preemptions: Counter[str] = Counter()
        self.cached: dict[str, int] = {}
        self.totals: Counter[str] = Counter()
        self.steps = 0

    def _scheduler(self) -> Any:
        config: Any = import_module("vllm.config")
        p = self.params
        scheduling = call(config.SchedulerConfig, is_encoder_decoder=False, **_of_scheduler(p))
        caching = call(config.CacheConfig, block_size=p["block_size"], enable_prefix_caching=p["enable_prefix_caching"])
        caching.num_gpu_blocks = p["num_blocks"]
        whole = Open(
            scheduler_config=scheduling,
            cache_config=caching,
            parallel_config=config.ParallelConfig(),
            model_config=Open(max_model_len=p["max_model_len"], is_encoder_decoder=False),
            observability_config=Open(),
            # 0.33 asks for these by name
            ec_manager_config=Open(get_encoder_cache_manager_obj=lambda: None),
            aux_output_config=Open(enabled=False),
            num_speculative_tokens=0,
            num_lookahead_tokens=0,
            num_hash_lookahead_tokens=0,
            num_prefill_lookahead_tokens=0,
            max_in_flight_tokens=p["max_num_batched_tokens"],
            max_concurrent_batches=1,
        )
        kind = import_module("vllm.v1.core.sched.scheduler").Scheduler
        return call(
            kind,
            vllm_config=whole,
            kv_cache_config=self.package.blocks(p),
            structured_output_manager=Open(
                should_advance=lambda request: False, accept_tokens=lambda *arguments, **named: True
            ),
            block_size=p["block_size"],
            hash_block_size=p["block_size"],
            log_stats=False,
        )

    def _watch_preemptions(self) -> None:
        preempt = self.scheduler._preempt_request

        def watched(request: Any, *arguments: Any, **named: Any) -> Any:
            self.preempted.append(request.request_id)
            return preempt(request, *arguments, **named)

        self.scheduler._preempt_request = watched

    def step(self, row: Row) -> Fields:
        self.steps += 1
        for name in row.get("arrive", ()):
            request = self.package.new_request(Row(self.specs[name], Path(name), 0), self.params, len(self.requests))
            self.requests[name] = request
            self.scheduler.add_request(request)
        for name in row.get("abort", ()):
            self.scheduler.finish_requests(name, self.status.FINISHED_ABORTED)
            self.over[name] = (row["step"], "abort")
        if self.scheduler.get_num_unfinished_requests() == 0:
            return {"idle": True}
        return self._run(row)

    def _run(self, row: Row) -> Fields:
        self.preempted.clear()
        plan = self.scheduler.schedule()
        rows, new, resumed = self._rows(plan)
        got: Fields = {"sched": rows, "new": new, "resumed": resumed, "preempted": list(self.preempted)}
        got |= {"evicted": self.pool.drain(), "free_sched": self.pool.free()}
        for name in new:
            self.first.setdefault(name, row["step"])
        self.preemptions.update(self.preempted)
        self.totals.update(preempt=len(self.preempted), evict=len(got["evicted"]))
        self.totals["hit"] += sum(name in {*new, *resumed} and start > 0 for name, start, *_ in rows)
        self.cached.update({name: start for name, start, *_ in rows if name in new})
        got["emitted"], got["finished"] = self._run_model(plan, rows, row["step"])
        got |= {"free": self.pool.free(), "cached_hashes": self.pool.distinct()}
        got["running"] = [request.request_id for request in self.scheduler.running]
        got["waiting"] = [request.request_id for request in self.scheduler.waiting]
        return got | ({"free_queue": self.pool.queue()} if "free_queue" in row["out"] else {})

    def _rows(self, plan: Any) -> tuple[list[list[Any]], list[str], list[str]]:
        new = {r.req_id: (r.num_computed_tokens, list(r.block_ids[0])) for r in plan.scheduled_new_reqs}
        old, known = plan.scheduled_cached_reqs, {}
        for name, start, blocks in zip(old.req_ids, old.num_computed_tokens, old.new_block_ids, strict=True):
            known[name] = (start, list(blocks[0]) if blocks else [])
        rows = [[name, *(new | known)[name]] for name in plan.num_scheduled_tokens]
        planned = [[name, int(start), plan.num_scheduled_tokens[name], blocks] for name, start, blocks in rows]
        back = getattr(old, "resumed_req_ids", None)
        if back is None:  # older versions: one flag for each request
            back = {name for name, flag in zip(old.req_ids, old.resumed_from_preemption, strict=True) if flag}
        return planned, [r[0] for r in planned if r[0] in new], [r[0] for r in planned if r[0] in back]

    def _run_model(self, plan: Any, rows: list[list[Any]], step: int) -> tuple[list[str], list[list[str]]]:
        sampled, emitted = [], []
        for name, start, tokens, _ in rows:
            request = self.requests[name]
            complete = start + tokens >= request.num_tokens
            sampled.append([self.specs[name]["output"][request.num_output_tokens]] if complete else [])
            emitted += [name] if complete else []
        names = [name for name, *_ in rows]
        result = call(
            self.outputs.ModelRunnerOutput,
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=sampled,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        finished = []
        for client in self.scheduler.update_from_output(plan, result).values():
            for output in client.outputs:
                if output.finish_reason is not None:
                    reason = str(output.finish_reason)
                    finished.append([output.request_id, reason])
                    self.over[output.request_id] = (step, reason)
        return emitted, finished

    def last(self) -> Fields:
        rows = []
        for name in self.specs:
            finish, reason = self.over.get(name, (None, None))
            request = self.requests.get(name)
            rows.append(
                {
                    "id": name,
                    "first_sched": self.first.get(name),
                    "finish": finish,
                    "reason": reason,
                    "num_cached_tokens": self.cached.get(name, -1),
                    "num_preemptions": self.preemptions[name],
                    "num_output": 0 if request is None else int(request.num_output_tokens),
                }
            )
        return {
            "summary": rows,
            "steps": self.steps,
            "totals": {name: self.totals[name] for name in ("preempt", "evict", "hit")},
        }


def _of_scheduler(params: Fields) -> Fields:
    """Those that belong to the scheduler's configuration."""
    return {n: v for n, v in params.items() if n not in ("block_size", "num_blocks", "enable_prefix_caching")}


def load() -> Any:
    """What makes a subject of a script, or None where this version has no such rules.

    raises  ImportError: vLLM or something that it needs is missing
    """
    import_module("vllm.v1.core.kv_cache_manager")
    config: Any = import_module("vllm.config")
    known = signature(config.SchedulerConfig).parameters

    def make(script: Script) -> Any:
        if script.component == "v1_kv_cache_manager":
            return Tables(script)
        return Scheduling(script) if set(_of_scheduler(script.header["params"])) <= set(known) else None

    return make
