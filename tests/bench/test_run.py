"""Whole runs with the real engine: from a scenario to a result."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.core.errors import UsageError
from kvbench.core.journal import FINISHED, PARTIAL
from kvbench.report.csv_files import requests_csv, summary_csv


def configured(*texts: str, target: str = "chat"):
    return configure(target, None, [("here", text) for text in ("num_prompts=60", *texts)])


@pytest.mark.parametrize("preset", ["vllm", "vllm-0.19", "sglang"])
def test_a_scenario_runs_to_its_end(preset):
    result = run(configured(f"preset={preset}"))
    summary = result.record.summary
    assert summary.statuses == {"finished": 60}
    assert np.array_equal(result.journal.output_tokens, result.requests.output_tokens)
    assert summary["hit_rate"] > 0.5  # turns of a session hold all that was said before
    assert summary.latencies["itl"].n == int(result.requests.output_tokens.sum()) - 60
    times = result.journal
    assert np.all(times.arrival_ns <= times.scheduled_ns)
    assert np.all(times.scheduled_ns < times.first_token_ns)
    assert np.all(times.first_token_ns <= times.finish_ns)
    assert result.warnings == ()


def test_two_runs_are_equal_to_the_byte():
    first, second = run(configured()), run(configured())
    assert list(summary_csv(first.record)) == list(summary_csv(second.record))
    assert list(requests_csv(first.journal, first.requests)) == list(requests_csv(second.journal, second.requests))


def test_steps_are_recorded_where_they_are_asked_for():
    result = run(configured(), record_steps=True)
    assert result.journal.steps.shape[0] == result.counters.num_steps > 0
    assert run(configured()).journal.steps.shape[0] == 0


def test_a_smaller_cache_hits_less_and_none_hits_nothing():
    rates = [
        run(configured(text)).record.summary["hit_rate"] for text in ("tp=1", "cache.blocks=300", "cache.kind=none")
    ]
    assert rates[0] > rates[1] > rates[2] == 0


def test_ctrl_c_between_slices_leaves_a_partial_result(monkeypatch):
    monkeypatch.setattr("kvbench.cluster.simulation.Simulation.slice_steps", 500)
    calls = []

    def stop(done: int, total: int) -> None:
        calls.append((done, total))
        if len(calls) == 3:
            raise KeyboardInterrupt

    result = run(configured(), stop)
    assert result.record.complete is False
    assert result.document["complete"] is False
    status = result.journal.status
    assert set(status) == {FINISHED, PARTIAL}
    assert calls[-1] == (int((status == FINISHED).sum()), 60)
    whole = run(configured()).journal
    done = status == FINISHED
    assert np.array_equal(result.journal.finish_ns[done], whole.finish_ns[done])


def test_a_closed_loop_keeps_so_many_in_flight():
    closed = ("arrivals.process=closed", "arrivals.concurrency=3", "sessions.turns=1")
    result = run(configured(*closed, "costs.detokenize_us_per_token=0"))
    start, end = result.journal.arrival_ns, result.journal.finish_ns
    in_flight = [int(((start <= t) & (end > t)).sum()) for t in start]
    assert max(in_flight) == 3
    assert result.record.summary.statuses == {"finished": 60}


def test_some_refused_is_a_warning_and_all_refused_an_error():
    result = run(configured("max_model_len=1500"))
    assert result.record.summary.statuses["refused"] > 0
    assert "exceed max_model_len (1500)" in result.warnings[0]
    with pytest.raises(UsageError, match="all 60 sequences were refused"):
        run(configured("cache.blocks=2"))


def test_the_budget_of_memory_adds_up():
    result = run(configured())
    lines = {line.name: line.num_bytes for line in result.record.memory}
    used = lines["weights"] + lines["KV"] + lines["reserved"] + lines["tables"]
    assert used <= lines["usable"] < used + 16 * 131072
    more = run(configured("cache.blocks=40000"))
    assert "MORE than" in next(line.note for line in more.record.memory if line.name == "KV")


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_copies_to_the_host_hold_blocks_and_are_checked(preset):
    texts = (f"preset={preset}", "cache.backup=true", "check=true", "cache.blocks=400", "num_prompts=15")
    result = run(configured(*texts))
    summary = result.record.summary
    assert summary["backup_blocks"] > 0
    assert summary["backup_busy"] > 0


def test_a_backup_needs_something_to_find_again():
    with pytest.raises(UsageError, match=r"set cache\.kind = hash or radix"):
        run(configured("cache.backup=true", "cache.kind=none"))
