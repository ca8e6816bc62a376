"""Two streams of a device: what the rule gives, and what it cannot give."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.costs.classes import fitted
from kvbench.costs.deployment import Deployment
from kvbench.costs.keys import DEFAULTS
from kvbench.costs.named import find_device, find_model
from kvbench.costs.roofline import make_rank, roofline_times
from kvbench.costs.stream_keys import StreamSettings
from kvbench.costs.streams import NEITHER, Demand, Streams, at_once, demand_of, streamed

ns = st.floats(0, 1e6)
demands = st.builds(Demand, ns, ns, ns, ns)


@given(demands, demands, st.floats(0, 1e3))
def test_two_streams_take_no_less_than_either_and_lose_no_more_than_the_joining(one, other, sync):
    took, decides = at_once(one, other, sync)
    longest, serial = max(one.alone, other.alone), one.alone + other.alone
    assert longest + sync <= took + 1e-6
    assert took <= serial + sync + 1e-6
    wanted = [a + b for a, b in zip(one.values, other.values, strict=True)]
    assert (decides == NEITHER) == (longest >= max(*wanted[:3], one.launch, other.launch))


@pytest.mark.parametrize("resource", ["compute", "memory", "link"])
def test_who_wants_the_same_loses_the_joining(resource):
    one, other = Demand(**{resource: 50.0}), Demand(**{resource: 80.0})
    assert at_once(one, other, 7.0) == (137.0, resource)


def test_who_wants_other_things_gains_the_shorter():
    assert at_once(Demand(compute=50.0), Demand(memory=80.0), 7.0) == (87.0, NEITHER)
    assert at_once(Demand(memory=50.0), Demand(memory=10.0, link=80.0), 0.0) == (90.0, NEITHER)


def test_split_cores_are_slower_for_both():
    one, other = Demand(compute=30.0), Demand(compute=70.0)
    assert at_once(one, other, 0.0, core_split=0.3) == (pytest.approx(100.0), NEITHER)
    assert at_once(one, other, 0.0, core_split=0.6)[0] == pytest.approx(175.0)


def rank(model="deepseek-v3", device="b200", dtype="fp8", tp=8, ep=1):
    deployment = Deployment(find_device(device), find_model(model), dtype=dtype, tp=tp, ep=ep)
    return make_rank(deployment, fitted(DEFAULTS, deployment.device, dtype)), deployment


def test_demands_are_those_of_the_roofline():
    one, _ = rank()
    shared, routed = (demand_of(one, prefix, 32.0, 0.0) for prefix in ("shared_", "expert_"))
    assert shared.memory > shared.compute
    assert routed.memory > 20 * shared.memory  # 32 tokens touch most of 256 experts
    assert demand_of(rank("qwen3-30b-a3b", tp=1)[0], "shared_", 32.0, 1.0) == Demand()


def test_shared_experts_gain_what_hides_in_the_gaps_of_the_others_and_lose_the_joining():
    """At decode both wait for memory: what is won is no more than the gaps between kernels and what fits into them."""
    one, _ = rank()
    free = Streams(one, StreamSettings("on", sync_us=0.0), 58, 1.0)
    routed = demand_of(one, "expert_", 32.0, 1.0)
    gain = free.shared(32, routed)
    assert gain.decides == NEITHER
    assert gain.ns == pytest.approx(demand_of(one, "shared_", 32.0, 1.0).alone)
    assert gain.ns < 2 * routed.launch
    costly = Streams(one, StreamSettings("on", sync_us=5.0), 58, 1.0)
    assert costly.shared(32, routed).ns == pytest.approx(gain.ns - 58 * 5000.0)
    assert free.shared(257, routed).decides == ""


def test_beside_an_exchange_shared_experts_cost_nothing():
    one, _ = rank(tp=1)
    streams = Streams(one, StreamSettings("on", sync_us=0.0), 58, 0.0)
    alone = demand_of(one, "shared_", 64.0, 0.0).alone
    routed = Demand(memory=1e6, link=1e7)
    assert streams.shared(64, routed).ns == pytest.approx(alone)


def test_two_batches_gain_where_the_exchange_is_long_and_the_step_large():
    one, _ = rank(tp=1, ep=8)
    streams = Streams(one, StreamSettings(two_batch="on", sync_us=0.0), 58, 0.0)
    large = streams.two_batch(8192, Demand(compute=2e7, memory=1e7, link=4e7), 1e5)
    small = streams.two_batch(64, Demand(compute=1e6, memory=2e7, link=5e6), 4e6)
    assert large.ns > 0
    assert small.ns < 0
    assert streams.two_batch(63, Demand(), 0.0).decides == ""


def test_the_linear_part_with_streams_differs_up_to_the_threshold():
    one, deployment = rank()
    line = roofline_times(deployment, fitted(DEFAULTS, deployment.device, "fp8")).linear
    with_streams = streamed(line, Streams(one, StreamSettings("on", tokens=256, sync_us=0.0), 58, 1.0))
    assert with_streams.ns[0] < line.ns[0]
    assert with_streams.ns[-1] == line.ns[-1]
    off = replace(StreamSettings("on"), shared_expert="off")
    assert streamed(line, Streams(one, off, 58, 1.0)).ns.tolist() == line.ns.tolist()
