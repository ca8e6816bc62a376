"""With nothing between the two sides, a pair is two engines that this project knows already."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvbench.cluster.simulation import Simulation
from kvbench.core.journal import FINISHED
from kvbench.core.requests import Requests
from kvbench.engine.settings import EngineSettings
from kvbench.pairs.settings import LAYERWISE, PUSH
from kvbench.scheduler.rules import CacheRules

from ..engine.compare import small_tables
from ..engine.test_runs import SGLANG, VLLM
from ..engine.workloads import Ask, request_table
from .test_pairs import assert_baseline, assert_times_add_up, paired, rules, watched

NOTHING = {"setup_ns": 0.0, "fragment_ns": 0.0, "ns_per_byte": 0.0, "hands_out": True}
FAR = 10**7


def ample(settings: EngineSettings) -> EngineSettings:
    return replace(settings, cache=CacheRules(settings.cache.kind, 3000, free_order="auto"), detokenize_ns=0)


def chats(every_ns: int) -> list[Ask]:
    """Prompts that share a beginning, of 5 to 130 tokens, and 2 to 30 tokens of output."""
    asks = []
    for i in range(10):
        prompt = [(1, 0, 3 + 5 * (i % 6)), (50 + i, 0, 2 + 7 * (i % 15))]
        output = 2 + (i * 11) % 29
        asks.append(Ask(prompt, [(200 + i, 0, output)], every_ns * i, output, output + i % 3))
    return asks


def run(requests: Requests, settings: EngineSettings) -> Simulation:
    simulation = Simulation(requests, settings, small_tables())
    simulation.run()
    return simulation


@pytest.mark.parametrize("every_ns", [0, 3_000])
def test_ttft_is_that_of_an_engine_that_only_prefills(every_ns):
    settings = replace(ample(VLLM), overlap=False)
    asks = chats(every_ns)
    pair = paired(asks, settings, rules(settings, **NOTHING))
    watched(pair)
    alone = run(request_table([replace(ask, output_tokens=1, max_tokens=1) for ask in asks]), settings)
    np.testing.assert_array_equal(pair.journal().first_token_ns, alone.journal().first_token_ns)


def test_the_decode_side_of_a_pull_sees_what_an_engine_sees_whose_requests_bring_their_kv():
    settings = replace(ample(VLLM), overlap=False)
    asks = chats(FAR)
    pair = paired(asks, settings, rules(settings, **NOTHING))
    watched(pair)
    first = pair.journal().first_token_ns
    brought = [
        replace(
            ask,
            prompt=[*ask.prompt, (900 + i, 0, 1)],
            arrival_ns=int(first[i]),
            output_tokens=ask.output_tokens - 1,
            max_tokens=ask.max_tokens - 1,
        )
        for i, ask in enumerate(asks)
    ]
    requests = request_table(brought)
    alone = run(replace(requests, present_tokens=requests.prompt_tokens - 1), settings)
    np.testing.assert_array_equal(pair.journal().finish_ns, alone.journal().finish_ns)


def test_without_distance_memory_before_or_after_the_prompt_is_the_same():
    """One request at a time over a link that takes none: a push under a token budget is a pull."""
    settings = replace(ample(VLLM), overlap=False)
    asks = chats(FAR)
    nothing = NOTHING | {"hands_out": False}
    pull = paired(asks, settings, rules(settings, **nothing))
    watched(pull)
    for layers in (0, 8):
        push = paired(asks, settings, rules(settings, protocol=LAYERWISE, layers=layers, **nothing))
        watched(push)
        for name in ("first_token_ns", "finish_ns", "cached_tokens"):
            np.testing.assert_array_equal(getattr(pull.journal(), name), getattr(push.journal(), name))
        np.testing.assert_array_equal(pull.pair_times().moved_bytes, push.pair_times().moved_bytes)


@pytest.mark.parametrize("layers", [0, 8])
def test_a_push_without_distance_is_one_engine_that_is_never_disturbed(layers):
    settings = replace(ample(SGLANG), overlap=False)
    asks = chats(FAR)
    pair = paired(asks, settings, rules(settings, layers=layers, **NOTHING))
    watched(pair)
    alone = run(request_table(asks), settings).journal()
    journal = pair.journal()
    np.testing.assert_array_equal(journal.first_token_ns, alone.first_token_ns)
    np.testing.assert_array_equal(journal.finish_ns, alone.finish_ns)


@pytest.mark.parametrize("settings", [VLLM, SGLANG], ids=["pull", "push"])
@pytest.mark.parametrize("ns_per_byte", [0.1, 100.0])
def test_a_slower_link_is_only_later(settings, ns_per_byte):
    """What lies between the two sides is exactly the link's time, and TTFT the sum of its parts."""
    settings = replace(ample(settings), overlap=False)
    asks = chats(FAR)
    whole = rules(settings, layers=0, setup_ns=700.0, fragment_ns=3.0, ns_per_byte=ns_per_byte)
    pair = paired(asks, settings, whole)
    watched(pair)
    assert_baseline(pair)
    assert_times_add_up(pair)
    times = pair.pair_times()
    blocks = times.moved_bytes // whole.block_bytes
    took = 700 + 3 * whole.block_fragments * blocks + ns_per_byte * times.moved_bytes
    np.testing.assert_array_equal(times.arrived - times.begun, np.floor(took + 0.5).astype(np.int64))
    sent = -(-np.array([ask.num_prompt for ask in asks]) // settings.block_tokens)
    assert (blocks <= sent).all()
    assert (blocks == sent).any()
    if settings is SGLANG:
        assert (blocks == sent).all()


@pytest.mark.parametrize(("engine", "protocol"), [(SGLANG, PUSH), (VLLM, LAYERWISE)], ids=["push", "layerwise"])
def test_chunks_hide_what_is_sent_while_the_rest_is_computed(engine, protocol):
    scheduler = replace(engine.scheduler, max_num_batched_tokens=32)
    settings = replace(ample(engine), overlap=False, scheduler=scheduler)
    asks = [Ask([(i, 0, 130)], [(100 + i, 0, 4)], FAR * i, 4, 4) for i in range(1, 4)]
    exposed = []
    for layers in (0, 1, 16):
        pair = paired(asks, settings, rules(settings, protocol=protocol, layers=layers, ns_per_byte=20.0))
        watched(pair)
        times = pair.pair_times()
        assert (times.moved_bytes == 33 * 100).all()
        exposed.append(int((times.arrived - times.computed).sum()))
    whole, chunks, by_layers = exposed
    assert whole > chunks > by_layers > 0


def test_what_lies_on_the_decode_side_is_not_sent_and_the_last_page_may_be_a_part():
    """The same prompt twice, and one that goes on: whole pages that are cached there stay, a partial one is sent."""
    settings = replace(ample(VLLM), overlap=False)
    bt = settings.block_tokens
    first = [(1, 0, 5 * bt + 1)]
    asks = [
        Ask(first, [(100, 0, 3)], 0, 3, 3),
        Ask(first, [(101, 0, 3)], FAR, 3, 3),
        Ask([*first, (2, 0, 2 * bt)], [(102, 0, 3)], 2 * FAR, 3, 3),
    ]
    pair = paired(asks, settings, rules(settings, layers=0))
    watched(pair)
    assert_baseline(pair)
    assert (pair.pair_times().moved_bytes // 100).tolist() == [6, 1, 3]


def test_each_side_admits_in_its_own_order():
    """The prefill side takes the shortest first, the decode side has given memory in order of arrival: nobody waits."""
    base = replace(ample(SGLANG), overlap=False)
    settings = replace(base, scheduler=replace(base.scheduler, policy="shortest-prefill-first"))
    asks = [Ask([(i, 0, 140 - 13 * i)], [(100 + i, 0, 6)], 0, 6, 6) for i in range(1, 9)]
    pair = paired(asks, settings, rules(settings, ns_per_byte=5.0), reserved_decode_tokens=2, preallocated_requests=4)
    watched(pair)
    assert_baseline(pair)
    journal = pair.journal()
    assert (journal.status == FINISHED).all()
    assert (np.diff(pair.pair_times().computed) < 0).any()
