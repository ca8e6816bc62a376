"""Tiers without a clock: never more than the optimum, and what a run finds whose requests come far apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvbench.cluster.simulation import Simulation
from kvbench.core.errors import UsageError
from kvbench.engine.integrity import check_integrity
from kvbench.offline.replay import replay_cache
from kvbench.offline.shared import Offline
from kvbench.offline.warm import prepared
from kvbench.tiers.rules import HostLink, LinkRules, StoreRules, TierRules

from ..engine.compare import small_tables
from ..engine.test_clients import plain
from ..engine.test_runs import EACH
from ..engine.test_tiers import revisits, with_memory
from ..engine.workloads import request_table
from .test_equal_to_runs import far_apart, finished_run

ENOUGH = 300
"""Blocks of a host that never evicts."""
FAST = LinkRules(setup_ns=1)


def tiered(system, blocks: int, **more):
    store = StoreRules(blocks=more.pop("store", 0), min_prefetch_tokens=1, stop="wait_complete", down=FAST, up=FAST)
    rules = TierRules(host_blocks=blocks, host_link=HostLink(FAST, FAST), store=store, **more)
    return replace(system, tiers=rules)


@EACH
@pytest.mark.parametrize("writes_back", [False, True])
def test_a_replay_finds_what_a_run_finds(system, writes_back):
    @settings(
        max_examples=10, suppress_health_check=list(HealthCheck), phases=(Phase.generate,), report_multiple_bugs=False
    )
    @given(
        revisits(),
        st.sampled_from([3, 12, ENOUGH, ENOUGH]),
        st.sampled_from([0, 0, 200]),
        st.booleans(),
        st.sampled_from(["cold", "warm", "prefilled"]),
    )
    def check(visits, blocks, store, outputs, state) -> None:
        asks, tokens = visits
        more = {"closed": False, "writes_back": writes_back, "outputs": outputs, "state": state}
        engine = tiered(with_memory(system, tokens), blocks, store=store, **more)
        requests = far_apart(request_table(asks), list(range(len(asks))))
        found = replay_cache(Offline(requests, engine.block_tokens), engine, small_tables())
        assert found["hit_rate_tokens"] == pytest.approx(
            sum(found[f"hit_rate_{name}"] for name in ("device", "host", "storage"))
        )
        if state == "cold":
            assert found["hit_rate_tokens"] <= found["hit_rate_tokens_optimum"] + 1e-12
        if blocks < ENOUGH or store:  # who is evicted hangs on what is copied at that moment
            return
        journal = finished_run(requests, engine).journal()
        assert found["hit_tokens"] == int(journal.cached_tokens.sum())

    check()


@EACH
def test_a_tier_behind_a_cache_without_bound_is_refused(system):
    engine = tiered(replace(system, cache=replace(system.cache, num_blocks=0)), 10)
    requests = far_apart(request_table([plain(0, prompt=30)]), [0])
    with pytest.raises(UsageError, match=r"set cache\.blocks"):
        replay_cache(Offline(requests, engine.block_tokens), engine, small_tables())


@EACH
def test_a_visitor_whose_answer_the_cache_clips_warms_no_more_than_runs(system):
    """Its output as asked for is longer than any table."""
    asks = [replace(plain(0, prompt=40, output=200), max_tokens=200)]
    engine = tiered(with_memory(system, 60), 300, state="warm", closed=False)
    prepared(Simulation(request_table(asks), replace(engine, check=True), small_tables()))


@EACH
@pytest.mark.parametrize("seed", range(4))
def test_a_warm_host_keeps_no_copy_whose_prefix_it_has_not(system, seed):
    """A host smaller than its visitors, who leaves drawn at random: not the parent of what is just being written."""
    asks = [plain(i, arrival_ns=1_000_000 * i, prompt=60, output=2) for i in range(6)]
    engine = tiered(with_memory(system, 200), 5, eviction="random", state="warm", closed=True, store=4)
    engine = replace(engine, seed=seed, check=True)
    engine = replace(engine, tiers=replace(engine.tiers, store=replace(engine.tiers.store, state="warm")))
    simulation = prepared(Simulation(request_table(asks), engine, small_tables()))
    check_integrity(simulation.engine)
    assert int((simulation.engine.tiers.host.content != 0).sum()) == 5
