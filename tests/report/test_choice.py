"""Which point is best, which cannot be told from it, and which keys did nothing."""

from __future__ import annotations

import pytest

from kvbench.report.choice import Candidate, choose


def point(value, ttft=10.0, low=None, high=None, **more):
    figures = {"p99_ttft_ms": ttft, "p99_low_ttft_ms": low or ttft - 1, "p99_high_ttft_ms": high or ttft + 1}
    return Candidate((value,), ({**figures, "finished": 9, "sequences": 9, "fingerprint": "f", **more},))


def said(points, keys=("cache.blocks",), cache_only=False):
    found = choose(keys, points, cache_only)
    return found, " ".join((*found.verdict, *found.idle))


def test_the_shortest_tail_is_best_and_overlapping_intervals_are_named():
    found, text = said([point("1", 30.0), point("2", 10.0), point("3", 11.5)])
    assert (found.best, found.same) == (1, (2,))
    assert text == "Best: blocks 2, TTFT p99 10.0 ms (the worst, blocks 1: 30.0 ms); not to be told from it: blocks 3."


def test_intervals_that_all_overlap_are_no_difference():
    found, text = said([point("1", 10.0), point("2", 10.5)])
    assert found.same == (1,)
    assert text.startswith("No difference: by TTFT p99 no point can be told from the others (10.0 ms with blocks 1)")


def test_a_tail_without_an_upper_end_is_told_from_nothing_above():
    one, other = point("1", 10.0), point("2", 30.0)
    endless = Candidate(("1",), ({**one.seeds[0], "p99_high_ttft_ms": None},))
    assert said([one, other])[0].same == ()
    assert said([endless, other])[0].same == (1,)


def test_goodput_goes_first_where_something_is_promised():
    points = [point("1", 10.0, goodput=2.0, slo_share=0.2), point("2", 30.0, goodput=9.0, slo_share=0.9)]
    assert said(points)[0].best == 1


def test_refusing_the_long_ones_is_never_best():
    assert said([point("1", 1.0, finished=5), point("2", 30.0), point("3", 20.0)])[0].best == 2


def test_other_workloads_have_no_best():
    found, text = said([point("1"), point("2", 30.0, fingerprint="g")])
    assert found.best == -1
    assert "different workloads" in text


def test_each_workload_has_a_best_of_its_own():
    def at(rate, split, ttft):
        figures = point(split, ttft, fingerprint=f"of {rate}").seeds
        return Candidate((rate, split), figures)

    points = [at("5", "1", 30.0), at("5", "2", 10.0), at("9", "1", 40.0), at("9", "2", 70.0)]
    found, _ = said(points, ("arrivals.rate", "pd.prefill"))
    assert found.best == -1
    assert found.verdict == (
        "rate 5: best: prefill 2, TTFT p99 10.0 ms (the worst, prefill 1: 30.0 ms).",
        "rate 9: best: prefill 1, TTFT p99 40.0 ms (the worst, prefill 2: 70.0 ms).",
    )


@pytest.mark.parametrize(("times", "same"), [(((10, 11, 12), (11, 12, 13)), ()), (((10, 11, 12), (11, 12, 11)), (1,))])
def test_seeds_decide_by_pairs(times, same):
    points = [Candidate((str(i),), tuple({"p99_ttft_ms": float(t)} for t in seeds)) for i, seeds in enumerate(times)]
    assert said(points)[0].same == same


@pytest.mark.parametrize(
    ("figures", "key", "reason"),
    [
        ({"evicted_blocks": 0, "hit_rate_infinite": 0.5}, "cache.eviction", "no eviction took place"),
        ({"evicted_blocks": 9, "hit_rate_infinite": 0.0}, "cache.blocks", "nothing is shared"),
        ({"evicted_blocks": 9, "hit_rate_infinite": 0.5}, "overlap", "no figure changed with it"),
    ],
)
def test_a_key_that_did_nothing_is_told_with_the_reason(figures, key, reason):
    _, text = said([point(str(i), **figures) for i in range(3)], (key,))
    assert f"{key} did nothing: {reason}" in text
    _, text = said([point(str(i), ttft=10.0 + i, **figures) for i in range(3)], (key,))
    assert "did nothing" not in text


def test_replays_are_judged_by_hits():
    rows = [
        Candidate((name,), ({"hit_rate_tokens": rate},)) for name, rate in (("lru", 0.3), ("fifo", 0.2), ("x", 0.3))
    ]
    found, text = said(rows, ("cache.eviction",), True)
    assert (found.best, found.same) == (0, (2,))
    assert "hit rate 30.00 %" in text
