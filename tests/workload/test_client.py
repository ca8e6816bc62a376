"""Client protocols: what each tool sends, in which order, and what of it counts."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE
from kvbench.workload.build import build_workload
from kvbench.workload.protocols import PROTOCOLS


def tree(protocol: str, *changes: str) -> dict:
    texts = [("--client", f"client.protocol={protocol}"), *(("--set", text) for text in changes)]
    return configure(None, changes=texts).config.tree()


@pytest.mark.parametrize(
    ("protocol", "slots", "measured", "warm_ups", "prompt", "output"),
    [
        ("vllm-bench", 8, 1000, 1, (1024, 1024), (128, 128)),
        ("sglang-bench", 8, 1000, 1, (1, 1024), (1, 1024)),
        ("inferencemax", 8, 80, 16, (819, 1024), (102, 128)),
        ("aiconfigurator", 8, 160, 16, (1024, 1024), (128, 128)),
        ("aiconfigurator-eval", 8, 80, 16, (1024, 1024), (128, 128)),
        ("aiperf", 8, 16, 0, (1024, 1024), (128, 128)),
        ("aiperf", 2, 10, 0, (1024, 1024), (128, 128)),
    ],
)
def test_what_a_tool_sends(protocol, slots, measured, warm_ups, prompt, output):
    requests, _ = build_workload(tree(protocol, f"arrivals.concurrency={slots}"))
    requests.check()
    counts = ~requests.is_excluded()
    assert (int(counts.sum()), int((~counts).sum())) == (measured, warm_ups)
    told = requests.prompt_tokens[counts]
    assert prompt[0] <= told.min()
    assert told.max() <= prompt[1]
    made = requests.output_tokens[counts]
    assert output[0] <= made.min()
    assert made.max() <= output[1]
    if prompt[0] < prompt[1]:
        assert abs(told.mean() - sum(prompt) / 2) < 0.12 * (prompt[1] - prompt[0])


def test_every_protocol_keeps_its_slots_filled_unless_a_rate_is_given():
    for name in PROTOCOLS:
        assert tree(name, "arrivals.concurrency=4")["arrivals"]["process"] == "closed"
        assert tree(name, "arrivals.concurrency=4", "arrivals.rate=2")["arrivals"]["process"] == "gamma"
    assert tree("vllm-bench")["arrivals"]["process"] == "all-at-once"


def test_a_flag_beats_the_protocol_and_the_protocol_beats_the_scenario():
    found = configure("chat", changes=[("--client", "client.protocol=vllm-bench"), ("--num-prompts", "num_prompts=7")])
    assert found.config["num_prompts"] == 7
    assert configure("chat", changes=[("--client", "client.protocol=vllm-bench")]).config["num_prompts"] == 1000


def small(protocol: str, *more: str):
    changes = ("arrivals.concurrency=3", "lengths.prompt=100", "lengths.output=9", *more)
    return run(configure(None, changes=[("--client", f"client.protocol={protocol}"), *(("--set", c) for c in changes)]))


def test_the_warm_up_ends_before_the_first_request_that_counts_and_is_left_out():
    result = small("aiconfigurator")
    journal, warm = result.journal, result.requests.is_excluded()[result.journal.request_index]
    assert int(warm.sum()) == 6
    assert journal.finish_ns[warm].max() <= journal.arrival_ns[~warm].min()
    assert result.record.summary["requests"] == 60
    in_flight = [
        int(((journal.arrival_ns <= at) & (journal.finish_ns > at)).sum()) for at in np.unique(journal.arrival_ns)
    ]
    assert max(in_flight) == 3


def test_requests_with_a_rate_come_at_their_gaps_after_the_warm_up():
    result = small("aiconfigurator", "arrivals.rate=50")
    journal, requests = result.journal, result.requests
    warm = requests.is_excluded()[journal.request_index]
    end = journal.finish_ns[warm].max()
    assert np.array_equal(journal.arrival_ns[~warm] - end, requests.think_ns[journal.request_index[~warm]])
    assert (requests.arrival_ns == 0).all()


def test_a_repeated_first_prompt_is_in_the_cache():
    result = small("vllm-bench", "num_prompts=5")
    hits = result.journal.cached_tokens[~result.requests.is_excluded()[result.journal.request_index]]
    assert hits.tolist() == [96, 0, 0, 0, 0]
    assert small("vllm-bench", "num_prompts=5", "client.warm_up_prompt=own").journal.cached_tokens.sum() == 0


def test_the_same_first_prompt_for_several_warm_ups_of_other_lengths():
    requests, _ = build_workload(tree("inferencemax", "arrivals.concurrency=4", "lengths.prompt=100"))
    requests.check()
    warm = np.flatnonzero(requests.is_excluded())
    first = warm.size
    for column in ("prompt_tokens", "output_tokens", "max_tokens"):
        assert (getattr(requests, column)[warm] == getattr(requests, column)[first]).all()
    begin, end = requests.segment_offset[first], requests.segment_offset[first + 1]
    for row in warm:
        mine = slice(requests.segment_offset[row], requests.segment_offset[row + 1])
        assert requests.segment_stream[mine].tolist() == requests.segment_stream[begin:end].tolist()
    assert (requests.after[first:] == 0).all()
    assert (requests.after[warm] == NONE).all()


def test_the_draws_of_what_counts_do_not_depend_on_the_warm_up():
    with_it, _ = build_workload(tree("inferencemax", "arrivals.concurrency=4"))
    without, _ = build_workload(tree("inferencemax", "arrivals.concurrency=4", "client.warm_up_per_slot=0"))
    assert with_it.prompt_tokens[~with_it.is_excluded()].tolist() == without.prompt_tokens.tolist()


def test_ignore_eos_goes_on_to_max_tokens():
    requests, _ = build_workload(tree("vllm-bench", "lengths.max_tokens=200", "num_prompts=3"))
    assert requests.output_tokens.tolist() == [128] * 4
    requests, _ = build_workload(
        tree("vllm-bench", "lengths.max_tokens=200", "num_prompts=3", "client.ignore_eos=true")
    )
    assert requests.output_tokens.tolist() == [200] * 4


def test_sessions_stay_whole_behind_a_warm_up():
    requests, _ = build_workload(
        tree("aiconfigurator", "arrivals.concurrency=2", "sessions.turns=3", "sessions.think_s=1")
    )
    requests.check()
    main = np.flatnonzero(~requests.is_excluded())
    later = main[requests.turn[main] > 0]
    assert (requests.after[later] == later - 1).all()
    assert (requests.think_ns[later] == 10**9).all()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        (("client.prompts_per_slot=3",), "set arrivals.concurrency"),
        (("client.warm_up_per_slot=1",), "set arrivals.concurrency"),
        (("client.range_low=0.5", "lengths.prompt={distribution='uniform', min=1, max=9}"), "set lengths.prompt"),
        (("client.warm_up=1", "arrivals.process=users", "arrivals.users=2"), "arrivals.process = users"),
    ],
)
def test_what_cannot_be(changes, what):
    with pytest.raises(UsageError, match=what):
        build_workload(configure(None, changes=[("--set", change) for change in changes]).config.tree())


def test_a_trace_and_phases_have_no_client(tmp_path):
    with pytest.raises(UsageError, match="no effect on a trace"):
        configure(None, trace="x.jsonl", changes=[("--client", "client.protocol=aiperf")])
    (tmp_path / "two.toml").write_text("[client]\nwarm_up = 2\n[[phase]]\nname = 'a'\n[[phase]]\nname = 'b'\n")
    with pytest.raises(UsageError, match=r"\[\[phase\]\] exclude each other"):
        build_workload(configure(str(tmp_path / "two.toml")).config.tree())
