"""Small engines and what they are asked, drawn by hypothesis: memory for a request or a few, places, short steps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.presets import PRESETS
from kvbench.scheduler.rules import PREFILL_FIRST, TOKEN_BUDGET, CacheRules, SchedulerRules

from ..reference.engine import Ask
from .workloads import workloads

Case = tuple[list[Ask], EngineSettings]

BLOCK_TOKENS = (1, 3, 4, 16)
CALENDAR_BLOCK_TOKENS = (4, 5, 16)
SGLANG_POLICIES = ("fcfs", "fcfs", "lpm", "dfs-weight", "lof", "priority")
NEWER_POLICIES = ("hrrn", "shortest-prefill-first")
EVICTIONS = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")


@st.composite
def clients(draw: st.DrawFn) -> dict[str, int | bool]:
    """Tokenising, detokenising and the cap on what is in flight."""
    concurrency = draw(st.sampled_from([0, 0, 0, 1, 3]))
    return {
        "tokenize_ns_per_token": draw(st.sampled_from([0, 0, 130])),
        "tokenize_ns_per_request": draw(st.sampled_from([0, 0, 2_000])),
        "serial_tokenizer": draw(st.booleans()),
        "detokenize_ns": draw(st.sampled_from([0, 700])),
        "concurrency": concurrency,
        "closed_loop": concurrency > 0 and draw(st.booleans()),
    }


def _blocks(draw: st.DrawFn, block_tokens: int, asks: list[Ask]) -> int:
    """Usually enough for the largest request, and for some of the others beside it."""
    needs = sorted(ask.num_prompt + ask.max_tokens for ask in asks)
    largest = needs[-1] if draw(st.integers(0, 5)) else needs[len(needs) // 2]
    return -(-(largest + draw(st.integers(1, 100))) // block_tokens) + 1


@st.composite
def vllm(draw: st.DrawFn, version: str, fast: bool) -> Case:
    """The rules of vLLM 0.19 or 0.33, with block hash or without. fast: only such as the calendar path takes."""
    old = version == "0.19"
    asks = draw(workloads())
    block_tokens = draw(st.sampled_from(CALENDAR_BLOCK_TOKENS if fast else BLOCK_TOKENS))
    rules = SchedulerRules(
        discipline=TOKEN_BUDGET,
        policy="fcfs" if fast else draw(st.sampled_from(["fcfs", "priority"])),
        max_num_seqs=draw(st.sampled_from([1, 3, 7, 7] if fast else [1, 3, 8, 64, 64])),
        max_num_batched_tokens=draw(st.sampled_from([7, 32, 64, 256])),
        enable_chunked_prefill=draw(st.sampled_from([True, True, True, False])),
        long_prefill_token_threshold=0 if fast else draw(st.sampled_from([0, 0, 10])),
        long_prefill_threshold_when_alone=old,
        long_prefill_token_threshold_adaptive=not old and draw(st.booleans()),
        max_num_active_seqs=0 if old else draw(st.sampled_from([0, 0, 1, 3])),
        prefill_schedule_interval=1 if old or fast else draw(st.sampled_from([1, 2, 5])),
        reserve_full_isl=draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.0, 0.1])),
        self_preemption_ends_step=old,
    )
    cache = CacheRules(
        kind=draw(st.sampled_from(["hash", "hash", "none"])),
        num_blocks=_blocks(draw, block_tokens, asks),
        free_order="tail" if old else "unhashed-first",
    )
    return asks, EngineSettings(rules, cache, block_tokens, 1000, fast=fast, **draw(clients()))


@st.composite
def by_time(draw: st.DrawFn) -> Case:
    """vLLM's scheduler with a budget in time: from less than a decode alone takes to more than everything."""
    asks, settings = draw(vllm("0.33", fast=False))
    rules = replace(
        settings.scheduler,
        enable_chunked_prefill=True,
        prefill_schedule_interval=1,
        step_target_ms=draw(st.sampled_from([0.0, 0.0015, 0.003, 0.006, 0.05])),
        equal_chunks=draw(st.booleans()),
    )
    return asks, replace(settings, scheduler=rules)


def together(rules: SchedulerRules, most: int) -> SchedulerRules:
    """The same for copy on write, with so many sequences of a request running together."""
    seats = max(rules.max_num_seqs, most)
    return replace(rules, max_num_seqs=seats, max_num_active_seqs=0, prefill_schedule_interval=1)


def newer_rules(section: str) -> dict[str, Any]:
    """What SGLang 0.5.23 does otherwise than 0.5.12."""
    old, new = (PRESETS[f"sglang-{version}"].values for version in ("0.5.12", "0.5.23"))
    changed = {name: value for name, value in new.items() if value != old[name]}
    return {name.partition(".")[2]: value for name, value in changed.items() if name.startswith(section)}


@st.composite
def sglang(draw: st.DrawFn, fast: bool) -> Case:
    """The rules of SGLang 0.5.12 or 0.5.23, with the radix tree or without. fast: such as the calendar path takes."""
    asks = draw(workloads())
    newer = draw(st.booleans())
    kind = draw(st.sampled_from(["radix", "radix", "none"]))
    policies = SGLANG_POLICIES + (NEWER_POLICIES if newer and kind == "radix" else ())
    block_tokens = draw(st.sampled_from(CALENDAR_BLOCK_TOKENS if fast else BLOCK_TOKENS))
    rules = SchedulerRules(
        discipline=PREFILL_FIRST,
        **(newer_rules("scheduler") if newer else {}),
        retraction_policy=draw(st.sampled_from(["length", "priority"])) if newer else "length",
        policy=draw(st.sampled_from(policies)),
        max_running_requests=draw(st.sampled_from([1, 3, 8, 64, 64])),
        max_prefill_tokens=draw(st.sampled_from([20, 100, 16384])),
        chunked_prefill_size=draw(st.sampled_from([0, 16, 24, 64])),
        enable_mixed_chunk=not fast and draw(st.sampled_from([False, False, True])),
        schedule_conservativeness=draw(st.sampled_from([0.02, 0.1, 0.3, 1.0])),
        new_token_ratio_decay_steps=draw(st.sampled_from([3, 600])),
        clip_max_new_tokens=draw(st.sampled_from([2, 4096])),
        retract_decode_steps=draw(st.sampled_from([1, 20])),
        lpm_fallback_waiting=128,
        in_batch_check_threshold=draw(st.sampled_from([0, 32])),
        in_batch_deprioritize_threshold=draw(st.sampled_from([5, 32])),
        ignore_eos=draw(st.sampled_from([False, False, True])),
    )
    cache = CacheRules(
        **(newer_rules("cache") if newer else {}),
        kind=kind,
        num_blocks=_blocks(draw, block_tokens, asks),
        eviction=draw(st.sampled_from((*EVICTIONS, "tlru"))),
        tlru_threshold=40,
        tlru_next_prompt_estimate=draw(st.sampled_from([0, 30])),
        free_order="auto",
    )
    return asks, EngineSettings(rules, cache, block_tokens, 1000, fast=fast, **draw(clients()))
