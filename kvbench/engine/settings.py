"""What an engine is told: every rule by name, resolved. `bench` makes one from a configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from ..core.errors import UsageError
from ..scheduler.rules import PREFILL_FIRST, TOKEN_BUDGET, BeamRules, CacheRules, SchedulerRules
from ..tiers.rules import TierRules


@dataclass(frozen=True)
class EngineSettings:
    """Everything but the requests and the cost tables."""

    scheduler: SchedulerRules
    cache: CacheRules
    block_tokens: int = 16
    max_model_len: int = 131072
    beam: BeamRules = field(default_factory=BeamRules)
    batching: str = "continuous"
    """continuous, static (a batch is formed when the engine is empty and runs to its longest member)"""
    overlap: bool = False
    """A step is planned while the one before runs; results come a step late."""
    tokenize_ns_per_request: int = 0
    tokenize_ns_per_token: int = 0
    serial_tokenizer: bool = False
    """One prompt after the other, in the order in which they are sent."""
    detokenize_ns: int = 0
    """Added to the time at which each token is handed out."""
    output_ns_per_token: int = 0
    """The tokens of a step are handed out together, so long after each other for each token; 0 = no such stage."""
    concurrency: int = 0
    """Sequences in flight at most; the rest waits at the client (0 = no cap)."""
    closed_loop: bool = False
    """With a concurrency cap: a request's intended arrival is the moment a place becomes free."""
    record_steps: bool = False
    fast: bool = True
    """Allow the calendar path where the configuration permits it."""
    seed: int = 0
    """Of scheduler.policy random and cache.eviction random."""
    faults: tuple[str, ...] = ()
    """Planted faults by name (state_columns.PLANTED); an engine with one is wrong on purpose."""
    check: bool = False
    """check_integrity after every step, and a shadow of every block (slow)."""
    role: str = "both"
    """both; prefill, decode: one side of a pair, see pairs."""
    fails_with_transfer: bool = True
    """pull, decode: a read that fails ends its request; else its prompt is computed there."""
    reserved_decode_tokens: int = 0
    """push, decode: tokens that stay free for every sequence that decodes or will."""
    preallocated_requests: int = 0
    """push, decode: sequences that may hold memory beside the running ones."""
    poll_interval: int = 1
    """push, decode: queues and transfers are looked at in every so many steps."""
    tiers: TierRules = field(default_factory=TierRules)
    backup_ns_per_block: int = 0
    """Whole blocks are copied to host memory as they are computed, on a queue of its own; 0 = no."""


MOST_CHECKED_BLOCKS = 50_000
"""In check mode: a step of a larger cache would take the better part of a second to check."""
FAULTS_OF_HOSTS = frozenset(
    {
        "load_unheld",
        "write_back_unheld",
        "tiers_ignore_namespace",
        "copy_without_parent",
        "prefix_persisted_in_part",
        "cancelled_load_frees_twice",
    }
)
FAULTS_OF_STORAGE = frozenset(
    {"failed_copy_is_done", "miss_keeps_memory", "short_prefetch_keeps_key", "prefetch_from_wrong_start"}
)
_RECORD_BYTES = {"radix": 370, "hash": 110}
_TIER_RECORD_BYTES = {"lru": 64, "arc": 140}
_OTHER_RECORD_BYTES = 300
"""What a simulated block takes here, at most: by kind of the device's cache, and by eviction policy of a tier."""


def is_prefill_first(settings: EngineSettings) -> bool:
    """Whether prefills go before decodes; a static batch knows neither rule."""
    return settings.scheduler.discipline == PREFILL_FIRST and settings.batching != "static"


def _check_blocks(settings: EngineSettings) -> None:
    """Of all tiers together: more than check mode can look at, or than this machine has memory for their records."""
    tiers = settings.tiers
    named = (
        ("cache.blocks", settings.cache.num_blocks),
        ("tiers.host.blocks", tiers.host_blocks),
        ("tiers.storage.blocks", tiers.store.blocks),
    )
    blocks, largest = sum(n for _, n in named), max(named, key=lambda pair: pair[1])[0]
    if settings.check and blocks > MOST_CHECKED_BLOCKS:
        raise UsageError(
            f"check looks at all blocks after every step, and there are {blocks:,}; lower {largest}: "
            f"{MOST_CHECKED_BLOCKS:,} in all are the most"
        )
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    needed = settings.cache.num_blocks * _RECORD_BYTES.get(settings.cache.kind, _OTHER_RECORD_BYTES)
    for count, policy in ((tiers.host_blocks, tiers.eviction), (tiers.store.blocks, tiers.store.eviction)):
        needed += count * _TIER_RECORD_BYTES.get(policy, _OTHER_RECORD_BYTES)
    if needed > here:
        raise UsageError(
            f"records of {blocks:,} blocks need {needed / 1e9:.0f} GB of this machine's memory, and it "
            f"has {here / 1e9:.0f}; lower {largest}"
        )


def _check_step_target(settings: EngineSettings) -> None:
    """A budget in time cuts prompts as it comes, and stands in the scheduler of paged continuous batching."""
    key = "step_target_ms" if settings.scheduler.step_target_ms > 0 else "equal_chunks"
    if not settings.scheduler.enable_chunked_prefill:
        raise UsageError(f"scheduler.{key} cuts prompts; set scheduler.enable_chunked_prefill = true")
    if settings.cache.copy_on_write or settings.cache.allocation != "paged" or settings.batching == "static":
        raise UsageError(f"scheduler.{key} needs continuous batching, paged memory and cache.copy_on_write = false")
    if settings.scheduler.prefill_schedule_interval > 1:
        raise UsageError(f"scheduler.{key} beside scheduler.prefill_schedule_interval: set one of them")


def check_rules(settings: EngineSettings) -> None:
    """Raise UsageError on rules of memory that do not go together, or not with the scheduler."""
    cache = settings.cache
    is_vllm = settings.scheduler.discipline == TOKEN_BUDGET and settings.batching == "continuous"
    reserves = cache.allocation != "paged"
    _check_blocks(settings)
    if "no_fence" in settings.faults and settings.backup_ns_per_block == 0:
        raise UsageError("faults.no_fence takes away what copies wait for; it needs cache.backup = true")
    for names, of, there_is in (
        (FAULTS_OF_HOSTS, "tiers; set tiers.host.ratio", settings.tiers.on),
        (FAULTS_OF_STORAGE, "storage; set tiers.storage.blocks", settings.tiers.store.blocks > 0),
    ):
        planted = names & {*settings.faults}
        if planted and not there_is:
            raise UsageError(f"faults.{min(planted)} is one of {of}")
    if "free_overlap_slot_twice" in settings.faults and not (settings.overlap and cache.kind == "radix"):
        raise UsageError("faults.free_overlap_slot_twice needs overlap = true and cache.kind = radix")
    if settings.scheduler.policy == "shortest-prefill-first" and cache.kind != "radix":
        raise UsageError("scheduler.policy = shortest-prefill-first needs cache.kind = radix: it asks what is cached")
    if settings.beam.width > 0 and not cache.copy_on_write:
        raise UsageError("beam.width needs cache.copy_on_write = true: beams fork at every step")
    if cache.copy_on_write and (not is_vllm or cache.kind == "radix"):
        raise UsageError(
            "cache.copy_on_write is a rule of vLLM (SGLang shares whole blocks only): it needs continuous batching, "
            "scheduler.discipline = token-budget and cache.kind = hash or none; try --preset vllm"
        )
    if reserves and (not is_vllm or cache.kind != "none" or cache.copy_on_write):
        raise UsageError(
            f"cache.allocation = {cache.allocation} shares no blocks: it needs continuous batching, "
            "scheduler.discipline = token-budget, cache.kind = none and cache.copy_on_write = false"
        )
    if settings.scheduler.prefill_schedule_interval > 1 and (cache.copy_on_write or reserves):
        rule = "cache.copy_on_write" if cache.copy_on_write else f"cache.allocation = {cache.allocation}"
        raise UsageError(f"{rule} holds no prefills back; set scheduler.prefill_schedule_interval = 1")
    if settings.scheduler.goes_by_time:
        _check_step_target(settings)
    if settings.overlap and (cache.copy_on_write or reserves):
        rule = "cache.copy_on_write" if cache.copy_on_write else f"cache.allocation = {cache.allocation}"
        raise UsageError(f"{rule} runs step after step; set overlap = false")
    if cache.allocation == "contiguous" and cache.num_blocks * settings.block_tokens < settings.max_model_len:
        raise UsageError(
            f"cache.allocation = contiguous reserves max_model_len = {settings.max_model_len} tokens and the cache has "
            f"{cache.num_blocks * settings.block_tokens}; lower max_model_len or raise cache.blocks"
        )
