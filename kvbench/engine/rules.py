"""The settings of an engine as the numbers that jitted code reads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import UsageError
from ..scheduler.rules import SchedulerRules
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
from .settings import EngineSettings, is_prefill_first


def rules_of(settings: EngineSettings, prefill_first: bool) -> Rules:
    """UsageError: a policy of the other scheduler."""
    s, cache = settings.scheduler, settings.cache
    policies = tuple(ORDERS) if prefill_first else ("fcfs", "priority")
    if s.policy not in policies:
        raise UsageError(f"scheduler.policy {s.policy!r} does not fit; try one of {', '.join(policies)}")
    start = ratio_start(settings)
    least = min(start * s.min_new_token_ratio_factor, 1.0)
    allowed = np.zeros((NUM_STATES, NUM_STATES), np.int64)
    for state, following in TRANSITIONS.items():
        allowed[state, list(following)] = 1
    derived = {
        "prefill_first": prefill_first,
        "static": settings.batching == "static",
        "priority": s.policy == "priority" and not prefill_first,
        "cache_kind": CACHE_KINDS[pool_kind(settings)],
        "allocation": ALLOCATIONS[cache.allocation],
        "keeps": cache.kind != "none",
        "block_tokens": settings.block_tokens,
        "max_model_len": settings.max_model_len,
        "most_running": s.max_running_requests if prefill_first else s.most_admitted,
        "chunked": s.chunked_prefill_size > 0 if prefill_first else s.enable_chunked_prefill,
        "chunk_tokens": s.chunked_prefill_size // settings.block_tokens * settings.block_tokens,
        "enable_mixed_chunk": mixes_chunks(s),
        "watermark_blocks": int(s.watermark * (cache.num_blocks + 1)),
        "order": order_of(s.policy, cache.kind) if prefill_first else 0,
        "ratio_start": start,
        "ratio_min": least,
        "ratio_decay": (start - least) / s.new_token_ratio_decay_steps,
        "retract_by_priority": s.retraction_policy == "priority",
        "beam_width": settings.beam.width,
        "beam_skew": settings.beam.skew,
        "beam_seed": settings.beam.seed % (1 << 63),
        "planted": sum(PLANTED[name] for name in settings.faults),
        "backs_up": tier_rules(settings).moves and not settings.tiers.writes_back,
        "tiered": settings.tiers.on,
        "fence": "no_fence" not in settings.faults,
        "allowed": allowed,
    }
    values = {**vars(cache), **vars(s), **derived}
    return Rules(*(values[name] for name in Rules.fields))


def tier_rules(settings: EngineSettings) -> TierRules:
    """Those of the settings. Copies that nobody loads have a link of their own; a block takes so long, in one piece."""
    if settings.backup_ns_per_block == 0:
        return replace(settings.tiers, ignores_namespace="tiers_ignore_namespace" in settings.faults)
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
