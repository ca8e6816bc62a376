"""The keys of `[scheduler]`, `[cache]`, `[beam]`, `[faults]`: those of the rules, and what has no rule of its name."""

from __future__ import annotations

from ..core.keys import Key, keys_of
from .rules import BeamRules, CacheRules, SchedulerRules

SCHEDULER_KEYS = keys_of("scheduler", SchedulerRules)
BEAM_KEYS = keys_of("beam", BeamRules)
CACHE_KEYS: tuple[Key, ...] = (
    *keys_of("cache", CacheRules),
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
    Key("cache.backup", "bool", False, "", "copy computed blocks to host memory, on a queue of its own"),
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
    Key("faults.load_unheld", "bool", False, "", "FAULT: the host evicts what is just being loaded"),
    Key("faults.write_back_unheld", "bool", False, "", "FAULT: the host evicts what is just being written back"),
    Key("faults.tiers_ignore_namespace", "bool", False, "", "FAULT: tiers know blocks by their tokens alone"),
    Key("faults.copy_without_parent", "bool", False, "", "FAULT: copies are kept whose prefix the host has not"),
    Key("faults.failed_copy_is_done", "bool", False, "", "FAULT: storage counts a copy that failed as there"),
    Key("faults.miss_keeps_memory", "bool", False, "", "FAULT: host memory for what storage did not give stays taken"),
    Key("faults.short_prefetch_keeps_key", "bool", False, "", "FAULT: a prefetch cut short has the name of the whole"),
    Key("faults.prefetch_from_wrong_start", "bool", False, "", "FAULT: names of a prefetch skip what the host has not"),
    Key("faults.prefix_persisted_in_part", "bool", False, "", "FAULT: half of a new prompt is copied, all counts"),
    Key("faults.cancelled_load_frees_twice", "bool", False, "", "FAULT: a load of who is cancelled frees twice"),
    Key("faults.free_overlap_slot_twice", "bool", False, "", "FAULT: a forward too many gives its block back again"),
)
"""Faults that people reported of real engines, planted on request; a run with one says so in its head."""
