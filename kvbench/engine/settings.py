"""What an engine is told: every rule by name, resolved. `bench` makes one from a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.errors import UsageError
from ..tiers.rules import TierRules

# Which requests a step takes first.
TOKEN_BUDGET = "token-budget"
"""vLLM: no phases; running requests first, then waiting ones, out of one token budget."""
PREFILL_FIRST = "prefill-first"
"""SGLang: a step is a prefill batch if one can be formed, else a decode batch."""


@dataclass(frozen=True)
class SchedulerRules:
    """The rules of both schedulers; each is a configuration key `scheduler.<name>` of the same name.

    Those of the other discipline are ignored. 0 means off where a size is meant.
    """

    discipline: str = TOKEN_BUDGET
    policy: str = "fcfs"
    """token-budget: fcfs, priority. prefill-first: see scheduler.waiting_order."""

    # token-budget (vLLM)
    max_num_seqs: int = 1024
    max_num_active_seqs: int = 0
    """Admitted to run at most; 0 = max_num_seqs."""
    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_threshold_when_alone: bool = True
    """0.19: the threshold holds for a lone request too; 0.33: it does not."""
    long_prefill_token_threshold_adaptive: bool = False
    """The threshold is at least the budget's fair share of all who wait or run."""
    prefill_schedule_interval: int = 1
    """Steps from one that prefills to the next, unless the queue did not empty; those between are of decodes alone."""
    reserve_full_isl: bool = True
    """The whole input must fit in free blocks at admission, though only a chunk is allocated."""
    watermark: float = 0.0
    """Share of the blocks that an admission must leave free."""
    self_preemption_ends_step: bool = True
    """0.19: the running loop stops when a request preempts itself; 0.33 goes on under policy priority."""

    @property
    def most_admitted(self) -> int:
        return self.max_num_active_seqs or self.max_num_seqs

    # prefill-first (SGLang)
    max_running_requests: int = 2048
    max_prefill_tokens: int = 16384
    chunked_prefill_size: int = 8192
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    clip_max_new_tokens: int = 4096
    retract_decode_steps: int = 20
    in_batch_check_threshold: int = 32
    in_batch_deprioritize_threshold: int = 32
    prefill_max_requests: int = 0
    """Requests in a prefill batch at most; 0 = no bound."""
    lpm_fallback_waiting: int = 128
    """lpm falls back to fcfs with more requests waiting than this."""
    ignore_eos: bool = False
    # What SGLang 0.5.23 does otherwise than 0.5.12; see scheduler.keys.
    retraction_policy: str = "length"
    drop_ended_each_step: bool = False
    full_only_beside_others: bool = False
    chunks_bound_input: bool = False
    chunk_takes_one_place: bool = False
    mixed_needs_memory: bool = False
    stop_when_spent: bool = False
    match_all_but_last: bool = False
    ignore_eos_in_full: bool = False
    ignore_eos_block: bool = False
    waiting_refresh_interval: int = 0


@dataclass(frozen=True)
class CacheRules:
    """`cache.<name>` keys that an engine needs."""

    kind: str = "hash"
    """radix, hash, none"""
    num_blocks: int = 0
    """Usable blocks."""
    eviction: str = "lru"
    """A name of prefix.eviction.policies, or FILE.py:FUNCTION. hash: lru is the order of the free queue."""
    free_order: str = "unhashed-first"
    """hash/none under vLLM: tail (0.19), unhashed-first (0.33). radix under SGLang: append (token
    allocator, block_tokens 1), sorted-front (paged allocator)."""
    state: str = "cold"
    """At t = 0: cold, warm, prefilled; see offline.warm."""
    unregister_unwritten: bool = False
    """A preemption takes back registrations of blocks that were never computed (vLLM leaves them)."""
    copy_on_write: bool = False
    """token-budget: samples, beams and turns fork, a shared block is copied when it is written (vLLM v0)."""
    allocation: str = "paged"
    """token-budget without a cache: contiguous, buddy, oracle reserve at admission; see scheduler.reservation."""
    block_bytes: int = 0
    """Bytes of a block's KV on one device: what a copy moves."""
    hit_same_step: bool = True
    """hash: a block can be hit in the step that computes it (vLLM); False: from the next step on. A radix tree
    shows a block only when it is computed."""
    # radix (SGLang 0.5.23); see scheduler.keys
    evict_shortfall: bool = False
    split_keeps_age: bool = False
    split_at_prompt: bool = False
    count_hits_once: bool = False
    tlru_threshold: int = 0
    """tlru: tokens that a turn may compute within its time budget; of these the next prompt needs the estimate."""
    tlru_next_prompt_estimate: int = 0


@dataclass(frozen=True)
class BeamRules:
    """`beam.<name>` keys and `seeds.beam`; they need copy_on_write."""

    width: int = 0
    """Beams of every request; 0 = off."""
    skew: float = 0.5
    """A survivor draws its parent of place i with weight skew ** i."""
    seed: int = 0


@dataclass(frozen=True)
class EngineSettings:
    """Everything but the requests and the cost tables."""

    scheduler: SchedulerRules
    cache: CacheRules
    block_tokens: int = 16
    max_model_len: int = 131072
    beam: BeamRules = BeamRules()
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


def is_prefill_first(settings: EngineSettings) -> bool:
    """Whether prefills go before decodes; a static batch knows neither rule."""
    return settings.scheduler.discipline == PREFILL_FIRST and settings.batching != "static"


def check_rules(settings: EngineSettings) -> None:
    """Raise UsageError on rules of memory that do not go together, or not with the scheduler."""
    cache = settings.cache
    is_vllm = settings.scheduler.discipline == TOKEN_BUDGET and settings.batching == "continuous"
    reserves = cache.allocation != "paged"
    if settings.check and cache.num_blocks > MOST_CHECKED_BLOCKS:
        raise UsageError(
            f"check looks at all blocks after every step, and there are {cache.num_blocks:,}; "
            f"set cache.blocks to {MOST_CHECKED_BLOCKS:,} or less"
        )
    if "no_fence" in settings.faults and settings.backup_ns_per_block == 0:
        raise UsageError("faults.no_fence takes away what copies wait for; it needs cache.backup = true")
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
    if settings.overlap and (cache.copy_on_write or reserves):
        rule = "cache.copy_on_write" if cache.copy_on_write else f"cache.allocation = {cache.allocation}"
        raise UsageError(f"{rule} runs step after step; set overlap = false")
    if cache.allocation == "contiguous" and cache.num_blocks * settings.block_tokens < settings.max_model_len:
        raise UsageError(
            f"cache.allocation = contiguous reserves max_model_len = {settings.max_model_len} tokens and the cache has "
            f"{cache.num_blocks * settings.block_tokens}; lower max_model_len or raise cache.blocks"
        )
