"""Runs one workload through the engine and through the reference, and compares everything they both know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import NEVER, STATUS_NAMES
from kvbench.core.requests import Requests
from kvbench.costs.axes import Grid, Line, axis_points
from kvbench.costs.tables import CostTables, Overheads, build_tables
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST

from ..reference import overlapped, sglang_admission, timed, vllm_scheduler
from ..reference.arrival import SglangArrival, VllmArrival
from ..reference.engine import Ask, Options, TimedEngine
from ..reference.sglang_memory import OutOfKvMemory
from ..reference.step_target import StepTarget
from .workloads import request_table

COMPARED_TOTALS = (
    "num_steps", "decode_steps", "prefill_steps", "prefill_tokens", "decode_tokens", "matched_tokens",
    "admitted_prompt_tokens", "recomputed_tokens", "preemptions", "evicted_blocks", "used_blocks_peak", "busy_ns",
)  # fmt: skip


@cache
def small_tables() -> CostTables:
    """Steps of some microseconds, of which every token, chunk, context and sequence takes its odd part."""
    tokens, batch, context = axis_points(1, 256), axis_points(0, 64), axis_points(0, 4096)
    grid = np.add.outer
    return build_tables(
        linear=Line(1, 1000.0 + 37.3 * tokens),
        communication=Line(1, 3.1 * tokens),
        head=Line(0, 11.7 * batch),
        prefill=Grid(1, 0, grid(5.5 * tokens, 1.3 * (context - 1.0)), grid(0.0 * tokens, 9.1 * context)),
        decode=Grid(0, 0, grid(29.0 * batch, 2.3 * context), grid(90.0 * batch, 0.7 * context)),
        overheads=Overheads(step_ns=211.0, sequence_ns=5.0, copy_ns_per_byte=0.1),
    )


@cache
def as_lists(tables: CostTables) -> dict[str, Any]:
    """Fields of cost tables without numpy."""
    fields = tables.read()
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in fields.items()}


# ---------------------------------------------------------------- the reference


def judge(settings: EngineSettings) -> VllmArrival | SglangArrival:
    """Who is taken at arrival, and with which lengths."""
    pool, rules = settings.cache.num_blocks * settings.block_tokens, settings.scheduler
    if rules.discipline == PREFILL_FIRST:
        return SglangArrival(pool, settings.max_model_len, settings.block_tokens)
    return VllmArrival(
        pool, settings.max_model_len, None if rules.enable_chunked_prefill else rules.max_num_batched_tokens
    )


def reference_scheduler(settings: EngineSettings, tables: CostTables) -> timed.VllmSteps | timed.SglangSteps:
    if settings.scheduler.discipline == PREFILL_FIRST:
        steps = overlapped.OverlapSglangSteps if settings.overlap else timed.SglangSteps
        return steps(sglang_config(settings))
    steps = overlapped.AsyncVllmSteps if settings.overlap else timed.VllmSteps
    return steps(*vllm_config(settings, tables))


def vllm_config(
    settings: EngineSettings, tables: CostTables
) -> tuple[vllm_scheduler.SchedulerConfig, vllm_scheduler.VersionRules]:
    """The rules of an engine as the reference of vLLM's scheduler names them."""
    rules, cache_rules = settings.scheduler, settings.cache
    config = vllm_scheduler.SchedulerConfig(
        block_size=settings.block_tokens,
        num_blocks=cache_rules.num_blocks + 1,
        max_num_seqs=rules.max_num_seqs,
        max_num_batched_tokens=rules.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        enable_chunked_prefill=rules.enable_chunked_prefill,
        enable_prefix_caching=cache_rules.kind == "hash",
        policy=rules.policy,
        long_prefill_token_threshold=rules.long_prefill_token_threshold,
        scheduler_reserve_full_isl=rules.reserve_full_isl,
        watermark=rules.watermark,
        max_num_active_seqs=rules.max_num_active_seqs or None,
        long_prefill_token_threshold_adaptive=rules.long_prefill_token_threshold_adaptive,
        prefill_schedule_interval=rules.prefill_schedule_interval,
        step_target=_step_target(settings, tables),
    )
    version = vllm_scheduler.VersionRules(
        frees_unhashed_to_front=cache_rules.free_order == "unhashed-first",
        continues_after_self_preemption=not rules.self_preemption_ends_step,
        lone_request_ignores_threshold=not rules.long_prefill_threshold_when_alone,
        has_watermark=True,
    )
    return config, version


def _step_target(settings: EngineSettings, tables: CostTables) -> StepTarget | None:
    rules = settings.scheduler
    if not rules.goes_by_time:
        return None
    whole = rules.max_num_batched_tokens if rules.equal_chunks else 0
    return StepTarget(as_lists(tables), int(rules.step_target_ms * 1e6), whole)


def sglang_config(settings: EngineSettings) -> sglang_admission.SchedulerConfig:
    rules, block_tokens = settings.scheduler, settings.block_tokens
    ratio = min(rules.init_new_token_ratio * rules.schedule_conservativeness, 1.0)
    least = min(ratio * rules.min_new_token_ratio_factor, 1.0)
    return sglang_admission.SchedulerConfig(
        num_kv_tokens=settings.cache.num_blocks * block_tokens,
        page_size=block_tokens,
        max_running_requests=rules.max_running_requests,
        max_prefill_tokens=rules.max_prefill_tokens,
        chunked_prefill_size=rules.chunked_prefill_size // block_tokens * block_tokens or None,
        enable_mixed_chunk=rules.enable_mixed_chunk,
        schedule_policy=rules.policy,
        eviction_policy=settings.cache.eviction,
        disable_radix_cache=settings.cache.kind == "none",
        ignore_eos=rules.ignore_eos,
        init_new_token_ratio=ratio,
        min_new_token_ratio=least,
        new_token_ratio_decay=(ratio - least) / rules.new_token_ratio_decay_steps,
        clip_max_new_tokens=rules.clip_max_new_tokens,
        retract_decode_steps=rules.retract_decode_steps,
        in_batch_check_threshold=rules.in_batch_check_threshold,
        in_batch_deprioritize_threshold=rules.in_batch_deprioritize_threshold,
        is_newer=rules.drop_ended_each_step,
        retraction_policy=rules.retraction_policy,
        tail=max(settings.cache.tlru_threshold - settings.cache.tlru_next_prompt_estimate, 0),
    )


def run_reference(asks: list[Ask], settings: EngineSettings, tables: CostTables) -> TimedEngine:
    scheduler = reference_scheduler(settings, tables)
    kind = overlapped.OverlappedEngine if settings.overlap else TimedEngine
    engine = run_with(kind, scheduler, asks, settings, tables)
    scheduler.check_integrity()
    return engine


def run_with(
    kind: Callable[..., TimedEngine], scheduler: Any, asks: list[Ask], settings: EngineSettings, tables: CostTables
) -> TimedEngine:
    """The same by a given clock around a given scheduler."""
    options = Options(
        num_blocks=settings.cache.num_blocks,
        judge=judge(settings),
        tokenize_ns_per_request=settings.tokenize_ns_per_request,
        tokenize_ns_per_token=settings.tokenize_ns_per_token,
        serial_tokenizer=settings.serial_tokenizer,
        detokenize_ns=settings.detokenize_ns,
        output_ns_per_token=settings.output_ns_per_token,
        concurrency=settings.concurrency,
        closed_loop=settings.closed_loop,
    )
    engine = kind(asks, scheduler, as_lists(tables), options, keeps_steps=settings.record_steps)
    engine.run()
    return engine


# ---------------------------------------------------------------- the comparison


def journal_rows(simulation: Simulation) -> list[dict[str, Any]]:
    """One dict a sequence; what has not happened is None."""
    journal = simulation.journal()
    names = {
        "arrival_ns": "arrival_ns", "queued_ns": "queued_ns", "scheduled_ns": "scheduled_ns",
        "first_token_ns": "first_token_ns", "finish_ns": "finish_ns", "cached_tokens": "cached_tokens",
        "num_generated": "output_tokens", "recomputed_tokens": "recomputed_tokens",
        "num_preemptions": "preemptions",
    }  # fmt: skip
    columns = {name: getattr(journal, column).tolist() for name, column in names.items()}
    rows = []
    for i in range(simulation.num_sequences):
        row = {name: values[i] for name, values in columns.items()}
        for name in row:
            if name.endswith("_ns") and row[name] == NEVER:
                row[name] = None
        rows.append({"request": int(journal.request_index[i]), "state": STATUS_NAMES[journal.status[i]], **row})
    return rows


def gap_counts(simulation: Simulation) -> Counter[int]:
    """Inter-token gap in ns -> tokens that had it."""
    journal = simulation.journal()
    counts: Counter[int] = Counter()
    for gap, count in zip(journal.itl_gap_ns.tolist(), journal.itl_count.tolist(), strict=True):
        counts[gap] += count
    return counts


def free_blocks(simulation: Simulation) -> list[int]:
    """In the order in which they will be taken: what all that was taken and given has led to."""
    pool = simulation.engine.pool.read()
    if simulation.settings.cache.kind == "radix":
        ring, head = pool["ring"], pool["ring_head"]
        return [int(ring[(head + i) % ring.size]) for i in range(pool["num_free"])]
    order, block = [], int(pool["after"][0])
    while block:
        order.append(block)
        block = int(pool["after"][block])
    return order


def keeps_order(settings: EngineSettings) -> bool:
    """Not of pages under SGLang: the engine gives back in one group what ends in one decode step."""
    if settings.scheduler.discipline == PREFILL_FIRST:
        return settings.cache.kind == "radix" and settings.block_tokens == 1
    return True


def assert_equal(simulation: Simulation, reference: TimedEngine) -> None:
    """Every timestamp and token count of every sequence, the gaps, the counters, and each step if kept."""
    for i, got in enumerate(journal_rows(simulation)):
        expected = {name: getattr(reference.rows[i], name) for name in got}
        differing = {name: (got[name], expected[name]) for name in got if got[name] != expected[name]}
        assert not differing, f"sequence {i}: (engine, reference) {differing}"
    assert gap_counts(simulation) == reference.gaps
    counters, totals = asdict(simulation.counters()), asdict(reference.totals)
    assert {n: counters[n] for n in COMPARED_TOTALS} == {n: totals[n] for n in COMPARED_TOTALS}
    assert counters["end_ns"] == reference.now
    assert free_blocks(simulation) == reference.scheduler.free_blocks or not keeps_order(simulation.settings), (
        f"free: {free_blocks(simulation)}, reference {reference.scheduler.free_blocks}"
    )
    if simulation.settings.overlap:
        assert (counters["host_ns"], counters["exposed_host_ns"]) == (reference.host_ns, reference.exposed_ns)
    assert counters["inserted_blocks"] == reference.scheduler.num_inserted
    busy = max(reference.totals.busy_us, 1)
    assert counters["used_blocks_mean"] == reference.totals.used_us / busy
    assert counters["tail_waste_tokens_mean"] == reference.totals.waste_us / busy
    if reference.keeps_steps:
        assert simulation.journal().steps.tolist() == reference.steps


def finish(simulation: Simulation, most_steps: int = 10_000) -> None:
    """Run a small workload to its end, and fail rather than hang."""
    slice_steps = 250
    if not any(simulation.advance(max_steps=slice_steps) for _ in range(most_steps // slice_steps)):
        pytest.fail(f"the engine has not come to an end within {most_steps} steps")
    simulation.run()  # the check at the end
    journal = simulation.journal()
    assert (journal.parts_ns.sum(axis=1) == journal.finish_ns - journal.arrival_ns).all()
    assert (journal.parts_ns >= 0).all()


def compare(asks: list[Ask], settings: EngineSettings, tables: CostTables | None = None) -> Simulation:
    """Run both and compare; returns the engine's run."""
    return compare_table(request_table(asks), asks, settings, tables or small_tables())


def compare_table(requests: Requests, asks: list[Ask], settings: EngineSettings, tables: CostTables) -> Simulation:
    """As compare, for a table that is there already.

    Over-admission with mixed chunks runs out of memory in the middle of a step: the reference raises, and the
    engine's own check must say the same.
    """
    simulation = Simulation(requests, settings, tables)
    try:
        reference = run_reference(asks, settings, tables)
    except OutOfKvMemory:
        with pytest.raises(KvbenchError, match="did not get the blocks"):
            finish(simulation)
        return simulation
    finish(simulation)
    assert_equal(simulation, reference)
    return simulation
