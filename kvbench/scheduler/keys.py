"""The keys of `[scheduler]` and `[cache]`: every rule that a preset sets is a key of its own. Data only.

`scheduler.<name>` is the field of the same name in the engine's SchedulerRules; a test holds the two
together. Rules of the other discipline are ignored by an engine. 0 means *auto* for the sizes that the real
engines choose by the memory of the device (see `presets.automatic`), and off for the others.
"""

from __future__ import annotations

from ..core.keys import Key

DISCIPLINES = ("token-budget", "prefill-first")
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

SCHEDULER_KEYS: tuple[Key, ...] = (
    Key(
        "scheduler.discipline",
        "choice",
        "token-budget",
        "",
        "token-budget: running first, one budget (vLLM); prefill-first: prefill, else decode (SGLang)",
        DISCIPLINES,
    ),
    Key("scheduler.policy", "choice", "fcfs", "", "which waiting request goes first", tuple(POLICIES)),
    # token-budget
    Key("scheduler.max_num_seqs", "int", 0, "sequences", "running at most; 0 = by device memory", low=0),
    Key("scheduler.max_num_active_seqs", "int", 0, "sequences", "admitted at most; 0 = max_num_seqs", low=0),
    Key(
        "scheduler.max_num_batched_tokens",
        "int",
        0,
        "tokens",
        "budget of a step; 0 = by device memory",
        low=0,
    ),
    Key("scheduler.enable_chunked_prefill", "bool", True, "", "cut a prompt to what a step has left"),
    Key(
        "scheduler.long_prefill_token_threshold",
        "int",
        0,
        "tokens",
        "most prompt tokens a step; 0 = off",
        low=0,
    ),
    Key(
        "scheduler.long_prefill_threshold_when_alone",
        "bool",
        False,
        "",
        "the threshold holds for the only request too",
    ),
    Key(
        "scheduler.long_prefill_token_threshold_adaptive",
        "bool",
        False,
        "",
        "the threshold is at least a fair share of the budget",
    ),
    Key(
        "scheduler.prefill_schedule_interval",
        "int",
        1,
        "steps",
        "from one that prefills to the next; 1 = any step may",
        low=1,
    ),
    Key(
        "scheduler.reserve_full_isl",
        "bool",
        True,
        "",
        "admit only when the whole prompt fits, not just a chunk",
    ),
    Key(
        "scheduler.watermark",
        "float",
        0.0,
        "share",
        "of the blocks that an admission leaves free",
        low=0,
        high=1,
    ),
    Key(
        "scheduler.self_preemption_ends_step",
        "bool",
        False,
        "",
        "a request that preempts itself ends the step's running loop",
    ),
    # prefill-first
    Key("scheduler.max_running_requests", "int", 2048, "sequences", "running at most", low=1),
    Key("scheduler.max_prefill_tokens", "int", 16384, "tokens", "new tokens in a prefill step", low=1),
    Key(
        "scheduler.chunked_prefill_size",
        "int",
        0,
        "tokens",
        "a step's share of a prompt; 0 = by device memory",
        low=0,
    ),
    Key("scheduler.enable_mixed_chunk", "bool", False, "", "decode in the step of a chunk"),
    Key("scheduler.schedule_conservativeness", "float", 1.0, "", "factor on the new-token ratio", low=0),
    Key(
        "scheduler.init_new_token_ratio",
        "float",
        0.7,
        "share",
        "of declared output reserved at first",
        low=0,
        high=1,
    ),
    Key(
        "scheduler.min_new_token_ratio_factor",
        "float",
        0.14,
        "share",
        "of the first ratio that it decays to",
        low=0,
        high=1,
    ),
    Key(
        "scheduler.new_token_ratio_decay_steps",
        "int",
        600,
        "steps",
        "of decode until the ratio is lowest",
        low=1,
    ),
    Key("scheduler.clip_max_new_tokens", "int", 4096, "tokens", "most output reserved for a request", low=1),
    Key("scheduler.retract_decode_steps", "int", 20, "steps", "of decode reserved after a retraction", low=0),
    Key(
        "scheduler.in_batch_check_threshold",
        "int",
        32,
        "tokens",
        "cached at most to look at other waiters",
        low=0,
    ),
    Key(
        "scheduler.in_batch_deprioritize_threshold",
        "int",
        32,
        "tokens",
        "shared with a waiter at least to go last",
        low=0,
    ),
    Key("scheduler.prefill_max_requests", "int", 0, "requests", "in a prefill batch at most; 0 = no bound", low=0),
    Key("scheduler.lpm_fallback_waiting", "int", 128, "requests", "waiting above which lpm is fcfs", low=0),
    Key("scheduler.ignore_eos", "bool", False, "", "admit as if every output ran to its declared length"),
    Key(
        "scheduler.ignore_eos_in_full",
        "bool",
        False,
        "",
        "under ignore_eos running requests are reserved all that they declared, not the ratio of it",
    ),
    Key("scheduler.ignore_eos_block", "bool", False, "", "under ignore_eos without a cache a block more must be free"),
    Key(
        "scheduler.retraction_policy",
        "choice",
        "length",
        "",
        "who is retracted first: fewest outputs, or least urgent",
        ("length", "priority"),
    ),
    Key(
        "scheduler.drop_ended_each_step",
        "bool",
        False,
        "",
        "what ended leaves the running list at every step, not only at a decode",
    ),
    Key(
        "scheduler.full_only_beside_others",
        "bool",
        False,
        "",
        "lack of memory closes admission only while somebody runs or was admitted",
    ),
    Key(
        "scheduler.chunks_bound_input",
        "bool",
        False,
        "",
        "where prompts are cut, the chunk alone bounds a batch, not max_prefill_tokens too",
    ),
    Key(
        "scheduler.chunk_takes_one_place",
        "bool",
        False,
        "",
        "a chunk that goes on counts once among the running, not also by its row",
    ),
    Key(
        "scheduler.mixed_needs_memory",
        "bool",
        False,
        "",
        "decodes join a chunk's step only if they have memory, and wait else",
    ),
    Key(
        "scheduler.stop_when_spent",
        "bool",
        False,
        "",
        "a step whose budget the chunk has spent looks at nobody who waits",
    ),
    Key("scheduler.match_all_but_last", "bool", False, "", "the last token does not count as cached in the order"),
    Key(
        "scheduler.waiting_refresh_interval",
        "int",
        0,
        "batches",
        "between touches of what the waiting have cached, under lru; 0 = off",
        low=0,
    ),
)

CACHE_KEYS: tuple[Key, ...] = (
    Key("cache.kind", "choice", "hash", "", "how prefixes are shared", ("radix", "hash", "none")),
    Key("cache.blocks", "int", 0, "blocks", "usable; 0 = what the memory budget leaves", low=0),
    Key(
        "cache.memory_utilization",
        "float",
        0.9,
        "share",
        "of device memory for weights and KV",
        low=0.01,
        high=1,
    ),
    Key(
        "cache.eviction",
        "choice-or-function",
        "",
        "",
        "who leaves first, or FILE.py:FUNCTION, a policy of your own; empty = lru",
        ("", *EVICTION),
    ),
    Key("cache.state", "choice", "cold", "", "of the cache when the run starts", ("cold", "warm", "prefilled")),
    Key(
        "cache.free_order",
        "choice",
        "auto",
        "",
        "where freed blocks go; auto = the engine's own",
        FREE_ORDERS,
    ),
    Key(
        "cache.unregister_unwritten",
        "bool",
        False,
        "",
        "a preemption before execution takes back the blocks it registered",
    ),
    Key("cache.backup", "bool", False, "", "copy computed blocks to host memory, on a queue of its own"),
    Key(
        "cache.copy_on_write",
        "bool",
        False,
        "",
        "samples, beams and turns fork and share partial blocks, as vLLM v0 (token-budget)",
    ),
    Key(
        "cache.allocation",
        "choice",
        "paged",
        "",
        "contiguous: max_model_len each, buddy: next power of two, oracle: final length (token-budget, kind none)",
        ("paged", "contiguous", "buddy", "oracle"),
    ),
    Key("cache.evict_shortfall", "bool", False, "", "radix: evict what is missing, not the whole allocation"),
    Key("cache.split_keeps_age", "bool", False, "", "radix: both parts of a split node are as old as it was"),
    Key("cache.split_at_prompt", "bool", False, "", "radix: an output can be evicted without its prompt"),
    Key("cache.count_hits_once", "bool", False, "", "radix: a request counts a node once, a chunk too (lfu, slru)"),
    Key("cache.tlru_threshold", "int", 0, "tokens", "tlru: that a turn may compute within its TTFT", low=0),
    Key("cache.tlru_next_prompt_estimate", "int", 0, "tokens", "tlru: of these, for the next prompt", low=0),
    Key("cache.hit_same_step", "bool", True, "", "hash: a block can be hit in the step that computes it"),
)

BEAM_KEYS: tuple[Key, ...] = (
    Key("beam.width", "int", 0, "beams", "of every request; it has one result. 0 = off", low=0, high=256),
    Key("beam.skew", "float", 0.5, "", "a survivor draws its parent of place i as skew ** i", low=0, high=1),
)

FAULT_KEYS: tuple[Key, ...] = (
    Key("faults.count_recomputed_hits", "bool", False, "", "FAULT: what a preempted request finds again is a hit"),
    Key("faults.count_refused_hits", "bool", False, "", "FAULT: each refused admission counts its hits"),
    Key("faults.leak_on_cancel", "bool", False, "", "FAULT: a cancelled request's own blocks are not given back"),
    Key(
        "faults.retract_tokens_for_blocks", "bool", False, "", "FAULT: retraction frees tokens where blocks are needed"
    ),
    Key("faults.insertions_never_repeat", "bool", False, "", "FAULT: the radix tree counts no insertion (slru, lfu)"),
    Key("faults.no_fence", "bool", False, "", "FAULT: blocks are given away while a copy still reads them"),
    Key("faults.free_while_written", "bool", False, "", "FAULT: who cancels a push frees what is still written"),
    Key("faults.lease_over_reads", "bool", False, "", "FAULT: a lease that ends frees what is just being read"),
    Key("faults.free_overlap_slot_twice", "bool", False, "", "FAULT: a forward too many gives its block back again"),
)
"""Faults that people reported of real engines, planted on request; a run with one says so in its head."""
