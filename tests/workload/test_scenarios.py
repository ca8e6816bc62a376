"""The scenario files: each is valid, says what it is, and has the property it is named for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from kvbench.core.requests import NONE
from kvbench.workload.build import build_workload

FOLDER = Path(__file__).resolve().parents[2] / "workloads"
SCENARIOS = sorted(path.stem for path in FOLDER.glob("*.toml"))

MEASURED = ("chunk-stall", "hit-ttft", "measured", "same-tokens")
"""Smaller: a model really runs them."""


def requests_of(name):
    return build_workload(tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8")))[0]


def test_the_list():
    assert SCENARIOS == [
        "agent", "batch-offline", "bursty", "chat", "chat-shared-system", "chunk-stall", "code-completion",
        "fleet-prefixes", "hit-ttft", "long-vs-short", "measured", "mooncake-like", "paper-paged-attention",
        "paper-paged-attention-alpaca", "parallel-sampling", "prefix-zipf", "rag", "same-tokens", "scan-thrash",
        "summarise-long", "tiers", "tiny-model",
    ]  # fmt: skip


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_is_valid(name):
    requests = requests_of(name)
    requests.check()
    assert not [note for note in requests.notes if not note.startswith("gaps of arrivals are as drawn")]
    assert (10 if name in MEASURED else 100) <= len(requests) <= 5_000
    first = (FOLDER / f"{name}.toml").read_text("utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert 10 < len(first) <= 100


def shared(requests):
    """Share of prompt tokens whose stream an earlier request has too, or that an earlier turn generated."""
    _, first = np.unique(requests.segment_stream, return_index=True)
    again = np.ones(requests.segment_stream.size, np.bool_)
    again[first] = False
    return requests.segment_length[again].sum() / requests.segment_length.sum()


def test_what_they_share():
    assert shared(requests_of("chat")) > 0.6
    assert shared(requests_of("chat-shared-system")) > 0.9
    assert shared(requests_of("rag")) > 0.7
    assert shared(requests_of("agent")) > 0.9
    assert shared(requests_of("code-completion")) > 0.85
    assert 0.4 < shared(requests_of("mooncake-like")) < 0.6
    assert 0.3 < shared(requests_of("prefix-zipf")) < 0.9
    assert shared(requests_of("summarise-long")) == shared(requests_of("batch-offline")) == 0


def test_what_they_are_named_for():
    assert requests_of("chat").turn.max() >= 3
    agent = requests_of("agent")
    assert np.count_nonzero(agent.joins != NONE) > 50  # second and further calls of a turn
    typing = requests_of("code-completion")
    assert np.count_nonzero(typing.after == NONE) == 40
    assert typing.prompt_tokens.mean() > 50 * typing.output_tokens.mean()
    scans = requests_of("scan-thrash")
    alone = np.diff(scans.segment_offset) == 1
    assert 0.03 < alone.mean() < 0.07
    assert scans.prompt_tokens[alone].min() >= 12_000
    assert np.median(requests_of("mooncake-like").prompt_tokens) == pytest.approx(7_200, rel=0.05)
    assert requests_of("batch-offline").arrival_ns.max() == 0
    assert set(requests_of("parallel-sampling").samples.tolist()) == {8}
    assert (requests_of("long-vs-short").prompt_tokens >= 24_000).mean() == pytest.approx(0.05, abs=0.02)
    assert requests_of("summarise-long").prompt_tokens.mean() > 10_000
    for name, prompt, output in (("paper-paged-attention", 161, 338), ("paper-paged-attention-alpaca", 19, 58)):
        assert requests_of(name).prompt_tokens.mean() == pytest.approx(prompt, rel=0.02)
        assert requests_of(name).output_tokens.mean() == pytest.approx(output, rel=0.02)
    bursty = requests_of("bursty")
    ends = [bursty.arrival_ns[bursty.phase == p].max() / 1e9 for p in range(3)]
    rates = np.bincount(bursty.phase) / np.diff(ends, prepend=0)
    assert rates[1] > 3 * rates[0]
    assert rates[1] > 3 * rates[2]
