"""Every rule of an engine that is a key of its own, declared once: its default, unit, bounds and one line of meaning.

The jitted schedulers read the numbers among them under the same names (`state.Rules`), the configuration has them as
`scheduler.<name>`, `cache.<name>` and `beam.<name>` (`keys`). Data only.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import rule

# Which requests a step takes first.
TOKEN_BUDGET = "token-budget"
"""vLLM: no phases; running requests first, then waiting ones, out of one token budget."""
PREFILL_FIRST = "prefill-first"
"""SGLang: a step is a prefill batch if one can be formed, else a decode batch."""

DISCIPLINES = (TOKEN_BUDGET, PREFILL_FIRST)
POLICIES = {
    "fcfs": "first come, first served (both disciplines)",
    "priority": "smallest priority value first, then arrival (both disciplines)",
    "lpm": "longest cached prefix first; fcfs when many wait or without a radix tree (prefill-first)",
    "dfs-weight": "depth first through the radix tree, heaviest subtree first; fcfs without one (prefill-first)",
    "lof": "largest declared output first (prefill-first)",
    "hrrn": "highest ratio of tokens computed while it waited to tokens it needs; as lpm otherwise (prefill-first)",
    "shortest-prefill-first": "fewest tokens to compute first; needs a radix tree (prefill-first)",
    "random": "the waiting requests shuffled before each prefill, by `seed` (prefill-first)",
}
EVICTION = {
    "lru": "least recently used (radix leaves; under block hash the free queue as it is)",
    "lfu": "least often inserted",
    "fifo": "oldest",
    "mru": "most recently used",
    "filo": "newest",
    "priority": "least urgent, then least recently used",
    "slru": "least recently used among those inserted once, then the rest",
    "s3fifo": "a small queue filters what is used once, a main one keeps the rest, with ghosts",
    "sieve": "oldest first, but spared once by a hand that goes round if used since it came by",
    "lru-k": "by the last use but one (K = 2); used once only goes first",
    "cost-aware": "least uses x recompute time per block (from the step times) above the cache's age",
    "gdsf": "least uses per block above the cache's age (greedy dual, size, frequency)",
    "tlru": "ends of conversations that cost no turn its TTFT, then least recently used (radix)",
    "random": "each as likely as any other, by `seed`",
}
FREE_ORDERS = ("auto", "tail", "unhashed-first", "append", "sorted-front")


@dataclass(frozen=True)
class SchedulerRules:
    """The rules of both schedulers; each is a configuration key `scheduler.<name>` of the same name.

    Those of the other discipline are ignored. 0 means off where a size is meant; as a key it is *auto* for the sizes
    that the real engines choose by the memory of the device (see `presets.automatic`).
    """

    discipline: str = rule(
        TOKEN_BUDGET,
        "",
        "token-budget: running first, one budget (vLLM); prefill-first: prefill, else decode (SGLang)",
        DISCIPLINES,
    )
    policy: str = rule("fcfs", "", "which waiting request goes first", tuple(POLICIES))

    # token-budget (vLLM)
    max_num_seqs: int = rule(1024, "sequences", "running at most; 0 = by device memory", low=0, key=0)
    max_num_active_seqs: int = rule(0, "sequences", "admitted at most; 0 = max_num_seqs", low=0)
    max_num_batched_tokens: int = rule(8192, "tokens", "budget of a step; 0 = by device memory", low=0, key=0)
    enable_chunked_prefill: bool = rule(True, "", "cut a prompt to what a step has left")
    long_prefill_token_threshold: int = rule(0, "tokens", "most prompt tokens a step; 0 = off", low=0)
    long_prefill_threshold_when_alone: bool = rule(False, "", "the threshold holds for the only request too")
    """0.19: the threshold holds for a lone request too; 0.33: it does not."""
    long_prefill_token_threshold_adaptive: bool = rule(
        False, "", "the threshold is at least a fair share of the budget"
    )
    prefill_schedule_interval: int = rule(1, "steps", "from one that prefills to the next; 1 = any step may", low=1)
    """Steps from one that prefills to the next, unless the queue did not empty; those between are of decodes alone."""
    step_target_ms: float = rule(
        0.0, "ms", "of a step: decodes, then the prompt tokens that fit; 0 = off", low=0, high=1e6
    )
    """See step_target; vllm-ascend's dynamic batch."""
    equal_chunks: bool = rule(False, "", "a chunk deep in a prompt takes no longer than one at its start")
    reserve_full_isl: bool = rule(True, "", "admit only when the whole prompt fits, not just a chunk")
    """The whole input must fit in free blocks at admission, though only a chunk is allocated."""
    watermark: float = rule(0.0, "share", "of the blocks that an admission leaves free", low=0, high=1)
    self_preemption_ends_step: bool = rule(False, "", "a request that preempts itself ends the step's running loop")
    """0.19: the running loop stops when a request preempts itself; 0.33 goes on under policy priority."""

    @property
    def goes_by_time(self) -> bool:
        """Whether the budget of a step is a time too, under token-budget."""
        return self.discipline == TOKEN_BUDGET and (self.step_target_ms > 0 or self.equal_chunks)

    @property
    def most_admitted(self) -> int:
        """Sequences that may run beside each other, under token-budget."""
        return self.max_num_active_seqs or self.max_num_seqs

    # prefill-first (SGLang)
    max_running_requests: int = rule(2048, "sequences", "running at most", low=1)
    max_prefill_tokens: int = rule(16384, "tokens", "new tokens in a prefill step", low=1)
    chunked_prefill_size: int = rule(8192, "tokens", "a step's share of a prompt; 0 = by device memory", low=0, key=0)
    enable_mixed_chunk: bool = rule(False, "", "decode in the step of a chunk")
    schedule_conservativeness: float = rule(1.0, "", "factor on the new-token ratio", low=0)
    init_new_token_ratio: float = rule(0.7, "share", "of declared output reserved at first", low=0, high=1)
    min_new_token_ratio_factor: float = rule(0.14, "share", "of the first ratio that it decays to", low=0, high=1)
    new_token_ratio_decay_steps: int = rule(600, "steps", "of decode until the ratio is lowest", low=1)
    clip_max_new_tokens: int = rule(4096, "tokens", "most output reserved for a request", low=1)
    retract_decode_steps: int = rule(20, "steps", "of decode reserved after a retraction", low=0)
    in_batch_check_threshold: int = rule(32, "tokens", "cached at most to look at other waiters", low=0)
    in_batch_deprioritize_threshold: int = rule(32, "tokens", "shared with a waiter at least to go last", low=0)
    prefill_max_requests: int = rule(0, "requests", "in a prefill batch at most; 0 = no bound", low=0)
    lpm_fallback_waiting: int = rule(128, "requests", "waiting above which lpm is fcfs", low=0)
    ignore_eos: bool = rule(False, "", "admit as if every output ran to its declared length")
    # what SGLang 0.5.23 does otherwise than 0.5.12
    retraction_policy: str = rule(
        "length", "", "who is retracted first: fewest outputs, or least urgent", ("length", "priority")
    )
    drop_ended_each_step: bool = rule(
        False, "", "what ended leaves the running list at every step, not only at a decode"
    )
    full_only_beside_others: bool = rule(
        False, "", "lack of memory closes admission only while somebody runs or was admitted"
    )
    chunks_bound_input: bool = rule(
        False, "", "where prompts are cut, the chunk alone bounds a batch, not max_prefill_tokens too"
    )
    chunk_takes_one_place: bool = rule(
        False, "", "a chunk that goes on counts once among the running, not also by its row"
    )
    mixed_needs_memory: bool = rule(False, "", "decodes join a chunk's step only if they have memory, and wait else")
    stop_when_spent: bool = rule(False, "", "a step whose budget the chunk has spent looks at nobody who waits")
    match_all_but_last: bool = rule(False, "", "the last token does not count as cached in the order")
    ignore_eos_in_full: bool = rule(
        False, "", "under ignore_eos running requests are reserved all that they declared, not the ratio of it"
    )
    ignore_eos_block: bool = rule(False, "", "under ignore_eos without a cache a block more must be free")
    waiting_refresh_interval: int = rule(
        0, "batches", "between touches of what the waiting have cached, under lru; 0 = off", low=0
    )


@dataclass(frozen=True)
class CacheRules:
    """`cache.<name>` keys that an engine needs."""

    kind: str = rule("hash", "", "how prefixes are shared", ("radix", "hash", "none"))
    num_blocks: int = 0
    """Usable blocks."""
    eviction: str = rule(
        "lru",
        "",
        "who leaves first, or FILE.py:FUNCTION, a policy of your own; empty = lru",
        ("", *EVICTION),
        key="",
        kind="choice-or-function",
    )
    """A name of prefix.eviction.policies, or FILE.py:FUNCTION. hash: lru is the order of the free queue."""
    free_order: str = rule(
        "unhashed-first", "", "where freed blocks go; auto = the engine's own", FREE_ORDERS, key="auto"
    )
    """hash/none under vLLM: tail (0.19), unhashed-first (0.33). radix under SGLang: append (token
    allocator, block_tokens 1), sorted-front (paged allocator)."""
    state: str = rule("cold", "", "of the cache when the run starts", ("cold", "warm", "prefilled"))
    """At t = 0: cold, warm, prefilled; see offline.warm."""
    unregister_unwritten: bool = rule(False, "", "a preemption before execution takes back the blocks it registered")
    copy_on_write: bool = rule(
        False, "", "samples, beams and turns fork and share partial blocks, as vLLM v0 (token-budget)"
    )
    """token-budget: samples, beams and turns fork, a shared block is copied when it is written (vLLM v0)."""
    allocation: str = rule(
        "paged",
        "",
        "contiguous: max_model_len each, buddy: next power of two, oracle: final length (token-budget, kind none)",
        ("paged", "contiguous", "buddy", "oracle"),
    )
    """token-budget without a cache: contiguous, buddy, oracle reserve at admission; see scheduler.reservation."""
    block_bytes: int = 0
    """Bytes of a block's KV on one device: what a copy moves."""
    hit_same_step: bool = rule(True, "", "hash: a block can be hit in the step that computes it")
    """hash: a block can be hit in the step that computes it (vLLM); False: from the next step on. A radix tree
    shows a block only when it is computed."""
    # radix (SGLang 0.5.23)
    evict_shortfall: bool = rule(False, "", "radix: evict what is missing, not the whole allocation")
    split_keeps_age: bool = rule(False, "", "radix: both parts of a split node are as old as it was")
    split_at_prompt: bool = rule(False, "", "radix: an output can be evicted without its prompt")
    count_hits_once: bool = rule(False, "", "radix: a request counts a node once, a chunk too (lfu, slru)")
    tlru_threshold: int = rule(0, "tokens", "tlru: that a turn may compute within its TTFT", low=0)
    """tlru: tokens that a turn may compute within its time budget; of these the next prompt needs the estimate."""
    tlru_next_prompt_estimate: int = rule(0, "tokens", "tlru: of these, for the next prompt", low=0)


@dataclass(frozen=True)
class BeamRules:
    """`beam.<name>` keys and `seeds.beam`; they need copy_on_write."""

    width: int = rule(0, "beams", "of every request; it has one result. 0 = off", low=0, high=256)
    skew: float = rule(0.5, "", "a survivor draws its parent of place i as skew ** i", low=0, high=1)
    seed: int = 0
