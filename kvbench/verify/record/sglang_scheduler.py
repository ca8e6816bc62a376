"""SGLang's whole scheduler as a subject of recordings: its own methods, with a model that emits the script's tokens.

The loop without overlap: a batch is chosen, run, its results are dealt with. Metrics, logs, sockets and features that
are off stand still.
"""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

from ..recording import Row
from .adapting import GaveUp, Open
from .scripts import Fields, Script
from .sglang_engine import Engine, Quiet

_SILENT = (
    "_abort_on_running_timeout _abort_on_waiting_timeout _mamba_prefix_cache_update _maybe_clear_mm_inputs "
    "_maybe_update_reasoning_tokens _prefetch_kvcache _process_hicache_events log_batch_result_stats "
    "log_decode_stats log_prefill_stats maybe_collect_customized_info maybe_collect_indexer_topk "
    "maybe_collect_routed_experts maybe_send_health_check_signal process_pending_chunked_abort publish_load_snapshot "
    "report_decode_stats report_prefill_stats stream_output update_device_timer"
).split()


class Scheduling:
    """Led step by step: requests arrive, one scheduling decision, its result."""

    def __init__(self, script: Script) -> None:
        self.params: Fields = script.header["params"]
        self.specs: dict[str, Fields] = {r["id"]: r for r in script.header["requests"]}
        self.engine = Engine(self.params, self.params["max_running_requests"])
        self.modules: Any = import_module("sglang.srt.managers.scheduler")
        self.results: Any = import_module("sglang.srt.managers.utils").GenerationBatchResult
        self.requests: dict[str, Any] = {}
        self.retracted: list[str] = []
        self.aborted: list[str] = []
        self.scheduler: Any = self._scheduler()
        self.first: dict[str, int] = {}
        self.over: dict[str, int] = {}
        self.retractions: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.steps = 0

    # ------------------------------------------------------------ the scheduler

    def _scheduler(self) -> Any:
        module, e, p = self.modules, self.engine, self.params
        module.set_schedule_time_batch = module.set_time_batch = lambda *_, **__: None
        module.PrefillStats = Open(from_adder=lambda *_, **__: None)

        class Bare(module.Scheduler):  # type: ignore[misc, name-defined]
            def __init__(self) -> None: ...

            def __getattr__(self, name: str) -> None:
                if name.startswith("__"):
                    raise AttributeError(name)

        for name in _SILENT:
            if hasattr(Bare, name):
                setattr(Bare, name, lambda *_, **__: None)
        for name in ("maybe_prepare_mlp_sync_batch", "_maybe_prepare_ngram_embedding"):
            if hasattr(Bare, name):
                setattr(Bare, name, lambda self, batch, *_, **__: batch)
        s = Bare()
        algorithms: Any = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        own = {
            "server_args": e.arguments,
            "page_size": e.page,
            "tree_cache": e.tree,
            "req_to_token_pool": e.pool,
            "token_to_kv_pool_allocator": e.allocator,
            "waiting_queue": [],
            "running_batch": e.batches.ScheduleBatch(reqs=[], batch_is_full=False),
            "chunked_prefill_size": p["chunked_prefill_size"],
            "is_mixed_chunk": p["chunked_prefill_size"] is not None and p["enable_mixed_chunk"],
            "max_prefill_tokens": p["max_prefill_tokens"],
            "max_running_requests": p["max_running_requests"],
            "spec_algorithm": algorithms.NONE,
            "disaggregation_mode": import_module("sglang.srt.disaggregation.utils").DisaggregationMode.NULL,
            "model_config": Open(
                is_encoder_decoder=False, is_matryoshka=False, hidden_size=8, vocab_size=1 << 20, is_multimodal=False
            ),
            "grammar_manager": Open(has_waiting_grammars=lambda: False, grammar_queue=[]),
            "is_generation": True,
            "enable_overlap": False,
            "enable_priority_scheduling": p["schedule_policy"] == "priority"
            or p.get("retraction_policy") == "priority",
            "pp_size": 1,
            **dict.fromkeys(
                "forward_ct forward_ct_decode num_generated_tokens num_retracted_reqs max_prefill_bs "
                "processed_tokens_counter prefill_decode_interval _prefill_decode_interval_remaining "
                "priority_scheduling_preemption_threshold".split(),
                0,
            ),
        }
        for name, value in own.items():
            setattr(s, name, value)
        policy = "fcfs" if p["schedule_policy"] == "priority" else p["schedule_policy"]
        s.policy = e.policies.SchedulePolicy(policy, e.tree, False, s.enable_priority_scheduling, False)
        s._chunked_req_scheduled_last_iter = False
        s.metrics_collector, s.tp_worker = Quiet(), Quiet()
        (self._newer if e.new else self._older)(s)
        self._watch(s)
        return s

    def _older(self, s: Any) -> None:
        p = self.params
        s.new_token_ratio = s.init_new_token_ratio = p["init_new_token_ratio"]
        s.min_new_token_ratio, s.new_token_ratio_decay = p["min_new_token_ratio"], p["new_token_ratio_decay"]
        s._get_num_pending_tokens = lambda **_: 0
        s.send_to_tokenizer = Open(send_output=self._note_abort)

    def _newer(self, s: Any) -> None:
        """0.5.23: the scheduler's parts are objects of their own."""
        p = self.params
        parts = "sglang.srt.managers.scheduler_components."
        tracker: Any = import_module(parts + "new_token_ratio_tracker").NewTokenRatioTracker
        s.new_token_ratio_tracker = tracker(
            init=p["init_new_token_ratio"],
            min=p["min_new_token_ratio"],
            decay=p["new_token_ratio_decay"],
            current=p["init_new_token_ratio"],
        )
        s.dp_attn_adapter = Open(
            maybe_prepare_mlp_sync_batch=lambda batch, **_: batch, maybe_convert_decode_to_extend=lambda batch: batch
        )
        s.ngram_embedding_manager = Open(prepare_for_forward=lambda batch, **_: batch)
        s.beam_coordinator = Open(
            pending_member_rows=lambda batch: 0, commit_decode=lambda batch: set(), retire_group=lambda request: None
        )
        s.load_inquirer = Open(_get_num_pending_tokens=lambda **_: 0)
        s.metrics_reporter = _Counts()
        s.tp_worker = Open(model_runner=Open(attn_backend=Quiet(), prefill_aware_swa=False))
        s.output_streamer = Quiet()
        s.send_abort_output = self._note_abort
        processor: Any = import_module(parts + "batch_result_processor").SchedulerBatchResultProcessor
        known = {name: getattr(s, name) for name in processor.__dataclass_fields__}
        s.batch_result_processor = processor(**known)

    def _watch(self, s: Any) -> None:
        add = s._add_request_to_queue

        def watched(request: Any, is_retracted: bool = False) -> Any:
            if is_retracted:
                self.retracted.append(request.rid)
            return add(request, is_retracted=is_retracted)

        s._add_request_to_queue = watched
        if not self.engine.new:
            stamped = s._add_request_to_queue

            def with_time(request: Any, is_retracted: bool = False) -> Any:
                request.time_stats.set_wait_queue_entry_time()
                return stamped(request, is_retracted=is_retracted)

            s._add_request_to_queue = with_time

    def _note_abort(self, output: Any, request: Any = None) -> None:
        if type(output).__name__ == "AbortReq" and request is not None:
            self.aborted.append(request.rid)

    # ------------------------------------------------------------ steps

    def step(self, row: Row) -> Fields:
        self.steps += 1
        s = self.scheduler
        for name in row.get("arrive", ()):
            self.requests[name] = self.engine.request(name, self.specs[name], self._ignores_eos(name))
            s._add_request_to_queue(self.requests[name])
        for noted in (self.retracted, self.aborted, self.engine.evicted):
            noted.clear()
        busy = self._is_busy()
        try:
            batch = self._choose()
        except RuntimeError as error:  # an admitted batch found no memory
            raise GaveUp(f"step {row['step']}: {error}") from None
        got = self._run(batch, row["step"]) if batch else self._stand_still()
        s.last_batch = batch or None
        self.totals["evicted"] += sum(self.engine.evicted)
        for name in self.aborted:
            self.over[name] = row["step"]
        got |= {
            "mem": self.engine.sizes(),
            "waiting": [r.rid for r in s.waiting_queue],
            "running": [r.rid for r in s.running_batch.reqs] if batch or busy else [],
            "batch_is_full": bool(s.running_batch.batch_is_full),
            "new_token_ratio": round(self._ratio(), 9),
        }
        return got if busy else {"idle": True} | got

    def _ignores_eos(self, name: str) -> bool:
        return bool(self.specs[name].get("ignore_eos", self.params["ignore_eos"]))

    def _is_busy(self) -> bool:
        s = self.scheduler
        batches = [s.running_batch, *([s.last_batch] if s.last_batch else [])]
        return (
            bool(s.waiting_queue)
            or s.chunked_req is not None
            or any(not r.finished() for batch in batches for r in batch.reqs)
        )

    def _choose(self) -> Any:
        s = self.scheduler
        if not self.engine.new:
            return s.get_next_batch_to_run()
        plan = s.get_next_batch_to_run(running_batch=s.running_batch, last_batch=s.last_batch)
        s.running_batch = plan.running_batch
        return plan.batch_to_run

    def _stand_still(self) -> Fields:
        s = self.scheduler
        is_idle = s.running_batch.is_empty() and s.chunked_req is None and not s.waiting_queue
        if is_idle and (s.last_batch is None or s.last_batch.is_empty()):
            if self.engine.new:
                s.new_token_ratio_tracker.reset()
            else:
                s.new_token_ratio = s.init_new_token_ratio
        return {"mode": None, "evicted_sched": list(self.engine.evicted)}

    def _ratio(self) -> float:
        s = self.scheduler
        return float(s.new_token_ratio_tracker.current if self.engine.new else s.new_token_ratio)

    def _run(self, batch: Any, step: int) -> Fields:
        s = self.scheduler
        rows, mode = self._rows(batch)
        got: Fields = {
            "mode": mode,
            "batch": rows,
            "chunked_req": s.chunked_req.rid if s.chunked_req is not None else None,
            "mem_sched": self.engine.sizes(),
            "evicted_sched": list(self.engine.evicted),
        }
        if self.retracted or self.aborted:
            got |= {"retracted": list(self.retracted), "oom_aborted": list(self.aborted)}
        before = {r.rid: len(r.output_ids) for r in batch.reqs}
        ran = list(batch.reqs)
        self._emit(batch)
        got["emitted"] = [r.rid for r in ran if len(r.output_ids) > before[r.rid]]
        got["finished"] = [r.rid for r in ran if len(r.output_ids) > before[r.rid] and r.finished()]
        for name, *_ in rows:
            self.first.setdefault(name, step)
        self.over.update(dict.fromkeys(got["finished"], step))
        self.retractions.update(self.retracted)
        self.totals.update(
            retract=len(self.retracted),
            prefill_steps=mode != "DECODE",
            decode_steps=mode == "DECODE",
            mixed=mode == "MIXED",
            chunked=got["chunked_req"] is not None,
        )
        return got

    def _rows(self, batch: Any) -> tuple[list[list[Any]], str]:
        if batch.forward_mode.is_decode():
            return [[r.rid, int(n)] for r, n in zip(batch.reqs, batch.seq_lens.tolist(), strict=True)], "DECODE"
        lengths = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, strict=True)
        mode = "MIXED" if batch.forward_mode.is_mixed() else "EXTEND"
        return [[r.rid, int(before), int(new)] for r, before, new in lengths], mode

    def _emit(self, batch: Any) -> None:
        """The model has run."""
        s, torch = self.scheduler, self.engine.torch
        said = [(self.specs[r.rid]["output"], len(r.output_ids)) for r in batch.reqs]
        tokens = torch.tensor([out[n] if n < len(out) else 0 for out, n in said], dtype=torch.int64)
        s.forward_ct += 1
        if self.engine.new:
            s.processed_tokens_counter += batch.extend_num_tokens or 0  # what run_batch counts for hrrn
        else:
            batch.output_ids = tokens
        result = self.results(logits_output=None, next_token_ids=tokens, can_run_cuda_graph=False)
        if not self.engine.new:
            s.process_batch_result(batch, result)
        elif batch.forward_mode.is_decode():
            s.batch_result_processor.process_batch_result_decode(batch, result)
        else:
            s.batch_result_processor.process_batch_result_prefill(batch, result)

    def last(self) -> Fields:
        rows: list[Fields] = [
            {
                "id": name,
                "first_sched": self.first.get(name),
                "finish": self.over.get(name),
                "cached_tokens": int(self.requests[name].cached_tokens) if name in self.requests else 0,
                "retractions": self.retractions[name],
                "num_output": len(self.requests[name].output_ids) if name in self.requests else 0,
            }
            for name in self.specs
        ]
        self.totals["hit"] = sum(row["cached_tokens"] > 0 for row in rows)
        names = ("retract", "evicted", "hit", "prefill_steps", "decode_steps", "mixed", "chunked")
        return {"summary": rows, "steps": self.steps, "totals": {name: self.totals[name] for name in names}}


class _Counts(Quiet):
    """A reporter of metrics with its counters."""

    enable_metrics = False
    forward_ct_decode = 0
    num_generated_tokens = 0
    num_retracted_reqs = 0
