"""Latencies and totals of a small journal whose numbers are worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.journal import NEVER, HitBounds
from kvbench.metrics.latency import sequence_times, summarise, wall_time_ns
from tests.runs import MS, counters, journal, requests


def test_times_count_from_the_intended_arrival():
    times = sequence_times(journal())
    assert times.queue_ns.tolist() == [1 * MS, 2 * MS, NEVER, 3 * MS]
    assert times.ttft_ns.tolist() == [11 * MS, 22 * MS, NEVER, NEVER]
    assert times.e2el_ns.tolist() == [41 * MS, 22 * MS, NEVER, NEVER]


def test_tpot_needs_two_tokens():
    assert sequence_times(journal()).tpot_ns.tolist() == [10 * MS, NEVER, NEVER, NEVER]


@pytest.mark.parametrize(("spread", "gaps", "expected"), [(7, 2, 4), (5, 2, 2), (10, 3, 3), (11, 3, 4)])
def test_tpot_rounds_half_to_even(spread, gaps, expected):
    first = np.array([0, NEVER, NEVER, NEVER])
    one = journal(
        arrival_ns=np.zeros(4, np.int64),
        first_token_ns=first,
        finish_ns=first + np.array([spread, 0, 0, 0]),
        output_tokens=np.array([gaps + 1, 0, 0, 0]),
    )
    assert sequence_times(one).tpot_ns[0] == expected


def test_wall_time_is_from_first_arrival_to_last_finish():
    assert wall_time_ns(journal()) == 41 * MS
    assert wall_time_ns(journal(status=np.full(4, 2))) == 0


def test_summary_counts_finished_sequences_only():
    summary = summarise(journal(), requests(), counters())
    assert summary.statuses == {"finished": 2, "refused": 1, "partial": 1}
    assert summary.latencies["ttft"].n == 2
    assert summary.latencies["tpot"].n == 1
    assert summary.latencies["itl"].mean == 10.0
    assert summary.latencies["itl"].n == 3
    value = {name: v for name, (v, _) in summary.scalars.items()}
    assert value["finished"] == 2
    assert value["duration"] == 0.041
    assert value["output_throughput"] == pytest.approx(5 / 0.041)
    assert value["total_token_throughput"] == pytest.approx((5 + 100 + 200) / 0.041)
    assert value["hit_rate"] == 96 / 700
    assert value["hit_rate_infinite"] is value["hit_rate_optimum"] is None  # not worked out


def test_bounds_are_shares_of_the_same_tokens_as_the_hit_rate():
    summary = summarise(journal(), requests(), counters(), HitBounds(350, 175))
    assert (summary["hit_rate_infinite"], summary["hit_rate_optimum"]) == (0.5, 0.25)


def test_a_run_that_finished_nothing_has_no_rates():
    nothing = summarise(
        journal(status=np.full(4, 2), itl_gap_ns=np.zeros(0, np.int64), itl_count=np.zeros(0, np.int64)),
        requests(),
        counters(admitted_prompt_tokens=0, matched_tokens=0),
    )
    assert nothing.scalars["hit_rate"][0] is None
    assert nothing.scalars["request_throughput"][0] is None
    assert nothing.latencies["itl"].n == 0
