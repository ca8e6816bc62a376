"""Host memory as a tier in the engine: integrity and shadow after every step, on both cache kinds and both loads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import KvbenchError
from kvbench.core.journal import FINISHED
from kvbench.engine.settings import EngineSettings
from kvbench.offline.warm import prepared
from kvbench.tiers.copies import EVICTED, LOADED, WRITTEN
from kvbench.tiers.rules import HostLink, LinkRules, StoreRules, TierRules
from kvbench.tiers.state import HOST_TOKENS, WAIT_QUEUED

from ..reference.engine import Ask
from . import systems
from .compare import finish, small_tables
from .test_against_reference import SYSTEMS
from .test_clients import plain
from .test_runs import EACH
from .test_runs import SYSTEMS as SYSTEMS_OF_RUNS
from .workloads import request_table


def tier_rules(blocks: int = 400, block_ns: float = 2_000, **more) -> TierRules:
    link = LinkRules(setup_ns=500, fragment_ns=block_ns)
    return TierRules(host_blocks=blocks, host_link=HostLink(link, link), **more)


def run(asks, system) -> Simulation:
    simulation = Simulation(request_table(asks), system, small_tables())
    finish(simulation)
    return simulation


@EACH
@pytest.mark.parametrize("load", ["layerwise", "whole"])
def test_what_the_device_has_lost_comes_back_from_the_host(system, load):
    """The same prompt again, after others have filled the device: hits that only the host has."""
    bt = system.block_tokens
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(4)]
    asks.append(replace(asks[0], arrival_ns=9_000_000))
    tight = replace(system, cache=replace(system.cache, num_blocks=-(-66 // bt) + 3), check=True)
    alone = run(asks, tight)
    tiered = run(asks, replace(tight, tiers=tier_rules(load=load, layers=4)))
    assert alone.journal().cached_tokens[-1] == 0
    assert tiered.journal().cached_tokens[-1] == 59 // bt * bt
    e = tiered.engine
    assert e.tiers.of_seq[-1, HOST_TOKENS] == 59 // bt * bt
    assert e.tiers.host.counters[LOADED] == 59 // bt
    assert e.tiers.host.counters[WRITTEN] >= 4 * (60 // bt)


@st.composite
def revisits(draw: st.DrawFn) -> tuple[list[Ask], int]:
    """Prompts that come back to a few documents, through a device that holds one or two; and its tokens of memory."""
    documents = [draw(st.integers(20, 70)) for _ in range(draw(st.integers(2, 4)))]
    asks, now = [], 0
    for i in range(draw(st.integers(6, 16))):
        document = draw(st.integers(0, len(documents) - 1))
        read = documents[document] - draw(st.sampled_from([0, 0, 3, 17]))
        own = draw(st.integers(1, 12))
        output = draw(st.integers(1, 25))
        now += draw(st.sampled_from([0, 3_000, 40_000, 400_000, 400_000]))
        ask = Ask([(1 + document, 0, read), (50 + i, 0, own)], [(100 + i, 0, output)], now, output, output)
        ask.namespace, ask.priority = draw(st.integers(0, 1)) // 2, draw(st.integers(0, 2))
        ask.cancel_ns = draw(st.sampled_from([None, None, None, 1_000, 20_000, 90_000]))
        asks.append(ask)
    largest = max(ask.num_prompt + ask.max_tokens for ask in asks)
    return asks, largest + draw(st.integers(5, 60))


@st.composite
def stores(draw: st.DrawFn) -> StoreRules:
    """No storage, or some that is small or slow."""
    link = LinkRules(setup_ns=draw(st.sampled_from([0, 400, 60_000])), ns_per_byte=draw(st.sampled_from([1.0, 50.0])))
    return StoreRules(
        blocks=draw(st.sampled_from([0, 6, 500, 500])),
        eviction=draw(st.sampled_from(["lru", "fifo", "arc"])),
        block_bytes=20,
        batch_blocks=draw(st.sampled_from([1, 3, 128])),
        min_prefetch_tokens=draw(st.sampled_from([1, 16])),
        stop=draw(st.sampled_from(["best_effort", "wait_complete", "timeout"])),
        timeout_ns=draw(st.sampled_from([0, 3_000, 100_000])),
        timeout_token_ns=draw(st.sampled_from([0.0, 20.0])),
        down=link,
        up=link,
    )


def with_memory(system: EngineSettings, tokens: int) -> EngineSettings:
    return replace(system, cache=replace(system.cache, num_blocks=-(-tokens // system.block_tokens) + 2))


@pytest.mark.parametrize("load", ["layerwise", "whole"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_random_workloads_with_a_host_tier(name, load):
    """Integrity of both pools and the shadow after every step, and every sequence ends as it does without a tier."""

    @settings(max_examples=8, suppress_health_check=list(HealthCheck))
    @given(
        SYSTEMS[name](False),
        revisits(),
        st.booleans(),
        st.sampled_from([12, 30, 300]),
        st.sampled_from([20, 20, 3_000, 150_000]),
        st.sampled_from(["lru", "lfu", "fifo", "s3fifo", "sieve", "arc", "arc"]),
        st.booleans(),
        st.integers(1, 2),
        st.booleans(),
        stores(),
        st.booleans(),
    )
    def check(
        case: systems.Case, visits, overlap, blocks, block_ns, eviction, closed, min_offers, fair, store, writes_back
    ) -> None:
        (asks, tokens), system = visits, case[1]
        kind = "radix" if name == "sglang" else "hash"
        system = with_memory(replace(system, cache=replace(system.cache, kind=kind)), tokens)
        rules = tier_rules(blocks, block_ns, load=load, layers=3, eviction=eviction, closed=closed, slowdown=0.2)
        rules = replace(rules, min_offers=min_offers, host_link=replace(rules.host_link, fair=fair, half_duplex=fair))
        rules = replace(rules, store=store, writes_back=writes_back, closed=closed and not writes_back)
        simulation = Simulation(
            request_table(asks), replace(system, check=True, overlap=overlap, tiers=rules), small_tables()
        )
        try:
            finish(simulation, 40_000)
        except KvbenchError as error:
            if "did not get the blocks" in str(error) and system.scheduler.enable_mixed_chunk:  # SGLang dies there too
                return
            raise
        journal = simulation.journal()
        ended = journal.parts_ns[:, 0] >= 0
        assert np.all(journal.parts_ns[ended] >= 0)
        counters = simulation.engine.tiers.host.counters
        assert counters[EVICTED] <= counters[WRITTEN]

    check()


@EACH
def test_what_the_device_evicts_is_written_back_and_found(system):
    """Nothing is written before the device is full; then the first prompt is there, and the step waits for its copy."""
    bt = system.block_tokens
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(4)]
    asks.append(replace(asks[0], arrival_ns=9_000_000))
    tight = replace(system, cache=replace(system.cache, num_blocks=-(-66 // bt) + 3), check=True)
    rules = tier_rules(writes_back=True, closed=False, layers=4)
    first = run(asks[:1], replace(tight, tiers=rules))
    assert first.engine.tiers.host.counters[WRITTEN] == 0
    tiered = run(asks, replace(tight, tiers=rules))
    e = tiered.engine
    assert tiered.journal().cached_tokens[-1] == 59 // bt * bt
    assert e.tiers.host.counters[LOADED] == 59 // bt
    assert e.tiers.sum_slowed_ns > 0


@EACH
@pytest.mark.parametrize(("state", "hits"), [("cold", 0), ("warm", 59), ("prefilled", 40)])
def test_what_lies_on_the_host_at_the_start(system, state, hits):
    """The first visit finds on the host what the state says, whatever the device has seen."""
    bt = system.block_tokens
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(3)]
    for ask in asks:
        ask.prompt = [(77, 0, 40), (ask.prompt[0][0], 0, 20)]
    roomy = with_memory(replace(system, check=True), 600)
    simulation = prepared(
        Simulation(request_table(asks), replace(roomy, tiers=tier_rules(state=state)), small_tables())
    )
    finish(simulation)
    assert simulation.journal().cached_tokens[0] == hits // bt * bt
    assert simulation.engine.tiers.of_seq[0, HOST_TOKENS] == hits // bt * bt


@EACH
def test_a_warm_tier_that_nobody_prepared_does_not_run(system):
    asks = [plain(0, arrival_ns=0, prompt=60, output=2)]
    simulation = Simulation(request_table(asks), replace(system, tiers=tier_rules(state="warm")), small_tables())
    with pytest.raises(KvbenchError, match="prepared"):
        finish(simulation)


@EACH
@pytest.mark.parametrize("stop", ["best_effort", "wait_complete", "timeout"])
def test_what_the_host_has_lost_comes_back_from_storage(system, stop):
    """A host that holds one prompt: the first one is in storage when it is asked for again."""
    bt = system.block_tokens
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(4)]
    asks.append(replace(asks[0], arrival_ns=9_000_000))
    slow = StoreRules(
        blocks=500,
        block_bytes=1,
        batch_blocks=4,
        min_prefetch_tokens=1,
        stop=stop,
        timeout_ns=90_000,
        down=LinkRules(setup_ns=100),
        up=LinkRules(setup_ns=50_000),
    )
    rules = replace(tier_rules(64 // bt, load="layerwise"), store=slow)
    simulation = run(asks, replace(with_memory(system, 70), check=True, tiers=rules))
    journal = simulation.journal()
    found = {"best_effort": 0, "timeout": 4 * bt, "wait_complete": 59 // bt * bt}
    assert journal.cached_tokens[-1] == found[stop]
    assert journal.columns["cached_storage_tokens"][-1] == found[stop]
    fetched = journal.part_names.index("fetch")
    assert journal.parts_ns[-1, fetched] == {"best_effort": 0, "timeout": 90_000, "wait_complete": 200_000}[stop] + (
        journal.columns["fetch_wait_ns"][-1] - simulation.engine.tiers.of_seq[-1, WAIT_QUEUED]
    )
    assert (journal.parts_ns.sum(axis=1) == journal.finish_ns - journal.arrival_ns).all()


def test_storage_that_goes_out_hangs_nobody_and_comes_back():
    """All that moves over its links fails while they are down: requests compute, and afterwards it serves again."""
    system = with_memory(SYSTEMS_OF_RUNS["vllm-step"], 70)
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(3)]
    asks += [replace(asks[i % 3], arrival_ns=9_000_000 + 1_000_000 * i) for i in range(6)]
    link = LinkRules(setup_ns=100)
    out = (8_000_000, 11_500_000)
    store = StoreRules(500, "lru", 1, 4, 1, "wait_complete", down=link, up=link, outage_ns=out)
    rules = replace(tier_rules(16, load="whole"), store=store)
    simulation = Simulation(request_table(asks), replace(system, check=True, tiers=rules), small_tables())
    finish(simulation)
    assert (simulation.journal().cached_tokens[3:6] == [0, 0, 0]).all()
    journal = simulation.journal()
    assert (journal.status == FINISHED).all()
    assert journal.cached_tokens[-1] == 59 // system.block_tokens * system.block_tokens


def test_one_step_writes_back_what_many_sequences_have_left():
    """More blocks in one copy than any sequence has, on their way to storage."""
    system = with_memory(SYSTEMS_OF_RUNS["vllm-step"], 600)
    system = replace(system, scheduler=replace(system.scheduler, max_num_batched_tokens=2000, max_num_seqs=64))
    asks = [plain(i, arrival_ns=1_000 * i, prompt=40, output=2) for i in range(12)]
    asks += [plain(30 + i, arrival_ns=9_000_000, prompt=40, output=2) for i in range(14)]
    fast = LinkRules(setup_ns=10)
    store = StoreRules(2000, "lru", 1, 4, 1, "wait_complete", down=fast, up=fast)
    rules = replace(tier_rules(600, writes_back=True, closed=False), store=store)
    simulation = run(asks, replace(system, check=True, tiers=rules))
    t = simulation.engine.tiers
    longest = max(ask.num_prompt + ask.max_tokens for ask in asks) // system.block_tokens + 2
    assert t.store.slots.size > longest + 1
    assert t.store.counters[WRITTEN] == t.host.counters[WRITTEN] > longest
