"""The other public traces read as their documentation says they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from kvbench.core.requests import NONE
from kvbench.core.units import NS_PER_S
from kvbench.workload.fit import shared_tokens
from kvbench.workload.formats.servegen import clients_of
from kvbench.workload.source import open_trace
from kvbench.workload.trace import load_trace

from .files import SHARED, info, load, public

WEKA = SHARED / "weka-cc" / "traces"
BURSTGPT = SHARED / "burstgpt" / "burstgpt_1_head400.csv"
SERVEGEN = SHARED / "servegen" / "reason" / "deepseek-r1"
AGENTS = SHARED / "lmcache-agent-trace"
OTEL = SHARED / "inference-perf" / "examples" / "otel" / "test_traces"
LAB = SHARED / "tracelab" / "replay" / "examples"
ME2 = SHARED / "llmservingsim" / "workload_me2_01_mixed.jsonl"
ESTIMATE = {"chars_per_token": 4.0}


@pytest.fixture(scope="module")
def weka():
    return load_trace(public(WEKA))


def test_weka_counts_and_lengths(weka):
    requests, read = weka
    assert (read.format, read.block_tokens, len(requests)) == ("weka", 64, 4_560)
    prompt, output = requests.prompt_tokens, requests.output_tokens
    assert round(prompt.mean()) == 86_850
    assert np.percentile(prompt, 50) == 78_702.5
    assert (round(np.percentile(prompt, 99)), prompt.max()) == (298_319, 706_227)
    assert (round(output.mean()), np.percentile(output, 50), round(np.percentile(output, 99))) == (448, 219, 3_792)


def test_weka_sessions_and_subagents(weka):
    requests, _ = weka
    opens = requests.turn == 0
    subagents = opens & (requests.after != NONE)
    assert (np.count_nonzero(opens & (requests.after == NONE)), np.count_nonzero(subagents)) == (123, 12)
    own = ~np.isin(requests.session_id, requests.session_id[subagents])
    sizes = np.unique(requests.session_id[own], return_counts=True)[1]
    assert np.median(sizes) == pytest.approx(29, abs=1)
    assert requests.think_ns[own & (requests.turn > 0)].max() == 77_360 * NS_PER_S


def test_weka_hit_rate_within_sessions(weka):
    """Leading blocks with an id seen in an earlier request / blocks with an id."""
    requests, _ = weka
    ids, counts = requests.segment_stream, np.diff(requests.segment_offset)
    first = np.unique(ids, return_index=True)[1]
    new = np.zeros(ids.size + 1, np.bool_)
    new[first] = True
    new[-1] = True
    starts = requests.segment_offset[:-1]
    ahead = np.flatnonzero(new)
    hits = np.minimum(ahead[np.searchsorted(ahead, starts)] - starts, counts)
    whole = requests.prompt_tokens // 64
    assert round(np.minimum(hits, whole).sum() / whole.sum(), 3) == 0.945


def test_weka_adjacent_turns_extend_the_prompt_before(weka):
    requests, _ = weka
    pieces = np.split(requests.segment_stream, requests.segment_offset[1:-1])
    extends = resets = total = 0
    for i in np.flatnonzero(requests.turn > 0):
        before = int(requests.after[i])
        if requests.session_id[before] != requests.session_id[i]:
            continue
        one, other = pieces[before][: requests.prompt_tokens[before] // 64], pieces[i]
        size = min(one.size, other.size)
        same = size if np.array_equal(one[:size], other[:size]) else int(np.argmax(one[:size] != other[:size]))
        total += 1
        extends += same >= one.size - 1
        resets += same == 0
    assert extends / total > 0.95
    assert 0 < resets / total < 0.05


def test_burstgpt_head():
    requests = load(public(BURSTGPT))
    assert "17 of 400 rows are failed requests (0 tokens): left out" in requests.notes
    assert any("ramp-up" in note for note in requests.notes)
    assert requests.arrival_ns[-1] == 37_269 * NS_PER_S
    prompt, output = (
        np.concatenate((c, np.zeros(17, np.int64))) for c in (requests.prompt_tokens, requests.output_tokens)
    )
    assert [round(x) for x in (prompt.mean(), *np.percentile(prompt, (50, 99)))] == [520, 314, 1_958]
    assert [round(x) for x in (output.mean(), *np.percentile(output, (50, 99)))] == [277, 230, 1_421]
    assert np.diff(requests.arrival_ns).max() == 6_651 * NS_PER_S


def test_servegen_pool():
    clients, _ = clients_of(open_trace(str(public(SERVEGEN))))
    assert len(clients) == 73
    rates = np.array([[w.rate for _, w in sorted(c.windows.items())] for c in clients if len(c.windows) == 144])
    assert len(rates) == 73
    assert (round(rates.sum(0).mean(), 1), round(rates.sum(0).max(), 1)) == (16.0, 42.5)


def test_servegen_an_hour_keeps_to_its_rate():
    read, requests = info(public(SERVEGEN), duration_s=600.0), load(SERVEGEN, duration_s=600.0)
    clients, _ = clients_of(open_trace(str(SERVEGEN)))
    expected = sum(c.windows[0.0].rate for c in clients if c.texts) * 600
    assert read.format == "servegen"
    assert len(requests) == pytest.approx(expected, rel=0.1)


def test_agent_sessions_are_sorted_into_chains():
    """taubench: several callers in one session; miniswe: each prompt begins with the one before."""
    taubench = load(public(AGENTS / "taubench"), **ESTIMATE)
    assert len(taubench) == 471
    assert np.unique(taubench.session_id).size == 24
    assert "134 rows came before one of their session that is earlier: sorted by time" in taubench.notes
    assert "283 answers are empty (calls of tools are often not recorded): 1 token each" in taubench.notes
    assert "1 of 25 files are empty" in taubench.notes
    miniswe = load(public(AGENTS / "miniswe"), **ESTIMATE)
    order = np.lexsort((miniswe.arrival_ns, miniswe.session_id))
    same = np.diff(miniswe.session_id[order]) == 0
    assert (np.diff(miniswe.prompt_tokens[order])[same] >= 0).all()


def test_otel_traces():
    files = sorted(public(OTEL).rglob("*.json"))
    assert len(files) == 9
    assert {info(path, **ESTIMATE).format for path in files} == {"otel"}
    chain = load(OTEL / "simple" / "simple_chain.json", **ESTIMATE)
    assert chain.after.tolist() == [NONE, 0, 1]
    assert (chain.think_ns / NS_PER_S).tolist() == [0, 0.5, 1]
    fan = load(OTEL / "advanced" / "parallel_requests.json", **ESTIMATE)
    assert fan.after[:3].tolist() == [NONE, 0, 0]


def test_tracelab_examples():
    large = load(public(LAB / "multi_session_large.csv"))
    assert len(large) == 303
    growing = load(LAB / "session_workload_example.csv")
    assert growing.prompt_tokens[:3].tolist() == [12_461 + 5_875, 18_333 + 13_570, 31_902 + 16_159]
    assert shared_tokens(growing, 16)[0] == 18_333 // 16 * 16


def test_llmservingsim_mixed():
    requests = load(public(ME2))
    assert (len(requests), round(requests.arrival_ns[-1] / 1e9, 1)) == (608, 60.9)
    assert (round(requests.prompt_tokens.mean()), round(requests.output_tokens.mean())) == (9_218, 3_021)
    ids = load(ME2.with_name("example_trace.jsonl"))
    assert ids.token_ids.size == ids.prompt_tokens.sum() + ids.output_tokens.sum()
    assert all(b >= a for a, b in itertools.pairwise(ids.arrival_ns.tolist()))
