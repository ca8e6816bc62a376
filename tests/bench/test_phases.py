"""Parts of a run that are left out of its results, a part that warms the cache up, and a hit rate that is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.replay import replay
from kvbench.bench.run import run
from kvbench.core.errors import UsageError

WARMED = """
arrivals.rate = 20
sharing = {groups = 8, prefix = 320}
lengths = {prompt = 20, output = 6}
[[phase]]
name = "warm-up"
warm_up = true
num_prompts = 25
[[phase]]
name = "measured"
pause_s = 3
num_prompts = 30
[[phase]]
name = "cool-down"
exclude = true
num_prompts = 15
"""


def ran(folder, text, *changes):
    path = folder / "parts.toml"
    path.write_text(text)
    return run(configure(str(path), None, [("here", change) for change in changes]))


def test_what_is_excluded_runs_and_is_not_counted(tmp_path):
    result = ran(tmp_path, WARMED)
    requests, journal, summary = result.requests, result.journal, result.record.summary
    assert requests.phases == ("measured", "cool-down")
    assert journal.status.size == 45
    assert (summary["requests"], summary.latencies["ttft"].n) == (30, 30)
    measured = requests.phase[journal.request_index] == 0
    ttft = (journal.first_token_ns - journal.arrival_ns)[measured] / 1e6
    assert summary.latencies["ttft"].mean == pytest.approx(ttft.mean())
    assert summary["cached_tokens"] == journal.cached_tokens[measured].sum()
    assert summary["prompt_tokens"] == 340 * 30
    first, last = journal.arrival_ns[measured].min(), journal.finish_ns[measured].max()
    assert summary["duration"] == pytest.approx((last - first) / 1e9)
    assert 0 < summary.latencies["itl"].n < 45 * 5
    assert summary["hit_rate_infinite"] is None
    (note,) = [note for note in result.record.notes if note.startswith("left out")]
    assert "cool-down; blocks, steps" in note


def test_a_warm_up_runs_in_front_of_a_warm_run_only(tmp_path):
    cold, warm = (ran(tmp_path, WARMED, f"cache.state={state}") for state in ("cold", "warm"))
    assert warm.requests.phases == ("warm-up", "measured", "cool-down")
    mine = warm.requests.phase == 1
    assert warm.requests.segment_length[warm.requests.segment_offset[:-1]][mine].tolist() == [320] * 30
    assert warm.requests.output_tokens[mine].tolist() == cold.requests.output_tokens[:30].tolist()
    shift = warm.requests.arrival_ns[mine] - cold.requests.arrival_ns[:30]
    assert np.unique(shift).size == 1  # the same draws, later
    assert shift[0] == warm.requests.arrival_ns[~mine][24] + 3_000_000_000
    groups = np.unique(cold.requests.segment_stream[cold.requests.segment_offset[:30]]).size
    assert cold.record.summary["cached_tokens"] == 320 * (30 - groups)
    assert warm.record.summary["cached_tokens"] == 320 * 30
    assert warm.record.cache_state == "warm"
    assert not [note for note in warm.record.notes if "this very workload" in note]


def test_a_warm_run_without_a_warm_up_says_what_its_hits_are(tmp_path):
    result = ran(tmp_path, "num_prompts = 4\nlengths = {prompt = 40, output = 3}", "cache.state=warm")
    assert [note for note in result.record.notes if "has seen this very workload once" in note]


def test_gaps_are_told_apart_under_a_closed_loop_too(tmp_path):
    text = WARMED.replace("arrivals.rate = 20", "arrivals = {process = 'closed', concurrency = 3}")
    result = ran(tmp_path, text.replace("pause_s = 3\n", ""), "cache.state=warm")
    phase, count = result.journal.itl_phase, result.journal.itl_count
    assert phase is not None
    assert (np.diff(phase) >= 0).all()
    inside = [int(count[phase == k].sum()) for k in range(3)]
    assert sum(inside) == 70 * 5
    assert inside == [pytest.approx(5 * n, abs=60) for n in (25, 30, 15)]
    assert result.record.summary.latencies["itl"].n == inside[1]


@pytest.mark.parametrize(("asked", "verdict"), [(0.9, "is met"), (0.5, "is met"), (0.999, "IS MISSED")])
def test_a_hit_rate_that_is_asked_for_is_compared_with_the_workload(tmp_path, asked, verdict):
    text = "num_prompts = 60\nsharing = {groups = 1, prefix = 320}\nlengths = {prompt = 28, output = 2}"
    result = ran(tmp_path, text, f"sharing.hit_rate={asked}")
    (note,) = [note for note in result.record.notes if f"sharing.hit_rate = {asked} {verdict}" in note]
    found = float(note.split("finds ")[1].split(" %")[0])
    assert (abs(found - 100 * asked) <= 1) == (verdict == "is met")


FLUSHED = """
num_prompts = 40
arrivals = {process = "constant", rate = 4}
sharing = {groups = 1, prefix = 320}
lengths = {prompt = 8, output = 2}
flush = [{at_s = 5.1}]
"""


def test_a_flush_costs_its_namespace_the_cache(tmp_path):
    journal = ran(tmp_path, FLUSHED).journal
    assert np.flatnonzero(journal.cached_tokens == 0).tolist() == [0, 20]


def test_a_replay_without_a_clock_has_its_flushes_between_requests(tmp_path):
    path = tmp_path / "parts.toml"
    path.write_text(FLUSHED)
    assert replay(configure(str(path)))["hit_tokens"] == 38 * 320


def test_flushes_are_of_generated_workloads(tmp_path):
    (tmp_path / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,100,10\n")
    path = tmp_path / "parts.toml"
    path.write_text("[trace]\npath = 'trace.csv'\n[[flush]]\nat_s = 3\n")
    with pytest.raises(UsageError, match="flush has no effect on a trace"):
        run(configure(str(path)))
