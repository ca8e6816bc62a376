"""Generated workloads: arrivals, sharing, sessions, phases, and which seed draws what."""

from __future__ import annotations

import math
import tomllib
import tracemalloc
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.keys import Key
from kvbench.core.requests import NONE, Requests
from kvbench.workload.build import build_workload
from kvbench.workload.keys import PHASE_KEYS, WORKLOAD_KEYS

from .files import csv


def built(text: str = "", **top: Any) -> Requests:
    """Requests of a TOML text."""
    return build_workload({**tomllib.loads(text), **top})[0]


def differing(a: Requests, b: Requests) -> set[str]:
    """Names of the arrays in which two tables differ."""
    arrays = [f.name for f in fields(Requests) if isinstance(getattr(a, f.name), np.ndarray)]
    return {name for name in arrays if not np.array_equal(getattr(a, name), getattr(b, name))}


def prompt(requests: Requests, i: int) -> list[tuple[int, int]]:
    """Stream and length of each piece of a prompt."""
    own = slice(requests.segment_offset[i], requests.segment_offset[i + 1])
    return list(zip(requests.segment_stream[own].tolist(), requests.segment_length[own].tolist(), strict=True))


def test_defaults():
    requests = built()
    assert len(requests) == 1_000
    assert set(requests.prompt_tokens.tolist()) == {1_024}
    assert set(requests.output_tokens.tolist()) == {128}
    assert not requests.arrival_ns.any()  # rate inf
    assert np.unique(np.concatenate((requests.segment_stream, requests.output_stream))).size == 2_000
    assert (requests.tenants, requests.namespaces, requests.phases) == (("default",), ("",), ("main",))
    assert set(requests.session_id.tolist()) == {NONE}


# ------------------------------------------------------------------ arrivals


def gaps(text: str) -> np.ndarray:
    return np.diff(built(text, num_prompts=100_000).arrival_ns, prepend=0) / 1e9


def test_poisson_gaps():
    found = gaps("arrivals = {process = 'poisson', rate = 50}")
    assert found.mean() == pytest.approx(1 / 50, rel=0.01)
    assert found.std() / found.mean() == pytest.approx(1, rel=0.01)
    assert np.median(found) == pytest.approx(math.log(2) / 50, rel=0.01)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_gamma_gaps(burstiness):
    found = gaps(f"arrivals = {{rate = 50, burstiness = {burstiness}}}")
    assert found.mean() == pytest.approx(1 / 50, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.02)


def test_gamma_of_one_is_poisson():
    a = built("arrivals = {process = 'poisson', rate = 50}")
    assert a.fingerprint() == built("arrivals = {process = 'gamma', rate = 50}").fingerprint()


def test_constant_arrivals():
    requests = built("arrivals = {process = 'constant', rate = 3}", num_prompts=9)
    assert requests.arrival_ns[-1] == 3_000_000_000
    assert requests.arrival_ns[0] == 333_333_000


@pytest.mark.parametrize(
    "table", ["rate = inf", "process = 'all-at-once', rate = 5", "process = 'closed', concurrency = 4"]
)
def test_untimed_arrivals(table):
    assert not built(f"arrivals = {{{table}}}").arrival_ns.any()


def test_times_are_whole_microseconds():
    requests = built("arrivals.rate = 7\nsessions = {turns = 3, think_s = {distribution='exponential', mean=1}}")
    assert not (requests.arrival_ns % 1_000).any()
    assert not (requests.think_ns % 1_000).any()


def test_cancels():
    text = "arrivals = {cancel_share = 0.3, cancel_after_s = {distribution='uniform', min=1, max=2}}"
    cancel = built(text, num_prompts=20_000).cancel_ns
    assert (cancel != NONE).mean() == pytest.approx(0.3, abs=0.015)
    assert 1e9 <= cancel[cancel != NONE].min() <= cancel.max() <= 2e9
    assert set(built().cancel_ns.tolist()) == {NONE}


def test_priorities():
    counts = np.bincount(built("arrivals.priorities = 4", num_prompts=20_000).priority)
    assert counts / 20_000 == pytest.approx([0.25] * 4, abs=0.015)


# ------------------------------------------------------------------ sharing


def test_shared_prefix_comes_on_top():
    requests = built("sharing = {groups = 1, prefix = 600}\nlengths.prompt = 40", num_prompts=3)
    assert requests.prompt_tokens.tolist() == [640] * 3
    pieces = [prompt(requests, i) for i in range(3)]
    assert {p[0] for p in pieces} == {(1, 600)}
    assert len({p[1][0] for p in pieces}) == 3


def test_a_group_has_one_length():
    text = "sharing = {groups = 50, prefix = {distribution='uniform', min=100, max=900}}"
    requests = built(text, num_prompts=5_000)
    first = requests.segment_offset[:-1]
    pairs = set(zip(requests.segment_stream[first].tolist(), requests.segment_length[first].tolist(), strict=True))
    assert len(pairs) == 50
    assert len({stream for stream, _ in pairs}) == 50


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5])
def test_popularity_follows_zipf(exponent):
    requests = built(f"sharing = {{groups = 20, zipf = {exponent}}}", num_prompts=100_000)
    ranks = requests.segment_stream[requests.segment_offset[:-1]] - 1
    expected = np.arange(1, 21) ** -exponent
    assert np.bincount(ranks) / ranks.size == pytest.approx(expected / expected.sum(), abs=0.006)


@pytest.mark.parametrize(("tenants", "namespaces"), [(4, 4), (8, 4), (1, 3), (5, 1)])
def test_tenants_are_dealt_to_namespaces(tenants, namespaces):
    requests = built(f"sharing = {{tenants = {tenants}, namespaces = {namespaces}}}", num_prompts=8_000)
    assert np.bincount(requests.tenant).size == len(requests.tenants) == tenants
    assert np.bincount(requests.namespace).size == len(requests.namespaces) == namespaces
    pairs = set(zip(requests.tenant.tolist(), requests.namespace.tolist(), strict=True))
    assert len(pairs) == max(tenants, namespaces)


def test_samples_have_streams_of_their_own():
    requests = built("lengths.samples = {distribution='uniform', min=1, max=4}", num_prompts=50)
    ranges = [range(s, s + k) for s, k in zip(requests.output_stream, requests.samples, strict=True)]
    streams = [s for r in ranges for s in r]
    assert len(set(streams)) == len(streams) == requests.num_sequences
    assert not set(streams) & set(requests.segment_stream.tolist())


# ------------------------------------------------------------------ sessions


def test_a_turn_holds_all_that_came_before():
    text = """
    sessions = {turns = 3, think_s = 2}
    sharing = {groups = 1, prefix = 100}
    lengths.prompt = {distribution='uniform', min=5, max=50}
    lengths.output = {distribution='uniform', min=5, max=50}
    arrivals.rate = 3
    """
    requests = built(text, num_prompts=7)
    assert requests.session_id.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert requests.turn.tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert requests.after.tolist() == [NONE, 0, 1, NONE, 3, 4, NONE]
    assert requests.think_ns.tolist() == [0, 2e9, 2e9, 0, 2e9, 2e9, 0]
    for i in (1, 2, 4, 5):
        before, now = prompt(requests, i - 1), prompt(requests, i)
        answer = (int(requests.output_stream[i - 1]), int(requests.output_tokens[i - 1]))
        assert now[:-1] == [*before, answer]
        assert now[-1][0] not in {stream for stream, _ in now[:-1]}
    assert prompt(requests, 0)[0] == prompt(requests, 6)[0] == (1, 100)


def test_an_answer_cut_short_is_what_the_next_turn_holds():
    requests = built("sessions.turns = 2\nlengths = {prompt=10, output=80, max_tokens=30}", num_prompts=2)
    assert requests.output_tokens.tolist() == [30, 30]
    assert requests.prompt_tokens.tolist() == [10, 50]
    assert "lengths.max_tokens ends 2 of 2 outputs early" in requests.notes


def test_an_empty_answer_leaves_no_piece():
    requests = built("sessions.turns = 2\nlengths = {prompt=10, output=0}", num_prompts=2)
    assert [length for _, length in prompt(requests, 1)] == [10, 10]


def test_rate_counts_turns():
    text = "arrivals.rate = 20\nsessions.turns = {distribution='uniform', min=1, max=9}"
    requests = built(text, num_prompts=100_000)
    assert len(requests) / (requests.arrival_ns.max() / 1e9) == pytest.approx(20, rel=0.02)
    lengths = np.bincount(requests.session_id)
    assert lengths.mean() == pytest.approx(5, rel=0.02)


# ------------------------------------------------------------------ seeds

MIXED = """
num_prompts = 500
arrivals.rate = 10
arrivals.cancel_share = 0.5
arrivals.priorities = 3
arrivals.cancel_after_s = {distribution='exponential', mean=1}
sharing.groups = 9
sharing.zipf = 1
sharing.tenants = 3
sharing.namespaces = 3
sharing.prefix = {distribution='uniform', min=9, max=99}
sessions.think_s = {distribution='exponential', mean=1}
sessions.turns = 2
[lengths]
prompt = {distribution='lognormal', mean=200, sigma=1}
output = {distribution='lognormal', mean=100, sigma=1}
"""


def test_the_same_seed_is_the_same_workload():
    assert built(MIXED, seed=4).fingerprint() == built(MIXED, seed=4).fingerprint()
    assert built(MIXED, seed=4).fingerprint() != built(MIXED, seed=5).fingerprint()


def test_a_workload_of_three_seeds_is_pinned():
    """Draws may never change: published fingerprints would stop to hold."""
    seeds = {"arrivals": 1, "lengths": 2, "sharing": 3}
    assert built(MIXED, seeds=seeds).fingerprint()[:16] == "9d42c2821418a581"


def test_each_seed_redraws_its_own_part_only():
    plain = built(MIXED, seed=4)
    prompts = {"prompt_tokens", "segment_length"}
    arrivals = differing(plain, built(MIXED, seed=4, seeds={"arrivals": 9}))
    assert arrivals == {"arrival_ns", "cancel_ns", "priority"}
    lengths = differing(plain, built(MIXED, seed=4, seeds={"lengths": 9}))
    assert lengths == {"output_tokens", "max_tokens", "think_ns"} | prompts
    sharing = differing(plain, built(MIXED, seed=4, seeds={"sharing": 9}))
    assert sharing == {"tenant", "namespace", "segment_stream"} | prompts


def test_explicit_seeds_replace_the_run_seed():
    seeds = {"arrivals": 4, "lengths": 4, "sharing": 4}
    assert built(MIXED, seed=99, seeds=seeds).fingerprint() == built(MIXED, seed=4).fingerprint()


def test_more_requests_begin_with_the_same():
    few, many = built(MIXED), built(MIXED.replace("500", "900"))
    assert many.output_tokens[:500].tolist() == few.output_tokens.tolist()
    assert many.tenant[:500].tolist() == few.tenant.tolist()


# ------------------------------------------------------------------ phases

PHASES = """
lengths.prompt = {distribution='uniform', min=10, max=90}
sharing = {groups = 5, prefix = {distribution='uniform', min=100, max=900}}
arrivals = {process = 'constant', rate = 10}
[[phase]]
name = "calm"
num_prompts = 20
[[phase]]
num_prompts = 30
arrivals.rate = 100
sharing.groups = 8
sessions.turns = 3
"""


def test_phases_follow_each_other():
    requests = built(PHASES)
    assert requests.phases == ("calm", "phase-2")
    assert np.bincount(requests.phase).tolist() == [20, 30]
    calm, rush = requests.arrival_ns[:20], requests.arrival_ns[20:][requests.turn[20:] == 0]
    assert (calm[0], calm[-1]) == (100_000_000, 2_000_000_000)
    assert (rush[0], rush[-1]) == (2_030_000_000, 2_300_000_000)
    assert set(requests.session_id[:20].tolist()) == {NONE}
    assert requests.session_id[20:].tolist() == [i // 3 for i in range(30)]


def test_phases_share_prefixes_but_no_draws():
    requests = built(PHASES)
    first = requests.segment_offset[:-1]
    stream, length = requests.segment_stream[first], requests.segment_length[first]
    assert len(set(zip(stream.tolist(), length.tolist(), strict=True))) == np.unique(stream).size
    assert set(stream[:20].tolist()) < set(stream[20:].tolist()) | set(range(1, 6))
    assert stream.max() <= 8
    text = requests.segment_length[first + 1]
    assert text[:20].tolist() != text[20:40].tolist()


def test_a_phase_alone_is_the_workload_without_it():
    phase = built("arrivals.rate = 5\n[[phase]]\nname = 'main'\nnum_prompts = 50")
    assert phase.fingerprint() == built("arrivals.rate = 5\nnum_prompts = 50").fingerprint()


# ------------------------------------------------------------------ bad input

WRONG = {
    "unknown key": ("arrivals.rat = 4", "unknown key arrivals.rat; the nearest is arrivals.rate"),
    "unknown process": ("arrivals.process = 'pareto'", "arrivals.process is one of gamma, poisson"),
    "rate 0": ("arrivals.rate = 0", "arrivals.rate must be at least"),
    "rate nan": ("arrivals.rate = nan", "arrivals.rate is a number"),
    "too slow": ("arrivals = {rate = 1e-6}\nnum_prompts = 1000000", "70 years"),
    "bursty poisson": ("arrivals = {process='poisson', rate=1, burstiness=0.5}", "set the process to gamma"),
    "no concurrency": ("arrivals.process = 'closed'", "needs arrivals.concurrency of at least 1"),
    "negative prompts": ("num_prompts = -4", "num_prompts must be at least 0"),
    "endless turns": ("sessions.turns = 10000\nnum_prompts = 10000", "sessions.turns makes over"),
    "wrong table": ("lengths.prompt = {distribution = 'normal', mean = 5}", "lengths.prompt: a normal"),
    "wrong rule": ("lengths.max_tokens = 'all'", "lengths.max_tokens is"),
    "two names": ("[[phase]]\nname='a'\n[[phase]]\nname='a'", "two phases have the same name"),
    "partly closed": (
        "arrivals.concurrency = 2\n[[phase]]\narrivals.process = 'closed'\n[[phase]]", "in some phases only"
    ),
    "seed in a phase": ("[[phase]]\nseeds.lengths = 3", "unknown key seeds.lengths"),
    "slow phases": (
        "arrivals = {process='constant', rate = 1e-6}\n" + "[[phase]]\nnum_prompts = 2000\n" * 2, "70 years"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_workloads_are_explained(name):
    text, expected = WRONG[name]
    with pytest.raises(UsageError) as caught:
        built(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ traces by configuration


def test_a_trace_by_its_keys(tmp_path):
    path = csv(tmp_path, "2023-11-16 18:17:03,100,10", "2023-11-16 18:17:05,200,20", "bad", "2023-11-16 18:17:07,3,3")
    text = "trace = {skip_bad_rows = true, time_scale = 2}\nlengths.max_tokens = '2x'\nnum_prompts = 3"
    requests, info = build_workload({"trace": {"path": str(path)}, **_merged(text, path)})
    assert requests.arrival_ns.tolist() == [0, 4_000_000_000]
    assert requests.max_tokens.tolist() == [20, 40]
    assert info is not None
    assert (info.format, info.num_rows) == ("azure", 2)


def _merged(text: str, path: Any) -> dict[str, Any]:
    tree = tomllib.loads(text)
    tree["trace"]["path"] = str(path)
    return tree


def test_the_arrivals_seed_moves_the_jitter(tmp_path):
    path = csv(tmp_path, *(f"2023-11-16 18:17:{i:02d},100,10" for i in range(30)))
    trace = {"path": str(path), "jitter_ms": 900.0}
    runs = [built(trace=trace, seed=seed, seeds=seeds) for seed, seeds in ((1, {}), (2, {"arrivals": 1}), (2, {}))]
    assert runs[0].fingerprint() == runs[1].fingerprint() != runs[2].fingerprint()


def test_a_trace_has_no_phases(tmp_path):
    path = csv(tmp_path, "2023-11-16 18:17:03,100,10")
    with pytest.raises(UsageError, match="remove the phases or trace"):
        built("[[phase]]\nnum_prompts = 3", trace={"path": str(path)})


def test_keys_are_sound():
    for keys in (WORKLOAD_KEYS, PHASE_KEYS):
        assert len({key.name for key in keys}) == len(keys)
    assert all(isinstance(key, Key) and key.meaning for key in WORKLOAD_KEYS)
    assert not [key.name for key in WORKLOAD_KEYS if len(key.meaning) > 90]


def test_keys_of_other_rooms_are_left_alone():
    plain = built()
    assert built("cache.blocks = 5\nmodel = 'x'").fingerprint() == plain.fingerprint()


def test_a_million_requests_take_a_few_hundred_bytes_each():
    """Measured on a tenth of them: what is allocated at most, and what is kept."""
    tracemalloc.start()
    try:
        requests = built("sharing = {groups = 100, prefix = 500}\narrivals.rate = 9\n", num_prompts=100_000)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept / len(requests) < 250
    assert peak / len(requests) < 650
