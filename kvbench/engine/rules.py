"""The settings of an engine as the numbers that jitted code reads."""

from __future__ import annotations

import numpy as np

from ..core.errors import UsageError
from ..scheduler.state import Rules
from ..scheduler.state_columns import (
    ALLOCATIONS,
    CACHE_KINDS,
    NUM_STATES,
    PLANTED,
    TRANSITIONS,
)
from ..scheduler.waiting_order import ORDERS, order_of
from ..tiers.rules import HostLink, LinkRules, TierRules
from .settings import EngineSettings, SchedulerRules, is_prefill_first


def rules_of(settings: EngineSettings, prefill_first: bool) -> Rules:
    """UsageError: a policy of the other scheduler."""
    s = settings.scheduler
    policies = tuple(ORDERS) if prefill_first else ("fcfs", "priority")
    if s.policy not in policies:
        raise UsageError(f"scheduler.policy {s.policy!r} does not fit; try one of {', '.join(policies)}")
    start = ratio_start(settings)
    least = min(start * s.min_new_token_ratio_factor, 1.0)
    allowed = np.zeros((NUM_STATES, NUM_STATES), np.int64)
    for state, following in TRANSITIONS.items():
        allowed[state, list(following)] = 1
    values = {
        "prefill_first": prefill_first,
        "static": settings.batching == "static",
        "priority": s.policy == "priority" and not prefill_first,
        "cache_kind": CACHE_KINDS[pool_kind(settings)],
        "keeps": settings.cache.kind != "none",
        "block_tokens": settings.block_tokens,
        "max_model_len": settings.max_model_len,
        "max_num_seqs": s.max_running_requests if prefill_first else s.most_admitted,
        "max_num_batched_tokens": s.max_num_batched_tokens,
        "chunked": s.chunked_prefill_size > 0 if prefill_first else s.enable_chunked_prefill,
        "long_threshold": s.long_prefill_token_threshold,
        "long_when_alone": s.long_prefill_threshold_when_alone,
        "long_adaptive": s.long_prefill_token_threshold_adaptive,
        "prefill_interval": s.prefill_schedule_interval,
        "reserve_full": s.reserve_full_isl,
        "watermark_blocks": int(s.watermark * (settings.cache.num_blocks + 1)),
        "self_preemption_ends": s.self_preemption_ends_step,
        "unregister_unwritten": settings.cache.unregister_unwritten,
        "hit_same_step": settings.cache.hit_same_step,
        "planted": sum(PLANTED[name] for name in settings.faults),
        "max_prefill_tokens": s.max_prefill_tokens,
        "chunk_tokens": s.chunked_prefill_size // settings.block_tokens * settings.block_tokens,
        "mixed": mixes_chunks(s),
        "order": order_of(s.policy, settings.cache.kind) if prefill_first else 0,
        "ratio_start": start,
        "ratio_min": least,
        "ratio_decay": (start - least) / s.new_token_ratio_decay_steps,
        "clip_tokens": s.clip_max_new_tokens,
        "retract_steps": s.retract_decode_steps,
        "in_batch_check": s.in_batch_check_threshold,
        "in_batch_deprioritize": s.in_batch_deprioritize_threshold,
        "prefill_max": s.prefill_max_requests,
        "lpm_fallback": s.lpm_fallback_waiting,
        "ignore_eos": s.ignore_eos,
        "ignore_eos_in_full": s.ignore_eos_in_full,
        "ignore_eos_block": s.ignore_eos_block,
        "drop_ended_each_step": s.drop_ended_each_step,
        "full_only_beside_others": s.full_only_beside_others,
        "chunks_bound_input": s.chunks_bound_input,
        "chunk_takes_one_place": s.chunk_takes_one_place,
        "mixed_needs_memory": s.mixed_needs_memory,
        "stop_when_spent": s.stop_when_spent,
        "match_all_but_last": s.match_all_but_last,
        "waiting_refresh": s.waiting_refresh_interval,
        "retract_by_priority": s.retraction_policy == "priority",
        "evict_shortfall": settings.cache.evict_shortfall,
        "split_at_prompt": settings.cache.split_at_prompt,
        "count_hits_once": settings.cache.count_hits_once,
        "copy_on_write": settings.cache.copy_on_write,
        "allocation": ALLOCATIONS[settings.cache.allocation],
        "beam_width": settings.beam.width,
        "beam_skew": settings.beam.skew,
        "beam_seed": settings.beam.seed % (1 << 63),
        "block_bytes": settings.cache.block_bytes,
        "backs_up": tier_rules(settings).moves,
        "tiered": settings.tiers.on,
        "fence": "no_fence" not in settings.faults,
        "allowed": allowed,
    }
    return Rules(*(values[name] for name in Rules.fields))


def tier_rules(settings: EngineSettings) -> TierRules:
    """Those of the settings. Copies that nobody loads have a link of their own; a block takes so long, in one piece."""
    if settings.backup_ns_per_block == 0:
        return settings.tiers
    down = LinkRules(fragment_ns=settings.backup_ns_per_block)
    return TierRules(backup=True, block_bytes=settings.cache.block_bytes, host_link=HostLink(down))


def ratio_start(settings: EngineSettings) -> float:
    """SGLang's share of a request's output that is reserved at t = 0."""
    rules = settings.scheduler
    return min(rules.init_new_token_ratio * rules.schedule_conservativeness, 1.0)


def mixes_chunks(rules: SchedulerRules) -> bool:
    """SGLang mixes decodes into the steps of chunks, so without chunks it mixes nothing."""
    return rules.enable_mixed_chunk and rules.chunked_prefill_size > 0


def pool_kind(settings: EngineSettings) -> str:
    """Whose pool it has; SGLang's decode side has a ring, with a tree or without."""
    is_ring = settings.role == "decode" and is_prefill_first(settings) and settings.cache.kind == "none"
    return "radix" if is_ring else settings.cache.kind
