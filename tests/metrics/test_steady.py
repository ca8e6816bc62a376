"""Stages of a run and the parts of its time, against counting one by one."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.core.journal import FINISHED, PARTIAL, PARTS
from kvbench.metrics.attribution import breakdown
from kvbench.metrics.steady import STAGES, fill_end, stages
from tests.runs import journal

S = 1_000_000_000


def run(arrival, finish, status=None):
    n = len(arrival)
    columns = {name: np.zeros(n, np.int64) for name in ("request_index", "sample", "queued_ns", "scheduled_ns")}
    return journal(
        **columns,
        arrival_ns=np.array(arrival),
        first_token_ns=np.array(arrival) + 1,
        finish_ns=np.array(finish),
        output_tokens=np.full(n, 3),
        status=np.full(n, FINISHED) if status is None else np.array(status),
    )


def test_a_line_of_arrivals_fills_until_ten_are_inside():
    arrival = np.arange(100) * S
    found = stages(run(arrival, arrival + 10 * S + 5))
    assert [found[name].end_ns - found[name].start_ns for name in STAGES] == [9 * S, 90 * S, 10 * S + 5]
    assert [found[name].arrived for name in STAGES] == [9, 91, 0]
    assert [found[name].finished for name in STAGES] == [0, 89, 11]
    assert found["steady"].per_second == 89 / 90
    assert found["steady"].output_tokens == 89 * 3
    assert found["fill"].ttft.n == 9


def test_all_at_once_has_no_steady_part():
    found = stages(run([5, 5, 5], [10, 20, 30]))
    assert [found[name].end_ns - found[name].start_ns for name in STAGES] == [0, 0, 25]
    assert found["steady"].per_second is None


def test_nothing_finished_has_no_stages():
    assert stages(run([0], [-1], [PARTIAL])) == {}


@pytest.mark.parametrize("seed", range(8))
def test_filling_ends_at_the_median_of_a_count_second_by_second(seed):
    random = np.random.Generator(np.random.PCG64(seed))
    arrival = np.sort(random.integers(0, 200, 30))
    finish = arrival + random.integers(1, 80, 30)
    first, last = int(arrival.min()), int(arrival.max())
    inside = [int(((arrival <= t) & (finish > t)).sum()) for t in range(first, last)]
    median = sorted(inside)[(last - first + 1) // 2 - 1]
    assert fill_end(arrival, finish) == first + next(i for i, n in enumerate(inside) if n >= median)


def test_means_of_the_parts_add_up():
    parts = np.random.Generator(np.random.PCG64(2)).integers(0, 1000, (40, len(PARTS)))
    life = parts.sum(axis=1)
    found = breakdown(journal(**vars(run([0] * 40, life.tolist())) | {"parts_ns": parts}))
    assert list(found) == list(PARTS)
    assert sum(part.mean for part in found.values()) == pytest.approx(life.mean() / 1e6)
    assert sum(part.share for part in found.values()) == pytest.approx(1)
    slowest = parts[np.argsort(life, kind="stable")[-1]]
    assert [part.slow for part in found.values()] == pytest.approx((slowest / 1e6).tolist())


def test_an_engine_that_does_not_tell_has_no_parts():
    assert breakdown(run([0], [5])) == {}
