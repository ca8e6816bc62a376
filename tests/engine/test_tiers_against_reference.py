"""Host and storage behind vLLM's cache against plain Python: every time, hit, step and copy equal, step by step."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import PREFILL_FIRST, CacheRules, SchedulerRules
from kvbench.tiers.copies import CONFIRMED, EVICTED, LOADED, WRITTEN
from kvbench.tiers.rules import HostLink, LinkRules, StoreRules, TierRules
from kvbench.tiers.state import HOST_TOKENS, STORE_TOKENS, WAIT_QUEUED

from ..reference.copies import Rate, TierConfig
from ..reference.engine import TimedEngine
from ..reference.tiers import Tiered, TieredEngine, TieredSteps
from ..reference.tiers_sglang import TieredSglang
from .compare import assert_equal, finish, run_with, sglang_config, small_tables, vllm_config
from .systems import newer_rules
from .test_tiers import revisits, with_memory
from .workloads import request_table

LONG = "KVBENCH_LONG" in os.environ
POLICIES = ("lru", "lru", "lfu", "fifo", "mru", "filo", "arc")


@st.composite
def links(draw: st.DrawFn, block_bytes: int) -> LinkRules:
    """Fast ones, and such that everybody waits for. Something of a transfer always takes time."""
    block_ns = draw(st.sampled_from([40, 2_000, 2_000, 90_000]))
    return LinkRules(
        draw(st.sampled_from([1, 700, 30_000])), draw(st.sampled_from([0.0, 10.5])), block_ns / block_bytes
    )


@st.composite
def tiered(draw: st.DrawFn) -> TierRules:
    """Every rule of a host and of storage."""
    back = draw(st.sampled_from([False, False, True]))
    store = StoreRules(
        blocks=draw(st.sampled_from([0, 5, 300, 300])),
        eviction=draw(st.sampled_from(POLICIES)),
        block_bytes=40,
        batch_blocks=draw(st.sampled_from([1, 3, 128])),
        min_prefetch_tokens=draw(st.sampled_from([1, 16])),
        stop=draw(st.sampled_from(["best_effort", "wait_complete", "timeout"])),
        timeout_ns=draw(st.sampled_from([0, 3_000, 100_000])),
        timeout_token_ns=draw(st.sampled_from([0.0, 20.3])),
        down=draw(links(40)),
        up=draw(links(40)),
    )
    return TierRules(
        host_blocks=draw(st.sampled_from([3, 12, 40, 300])),
        eviction=draw(st.sampled_from(POLICIES)),
        closed=not back and draw(st.booleans()),
        min_offers=draw(st.sampled_from([1, 1, 2])),
        writes_back=back,
        outputs=draw(st.booleans()),
        load=draw(st.sampled_from(["layerwise", "whole"])),
        min_load_tokens=draw(st.sampled_from([1, 12])),
        layers=draw(st.sampled_from([1, 4])),
        block_bytes=20,
        block_fragments=3,
        slowdown=draw(st.sampled_from([0.0, 0.25])),
        host_link=HostLink(draw(links(20)), draw(links(20)), draw(st.booleans()), draw(st.booleans())),
        store=store,
    )


def reference_rules(rules: TierRules) -> TierConfig:
    def rate(link: LinkRules) -> Rate:
        return Rate(link.setup_ns, link.fragment_ns, link.ns_per_byte)

    store = rules.store
    return TierConfig(
        host_blocks=rules.host_blocks,
        policy=rules.eviction,
        closed=rules.closed,
        write="back" if rules.writes_back else "through",
        min_offers=rules.min_offers,
        outputs=rules.outputs,
        layerwise=rules.load == "layerwise",
        min_load_tokens=rules.min_load_tokens,
        layers=rules.layers,
        block_bytes=rules.block_bytes,
        block_fragments=rules.block_fragments,
        slowdown=rules.slowdown,
        fair=rules.host_link.fair,
        half_duplex=rules.host_link.half_duplex,
        down=rate(rules.host_link.down),
        up=rate(rules.host_link.up),
        store_blocks=store.blocks,
        store_policy=store.eviction,
        store_block_bytes=store.block_bytes,
        batch_blocks=store.batch_blocks,
        min_prefetch_tokens=store.min_prefetch_tokens,
        stop=store.stop,
        timeout_ns=store.timeout_ns,
        timeout_token_ns=store.timeout_token_ns,
        store_down=rate(store.down),
        store_up=rate(store.up),
    )


@settings(
    max_examples=1500 if LONG else 40,
    phases=tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    revisits(), tiered(), st.sampled_from([1, 4, 16]), st.sampled_from([1, 3, 8]), st.sampled_from([16, 64, 256]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_step_is_the_reference_s(visits, rules: TierRules, block_tokens, seats, budget, check, reserves) -> None:
    asks, tokens = visits
    scheduler = SchedulerRules(
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        self_preemption_ends_step=False,
        reserve_full_isl=reserves,
    )
    system = EngineSettings(scheduler, CacheRules("hash", free_order="unhashed-first"), block_tokens, 1000, fast=False)
    system = replace(with_memory(system, tokens), check=check, record_steps=True, tiers=rules)
    simulation = Simulation(request_table(asks), system, small_tables())
    finish(simulation, 40_000)
    steps = TieredSteps(*vllm_config(system, small_tables()), reference_rules(rules))
    reference = run_with(TieredEngine, steps, asks, system, small_tables())
    assert_same(simulation, reference, steps, len(asks))


def assert_same(simulation: Simulation, reference: TimedEngine, steps: Tiered, num: int) -> None:
    """Times, steps and copies."""
    assert_equal(simulation, reference)
    t, fetches = simulation.engine.tiers, [steps.fetches.get(i) for i in range(num)]
    for column, name in ((HOST_TOKENS, "host_tokens"), (STORE_TOKENS, "store_tokens"), (WAIT_QUEUED, "waited")):
        assert t.of_seq[:, column].tolist() == [getattr(f, name) if f else 0 for f in fetches]
    for pool, copies in ((t.host, steps.host), (t.store, steps.store)):
        assert (pool.counters[WRITTEN], pool.counters[EVICTED]) == (copies.written, copies.evicted)
        assert int((pool.state == CONFIRMED).sum()) == sum(copy.is_there for copy in copies.of.values())
    assert t.host.counters[LOADED] == steps.loaded_blocks


@settings(
    max_examples=1500 if LONG else 40,
    phases=tuple(Phase) if LONG else (Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(
    revisits(), tiered(), st.sampled_from([1, 4, 16]), st.sampled_from([1, 3, 8]), st.sampled_from([16, 64, 256]),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_every_step_is_the_reference_s_over_a_radix_tree(
    visits, rules: TierRules, block_tokens, seats, chunk, is_newer, check
) -> None:
    asks, tokens = visits
    scheduler = SchedulerRules(
        discipline=PREFILL_FIRST,
        policy="fcfs",
        max_running_requests=seats,
        chunked_prefill_size=chunk,
        new_token_ratio_decay_steps=3,
        **(newer_rules("scheduler") if is_newer else {}),
    )
    cache = CacheRules("radix", free_order="auto", **(newer_rules("cache") if is_newer else {}))
    system = EngineSettings(scheduler, cache, block_tokens, 1000, fast=False)
    system = replace(with_memory(system, tokens), check=check, record_steps=True, tiers=rules)
    simulation = Simulation(request_table(asks), system, small_tables())
    finish(simulation, 40_000)
    steps = TieredSglang(sglang_config(system), reference_rules(rules))
    reference = run_with(TieredEngine, steps, asks, system, small_tables())
    assert_same(simulation, reference, steps, len(asks))
