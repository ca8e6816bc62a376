"""Which engines a fuzz drives: the product of all that can be combined, and rules drawn anew for every round."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

from numpy.random import Generator

from ..engine.build import calendar_fits
from ..engine.settings import EngineSettings
from ..prefix.eviction.policies import POLICIES
from ..scheduler.rules import PREFILL_FIRST, TOKEN_BUDGET, CacheRules, SchedulerRules
from ..scheduler.waiting_order import ORDERS, SHORTEST_PREFILL
from ..tiers.rules import HOST_EVICTION, LOADS, STOP_POLICIES, HostLink, LinkRules, StoreRules, TierRules

STEP, CALENDAR, OVERLAP, FORKS, TIERS, FLEET, PD = "step", "calendar", "overlap", "forks", "tiers", "fleet", "pd"

AXES: dict[str, tuple[Any, ...]] = {
    "scheduler": (PREFILL_FIRST, TOKEN_BUDGET),
    "cache": ("radix", "hash", "none"),
    "block_tokens": (1, 16),
    "path": (STEP, CALENDAR, OVERLAP, FORKS),
}
"""What is combined with what; one more axis is one more line here, and a field below."""

LEAST_BLOCKS, MOST_BLOCKS = 20, 44
"""Small, so that everything is short of memory and checking costs little."""


class Combination(NamedTuple):
    """One engine of the product, named prefill-first/radix/1/step."""

    scheduler: str
    cache: str
    block_tokens: int
    path: str

    @property
    def name(self) -> str:
        return "/".join(str(value) for value in self)


def combinations() -> list[Combination]:
    """The whole product, less the calendar path where no rules of such an engine allow it."""
    everything = [Combination(*values) for values in product(*AXES.values())]
    return [c for c in everything if _exists(c)]


def tier_combinations() -> list[Combination]:
    """Engines with host memory and storage behind their cache."""
    everything = product(AXES["scheduler"], ("radix", "hash"), AXES["block_tokens"])
    return [Combination(*values, TIERS) for values in everything]


def fleet_combinations() -> list[Combination]:
    """Engines behind a router, each with a path that is drawn; see fuzz_fleets."""
    everything = product(AXES["scheduler"], AXES["cache"], AXES["block_tokens"])
    return [Combination(*values, FLEET) for values in everything]


def pair_combinations() -> list[Combination]:
    """Prefill and decode engines, stepping or on the calendar; see fuzz_pairs."""
    caches = {PREFILL_FIRST: ("radix",), TOKEN_BUDGET: ("hash", "none")}
    everything = product(AXES["scheduler"], AXES["cache"], AXES["block_tokens"])
    return [Combination(*values, PD) for values in everything if values[1] in caches[values[0]]]


def _exists(c: Combination) -> bool:
    if c.path == FORKS:
        return c.scheduler == TOKEN_BUDGET and c.cache != "radix"
    return c.path != CALENDAR or calendar_fits(_settings(c))


def _settings(c: Combination) -> EngineSettings:
    """With rules that do not stand in the way of the calendar."""
    rules = SchedulerRules(discipline=c.scheduler)
    return EngineSettings(
        rules, CacheRules(c.cache, MOST_BLOCKS), c.block_tokens, fast=c.path == CALENDAR, overlap=c.path == OVERLAP
    )


PREFILL_RULES = (
    "drop_ended_each_step",
    "full_only_beside_others",
    "chunks_bound_input",
    "chunk_takes_one_place",
    "mixed_needs_memory",
    "stop_when_spent",
    "match_all_but_last",
    "ignore_eos_in_full",
    "ignore_eos_block",
)
RADIX_RULES = ("evict_shortfall", "split_keeps_age", "split_at_prompt", "count_hits_once")
"""In which versions of SGLang differ; any mixture of them must be sound."""


def draw_settings(rng: Generator, c: Combination, number: int) -> EngineSettings:
    """An engine of a combination, with rules drawn; its rounds go through the eviction policies in turn."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(0, len(values)))]

    if c.path == FLEET:
        return _in_a_fleet(rng, c, number)
    if c.path == PD:
        return _of_a_pair(rng, c, number)
    fast, policies = c.path == CALENDAR, [*POLICIES]
    rules = (
        _prefill_first(one_of, fast, c.cache == "radix")
        if c.scheduler == PREFILL_FIRST
        else _token_budget(one_of, fast, c.path == FORKS)
    )
    cache = CacheRules(
        kind=c.cache,
        num_blocks=int(rng.integers(LEAST_BLOCKS, MOST_BLOCKS + 1)),
        copy_on_write=c.path == FORKS,
        eviction="lru" if c.cache == "none" or (c.cache == "hash" and fast) else policies[number % len(policies)],
        free_order=one_of("append", "sorted-front") if c.cache == "radix" else one_of("tail", "unhashed-first"),
        state=one_of("cold", "cold", "warm", "prefilled"),
        unregister_unwritten=one_of(False, True),
        **({name: one_of(False, True) for name in RADIX_RULES} if c.cache == "radix" else {}),
        tlru_threshold=one_of(8, 200),
    )
    if c.path == TIERS:
        cache = replace(cache, state="cold")
    concurrency = one_of(0, 0, 1, 3, 9)
    return replace(
        _settings(c),
        scheduler=rules,
        cache=cache,
        max_model_len=one_of(cache.num_blocks * c.block_tokens * 3 // 4, 100_000),
        tokenize_ns_per_token=one_of(0, 0, 130),
        detokenize_ns=one_of(0, 700),
        concurrency=concurrency,
        closed_loop=concurrency > 0 and one_of(False, True),
        record_steps=True,
        check=True,
        seed=int(rng.integers(0, 1 << 31)),
        **({"tiers": _tiers(one_of), "overlap": one_of(False, True)} if c.path == TIERS else {}),
    )


def _in_a_fleet(rng: Generator, c: Combination, number: int) -> EngineSettings:
    """On a path that is drawn. Cold, as fleets are."""
    paths = [c._replace(path=path) for path in (STEP, CALENDAR, OVERLAP)]
    there_are = [path for path in paths if _exists(path)]
    settings = draw_settings(rng, there_are[int(rng.integers(0, len(there_are)))], number)
    return replace(settings, cache=replace(settings.cache, state="cold"))


def _of_a_pair(rng: Generator, c: Combination, number: int) -> EngineSettings:
    """Step by step or on the calendar; cold. A chunk that is mixed with decodes may run out of memory by itself."""
    paths = [path for path in (c._replace(path=STEP), c._replace(path=CALENDAR)) if _exists(path)]
    settings = draw_settings(rng, paths[int(rng.integers(0, len(paths)))], number)
    return replace(
        settings,
        cache=replace(settings.cache, state="cold"),
        scheduler=replace(settings.scheduler, enable_mixed_chunk=False),
    )


def _tiers(one_of: Any) -> TierRules:
    """Small ones, over links that are fast, or slow enough to be in everybody's way."""

    def link() -> LinkRules:
        return LinkRules(one_of(0, 500, 40_000), one_of(10, 2_000, 90_000))

    writes_back = one_of(False, False, True)
    return TierRules(
        host_blocks=one_of(4, 40, 200),
        eviction=one_of(*HOST_EVICTION),
        state=one_of("cold", "cold", "warm", "prefilled"),
        writes_back=writes_back,
        closed=not writes_back and one_of(False, True),
        min_offers=one_of(1, 1, 2),
        outputs=one_of(False, True),
        load=one_of(*LOADS),
        min_load_tokens=one_of(1, 8),
        layers=one_of(1, 4),
        block_bytes=1,
        slowdown=one_of(0.0, 0.3),
        host_link=HostLink(link(), link(), one_of(False, True), one_of(False, True)),
        store=StoreRules(
            blocks=one_of(0, 10, 400),
            eviction=one_of("lru", "s3fifo", "arc"),
            state=one_of("cold", "cold", "warm"),
            block_bytes=1,
            batch_blocks=one_of(1, 4, 128),
            min_prefetch_tokens=one_of(1, 16),
            stop=one_of(*STOP_POLICIES),
            timeout_ns=one_of(0, 5_000, 200_000),
            timeout_token_ns=one_of(0.0, 30.0),
            down=link(),
            up=link(),
        ),
    )


def _token_budget(one_of: Any, fast: bool, forks: bool) -> SchedulerRules:
    return SchedulerRules(
        discipline=TOKEN_BUDGET,
        policy="fcfs" if fast else one_of("fcfs", "priority"),
        max_num_seqs=one_of(2, 5, 7, 7) if fast else one_of(4, 7, 64, 64),  # samples that fork run together
        max_num_batched_tokens=one_of(7, 32, 64, 256),
        enable_chunked_prefill=one_of(True, True, True, False),
        long_prefill_token_threshold=0 if fast else one_of(0, 0, 10),
        long_prefill_threshold_when_alone=one_of(False, True),
        long_prefill_token_threshold_adaptive=one_of(False, True),
        max_num_active_seqs=one_of(0, 0, 4),
        prefill_schedule_interval=1 if fast or forks else one_of(1, 1, 2, 5),
        reserve_full_isl=one_of(False, True),
        watermark=one_of(0.0, 0.0, 0.1),
        self_preemption_ends_step=one_of(False, True),
    )


def _prefill_first(one_of: Any, fast: bool, is_radix: bool) -> SchedulerRules:
    orders = [name for name, order in ORDERS.items() if is_radix or order != SHORTEST_PREFILL]
    return SchedulerRules(
        discipline=PREFILL_FIRST,
        policy=one_of("fcfs", *orders),
        max_running_requests=one_of(2, 7, 64, 64),
        max_prefill_tokens=one_of(20, 100, 16384),
        chunked_prefill_size=one_of(0, 16, 32, 64),
        enable_mixed_chunk=not fast and one_of(False, False, True),
        schedule_conservativeness=one_of(0.05, 0.3, 1.0),
        clip_max_new_tokens=one_of(1, 1, 8, 4096),
        retract_decode_steps=one_of(2, 20),
        new_token_ratio_decay_steps=one_of(5, 600),
        in_batch_check_threshold=one_of(4, 32),
        in_batch_deprioritize_threshold=one_of(4, 32),
        prefill_max_requests=one_of(0, 0, 2),
        ignore_eos=one_of(False, False, True),
        retraction_policy=one_of("length", "priority"),
        waiting_refresh_interval=one_of(0, 3),
        **{name: one_of(False, True) for name in PREFILL_RULES},
    )
