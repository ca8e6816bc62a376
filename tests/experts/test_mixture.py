"""The experts of an instance over steps: sums, what the fullest device costs, maps that change, planted faults."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import KvbenchError, UsageError
from kvbench.costs.classes import fitted
from kvbench.costs.deployment import Deployment
from kvbench.costs.exchange import LOW_LATENCY, Network, exchange_of
from kvbench.costs.keys import DEFAULTS
from kvbench.costs.named import find_device, find_model
from kvbench.experts.keys import EplbSettings, LoadSettings
from kvbench.experts.layout import Layout, check_map, replica_counts
from kvbench.experts.mixture import Mixture, Ranks
from kvbench.experts.policies import POLICIES
from kvbench.experts.popularity import Routing

STEP_NS = 20_000_000
NETWORK, OFF, ZIPF = Network(), EplbSettings(), LoadSettings(exponent=1.0)
DYNAMIC = EplbSettings("dynamic-sync", window=8, interval=12, redundant=4)


def exchange(ep=4, network=NETWORK, model="olmoe-1b-7b"):
    deployment = Deployment(find_device("h100"), find_model(model), ep=ep)
    return exchange_of(deployment, fitted(DEFAULTS, deployment.device, "bf16"), network)


def mixture(eplb=OFF, load=ZIPF, ranks=4, tp=1, layers=3):
    layout = Layout(16, 16 + eplb.redundant, ranks * tp)
    return Mixture(Routing(layers, 16, 2), layout, Ranks(ranks, tp), exchange(ranks * tp), load, eplb, 7)


def run(m, steps, tokens=30, prefill=0, ns=STEP_NS):
    """Steps of equal tokens on every rank. Returns ((experts + exchange, pause) of each, terms of the last)."""
    of_ranks = np.tile(np.array([prefill, tokens]), (m.ranks.count, 1))
    terms, found, now = np.zeros((m.ranks.count, 4)), [], 0
    for i in range(steps):
        found.append(m.step(i, now, of_ranks, terms))
        assert m._counts.sum(1).tolist() == [m.ranks.count * (tokens + prefill) * 2] * m.routing.layers
        assert np.array_equal(m._of_slots.sum(1), m._counts.sum(1))
        now += ns + found[-1][1]
    return found, terms


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("replicas", ["even", "nearest"])
@pytest.mark.parametrize("mode", ["off", "static", "dynamic-sync", "dynamic-async"])
def test_tokens_of_slots_add_up_whatever_the_map(mode, replicas, tp):
    m = mixture(replace(DYNAMIC, mode=mode, replicas=replicas, redundant=8), tp=tp)
    run(m, 40)
    assert m.chosen == 40 * 3 * 4 * 30 * 2
    assert sum(m.records.loads).sum() == m.chosen
    counts = replica_counts(m.balancer.tables.experts, 16)
    assert counts.sum(1).tolist() == [m.layout.slots] * 3
    assert counts.min() >= 1


@pytest.mark.parametrize("mode", ["static", "dynamic-sync", "dynamic-async"])
def test_placing_anew_evens_the_devices_out(mode):
    """Without noise of small steps: as even as the decision said."""
    load = LoadSettings(exponent=1.0, phases_differ=False)
    off, on = mixture(load=load), mixture(replace(DYNAMIC, mode=mode, policy="deepseek"), load)
    run(off, 80, tokens=2000)
    run(on, 80, tokens=2000)
    share = [sum(m.records.mean[-30:]) / sum(m.records.most[-30:]) for m in (off, on)]
    assert share[1] > share[0] + 0.1
    last = on.balancer.history[-1]
    assert last.layers == 3
    assert share[1] == pytest.approx(last.after, abs=0.05)


@pytest.mark.parametrize("replicas", ["even", "nearest"])
@pytest.mark.parametrize("mode", ["static", "dynamic-sync", "dynamic-async"])
def test_what_a_map_saves_is_the_time_of_the_same_steps_without_it(mode, replicas):
    """Draws depend on seed and step alone: a run that never moves prices the same tokens under the map of loading."""
    eplb = replace(DYNAMIC, replicas=replicas, collect_us=0.0)
    off, on = mixture(replace(eplb, mode="off")), mixture(replace(eplb, mode=mode))
    (plain, _), (moved, _) = run(off, 60, tokens=300), run(on, 60, tokens=300)
    differs = [before - after for (before, _), (after, _) in zip(plain, moved, strict=True)]
    assert on.records.saved_ns == pytest.approx(differs, abs=2)
    assert sum(differs) > 0
    assert off.records.saved_ns == [0] * 60


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(["off", "static", "dynamic-sync", "dynamic-async"]),
    st.lists(
        st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=4, max_size=4), min_size=6, max_size=9
    ),
)
def test_tokens_over_experts_and_slots_are_tokens_times_top_k_in_every_step_and_layer(policy, mode, steps):
    """Of two domains, whatever ranks do, under every policy and mode."""
    eplb = EplbSettings(mode, policy, window=3, interval=4, redundant=4)
    load = LoadSettings(exponent=1.2, drift="tenant")
    m = Mixture(Routing(3, 16, 2), Layout(16, 20, 4), Ranks(4, 1), exchange(), load, eplb, 7, domains=2)
    terms = np.zeros((4, 4))
    for i, of_ranks in enumerate(np.array(steps)):
        first = of_ranks.sum(0) // 3
        m.step(i, i * STEP_NS, of_ranks, terms, np.stack([first, of_ranks.sum(0) - first], axis=1))
        chosen = int(of_ranks.sum()) * 2
        assert m._counts.sum(1).tolist() == m._of_slots.sum(1).tolist() == m._of_devices.sum(1).tolist() == [chosen] * 3
        check_map(m.balancer.tables.experts, m.layout)


def test_requests_of_two_domains_have_popularities_of_their_own():
    load = LoadSettings(exponent=1.5, drift="tenant")
    one, two = (
        Mixture(Routing(3, 16, 2), Layout(16, 16, 4), Ranks(4, 1), exchange(), load, OFF, 7, domains=n) for n in (1, 2)
    )
    tokens, terms = np.tile([5, 400], (4, 1)), np.zeros((4, 4))
    first = np.array([[20, 0], [1600, 0]])
    assert one.step(0, 0, tokens, terms) == two.step(0, 0, tokens, terms, first)
    alone = two._counts.copy()
    two.step(1, 0, tokens, terms, np.array([[0, 20], [0, 1600]]))
    assert two._counts.sum(1).tolist() == [3240] * 3
    assert np.abs(two._counts - alone).sum() > 1620  # other experts are hot
    two.step(2, 0, tokens, terms, np.array([[10, 10], [800, 800]]))
    assert two._counts.sum(1).tolist() == [3240] * 3
    assert two._counts.max() < alone.max()


def test_a_synchronous_decision_pauses_everybody_once():
    m = mixture(DYNAMIC)
    found, _ = run(m, 12)
    (made,) = m.balancer.history
    pauses = [pause for _, pause in found]
    assert made.step == 2  # a quarter of the interval, as vLLM's counter starts
    assert pauses[3] == made.pause_ns + round(m.balancer.settings.collect_us * 1e3)
    assert made.num_bytes == round(made.moves * m.exchange.expert_bytes) > 0
    assert sum(pauses) == made.pause_ns + m.balancer.collect_ns - (20_000 if m.balancer._pause_ns else 0)


def test_an_asynchronous_one_switches_a_layer_a_step_and_pauses_nobody():
    m = mixture(replace(DYNAMIC, mode="dynamic-async", collect_us=0.0))
    first = m.balancer.tables.experts.copy()
    versions = []
    of_ranks, terms = np.tile(np.array([0, 30]), (4, 1)), np.zeros((4, 4))
    for i in range(12):
        assert m.step(i, i * 10**9, of_ranks, terms)[1] == 0
        versions.append(m.balancer.tables.map_version.tolist())
    assert versions[2] == [0, 0, 0]
    assert versions[3:6] == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert not np.array_equal(first, m.balancer.tables.experts)


def test_a_move_takes_longer_over_a_slower_network():
    near = mixture(replace(DYNAMIC, mode="dynamic-async"))
    far = mixture(replace(DYNAMIC, mode="dynamic-async"))
    far.balancer.exchange = exchange(network=Network(node_devices=2, network_gbs=1.0))
    for m in (near, far):
        run(m, 4)
    assert far.balancer.history[0].ready_ns > near.balancer.history[0].ready_ns


def test_nothing_is_moved_above_the_threshold():
    m = mixture(replace(DYNAMIC, threshold=0.2))
    run(m, 30)
    assert m.balancer.history
    assert all(h.layers == 0 and h.moves == 0 and "above eplb.threshold" in h.kept for h in m.balancer.history)
    assert m.balancer.notes()


def test_uniform_load_costs_what_equal_devices_cost():
    """Products of all choices shared by the devices, and all weights read: a dense model of the same active size."""
    m = mixture(load=LoadSettings("uniform"))
    together, _ = run(m, 1, tokens=400_000)[0][0]
    x = m.exchange
    choices = 400_000 * 2
    dense = 3 * choices * max(x.times.token_ns, x.activation * x.times.read_ns)
    exchanged = 3 * (choices * x.pair_bytes[LOW_LATENCY] * x.times.dispatch_ns_per_byte + x.fixed_ns)
    assert together == pytest.approx(dense + exchanged, rel=0.01)
    assert together >= dense + exchanged


def test_terms_are_priced_to_what_a_device_takes():
    """LOAD and ACTIVE keep apart layers in which products and in which weights decide: their sum is exact."""
    m = mixture(load=LoadSettings(exponent=1.5))
    for tokens in (1, 30, 3000):
        _, terms = run(m, 1, tokens=tokens)
        times, x = m.exchange.times, m.exchange
        loads = m._of_slots.reshape(3, 4, -1)
        tokens_of, active = loads.sum(2), (loads > 0).sum(2)
        weights = active + tokens_of * x.activation
        want = np.maximum(tokens_of * times.token_ns, weights * times.read_ns).sum(0)
        assert terms[:, 0] * times.token_ns + terms[:, 1] * times.read_ns == pytest.approx(want)


def test_the_same_seed_gives_the_same_steps_and_another_does_not():
    one, two = mixture(), mixture()
    other = Mixture(one.routing, one.layout, one.ranks, one.exchange, LoadSettings(exponent=1.0), EplbSettings(), 8)
    results = [run(m, 5)[0] for m in (one, two, other)]
    assert results[0] == results[1] != results[2]


# ---------------------------------------------------------------- planted faults


def test_a_worker_that_dies_leaves_the_map_stale_and_is_told():
    m = mixture(replace(DYNAMIC, mode="dynamic-async", fault="worker_dies"))
    run(m, 60, ns=10**9)
    assert len(m.balancer.history) == 1
    assert "1 of 3 layers keep the old map for ever" in m.balancer.notes()[0]


def test_a_map_that_is_read_half_switched_is_found():
    m = mixture(replace(DYNAMIC, fault="half_switched"))
    with pytest.raises(KvbenchError, match="map of layer 0 was read half switched"):
        run(m, 20)


def test_devices_that_choose_differently_are_found():
    m = mixture(replace(DYNAMIC, fault="replicas_differ"))
    with pytest.raises(KvbenchError, match="devices choose replicas differently in layer 0: device 3"):
        run(m, 20)


def test_a_cancelled_move_keeps_whole_layers():
    m = mixture(replace(DYNAMIC, mode="dynamic-async", fault="cancelled"))
    run(m, 10, ns=10**9)
    assert m.balancer.tables.map_version.tolist() == [1, 1, 0]
    assert "cancelled after 2 of 3 layers" in m.balancer.notes()[0]


# ---------------------------------------------------------------- exchange


@pytest.mark.parametrize(
    ("ep", "dispatch_us", "combine_us"), [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314)]
)
def test_low_latency_exchange_is_near_what_deepep_publishes(ep, dispatch_us, combine_us):
    """128 tokens of 7,168, 8 experts each, fp8 there and bf16 back, on H800s with 400 Gb/s."""
    x = exchange(ep, model="deepseek-v3")
    moved = 128 * 8 * x.pair_bytes[LOW_LATENCY] * x.times.dispatch_ns_per_byte / 1e3
    assert 30 + moved / 3 == pytest.approx(dispatch_us, rel=0.09)
    assert 30 + moved * 2 / 3 == pytest.approx(combine_us, rel=0.03)


def test_bf16_dispatch_moves_a_third_more():
    fp8, bf16 = exchange(), exchange(network=Network(dispatch_dtype="bf16"))
    assert bf16.pair_bytes[LOW_LATENCY] == pytest.approx(fp8.pair_bytes[LOW_LATENCY] * 4 / 3)


def test_experts_of_deepseek_v3_are_44_mb_in_fp8():
    deployment = Deployment(find_device("h100"), find_model("deepseek-v3"), dtype="fp8", ep=16)
    x = exchange_of(deployment, fitted(DEFAULTS, deployment.device, "fp8"), Network())
    assert x.expert_bytes == pytest.approx(44.04e6, rel=1e-3)
    assert 58 * x.expert_bytes == pytest.approx(2.55e9, rel=0.01)


def test_devices_that_do_not_fill_nodes_are_told():
    with pytest.raises(UsageError, match="does not fill nodes of 3"):
        exchange(4, Network(node_devices=3))
