"""Distributions: means, quantiles, bounds, and tables that are wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.workload.draws import Purpose, uniforms
from kvbench.workload.lengths import durations_ns, max_tokens, produced_tokens, whole_numbers

U = uniforms(1, Purpose.PROMPT, 200_000)


def drawn(low=1, **table):
    return whole_numbers(table, U, "lengths.prompt", low)


def test_scalar_is_fixed():
    assert set(whole_numbers(300, U, "x").tolist()) == {300}
    assert set(whole_numbers(2.5, U, "x").tolist()) == {2}


def test_uniform_takes_every_value_alike():
    counts = np.bincount(drawn(distribution="uniform", min=3, max=7))
    assert counts[:3].sum() == 0
    assert counts[3:] / U.size == pytest.approx([0.2] * 5, abs=0.005)


def test_normal():
    values = drawn(distribution="normal", mean=5_000, sigma=300)
    assert values.mean() == pytest.approx(5_000, rel=0.002)
    assert values.std() == pytest.approx(300, rel=0.01)
    assert np.quantile(values, 0.8413) == pytest.approx(5_300, abs=5)


def test_lognormal_mean_is_of_the_values_and_sigma_of_the_logarithm():
    values = drawn(distribution="lognormal", mean=1_000, sigma=0.8)
    assert values.mean() == pytest.approx(1_000, rel=0.01)
    assert np.log(values).std() == pytest.approx(0.8, rel=0.01)
    assert np.median(values) == pytest.approx(1_000 * math.exp(-0.32), rel=0.01)
    assert np.median(drawn(distribution="lognormal", median=1_000, sigma=0.8)) == pytest.approx(1_000, rel=0.01)


def test_exponential():
    values = drawn(distribution="exponential", mean=2_000)
    assert values.mean() == pytest.approx(2_000, rel=0.01)
    assert np.quantile(values, 1 - math.exp(-2)) == pytest.approx(4_000, rel=0.01)


def test_empirical():
    values = drawn(distribution="empirical", values=[10, 500, 40], weights=[1, 0, 3])
    assert (values == 10).mean() == pytest.approx(0.25, abs=0.005)
    assert set(values.tolist()) == {10, 40}
    even = drawn(distribution="empirical", values=[10, 20])
    assert (even == 10).mean() == pytest.approx(0.5, abs=0.005)


def test_bounds_are_where_draws_beyond_end_up():
    values = drawn(distribution="normal", mean=100, sigma=100, min=50, max=150)
    assert (values.min(), values.max()) == (50, 150)
    assert (values == 150).mean() == pytest.approx(0.3085, abs=0.005)


def test_low_is_the_floor():
    assert drawn(distribution="normal", mean=0, sigma=5).min() == 1
    assert drawn(low=0, distribution="normal", mean=0, sigma=5).min() == 0


def test_durations_are_whole_microseconds():
    times = durations_ns({"distribution": "exponential", "mean": 2.0}, U, "sessions.think_s")
    assert times.mean() == pytest.approx(2e9, rel=0.01)
    assert not (times % 1_000).any()
    assert durations_ns(0.25, U[:2], "x").tolist() == [250_000_000] * 2
    ends = durations_ns({"distribution": "uniform", "min": 1, "max": 2}, U, "x")
    assert 1e9 <= ends.min() < ends.max() <= 2e9


WRONG = {
    "no distribution": ({"mean": 5}, "needs distribution = one of fixed, uniform"),
    "unknown": ({"distribution": "gauss", "mean": 5}, "got 'gauss'"),
    "missing": ({"distribution": "normal", "mean": 5}, "a normal distribution needs sigma"),
    "misspelt": ({"distribution": "normal", "mean": 5, "sgima": 1}, "no 'sgima'; the nearest is sigma"),
    "text": ({"distribution": "exponential", "mean": "5"}, "lengths.prompt.mean must be a number >= 0"),
    "negative": ({"distribution": "normal", "mean": 5, "sigma": -1}, "sigma must be a number >= 0"),
    "nan": ({"distribution": "exponential", "mean": math.nan}, "mean must be a number >= 0"),
    "infinite": ({"distribution": "exponential", "mean": math.inf}, "mean must be a number >= 0"),
    "true": ({"distribution": "fixed", "value": True}, "value must be a number >= 0"),
    "mean 0": ({"distribution": "lognormal", "mean": 0, "sigma": 1}, "must be above 0"),
    "two centers": (
        {"distribution": "lognormal", "mean": 5, "median": 5, "sigma": 1},
        "either mean or median",
    ),
    "no center": ({"distribution": "lognormal", "sigma": 1}, "either mean or median"),
    "crossed": ({"distribution": "uniform", "min": 9, "max": 3}, "min 9 is above max 3"),
    "no values": ({"distribution": "empirical", "values": []}, "values must be a list of numbers"),
    "weights": ({"distribution": "empirical", "values": [1, 2], "weights": [1]}, "one weight for each value"),
    "no weight": ({"distribution": "empirical", "values": [1], "weights": [0]}, "not all 0"),
    "too long": ({"distribution": "lognormal", "mean": 1e9, "sigma": 1}, "set its max"),
    "endless": ({"distribution": "lognormal", "median": 1e300, "sigma": 300}, "set its max"),
    "a list": ([1, 2], "is a number or a table"),
    "a string": ("long", "is a number or a table"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_tables_are_explained(name):
    spec, text = WRONG[name]
    with pytest.raises(UsageError) as caught:
        whole_numbers(spec, U[:100], "lengths.prompt")
    assert str(caught.value).startswith("lengths.prompt")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_max_tokens_rules():
    output = np.array([0, 1, 10, 101], np.int64)
    assert max_tokens("output", output).tolist() == [1, 1, 10, 101]
    assert max_tokens("1.5x", output).tolist() == [1, 2, 15, 152]
    assert max_tokens(".5x", output).tolist() == [1, 1, 5, 51]
    assert max_tokens(64, output).tolist() == [64] * 4
    assert max_tokens("64", output).tolist() == [64] * 4


@pytest.mark.parametrize("rule", ["", "x", "0x", "-1x", "nanx", "infx", "twice", 0, -5, 0.5, 2**40, {"a": 1}, None])
def test_max_tokens_that_mean_nothing(rule):
    with pytest.raises(UsageError, match=r"lengths\.max_tokens is \"output\", a number"):
        max_tokens(rule, U[:3].astype(np.int64))


def test_no_output_outlives_its_max_tokens():
    produced, notes = produced_tokens(np.array([5, 50]), np.array([10, 10]))
    assert produced.tolist() == [5, 10]
    assert notes == ("lengths.max_tokens ends 1 of 2 outputs early",)
    assert produced_tokens(np.array([5]), np.array([5]))[1] == ()


numbers = st.floats(0, 1e5, allow_nan=False)
tables = st.one_of(
    st.builds(lambda m, s: {"distribution": "normal", "mean": m, "sigma": s}, numbers, numbers),
    st.builds(lambda m, s: {"distribution": "lognormal", "mean": m + 1, "sigma": s / 1e5}, numbers, numbers),
    st.builds(lambda a, b: {"distribution": "uniform", "min": min(a, b), "max": max(a, b)}, numbers, numbers),
    st.builds(lambda m: {"distribution": "exponential", "mean": m + 1}, numbers),
    st.builds(lambda v: {"distribution": "empirical", "values": v}, st.lists(numbers, min_size=1, max_size=5)),
)


@given(table=tables, u=st.lists(st.floats(1e-9, 1 - 1e-9), min_size=2, max_size=20))
def test_draws_rise_with_u_and_stay_in_bounds(table, u):
    order = np.sort(np.array(u))
    if table["distribution"] != "empirical":
        assert (np.diff(whole_numbers(table, order, "x", 0)) >= 0).all()
        bounded = table if table["distribution"] == "uniform" else {**table, "min": 10, "max": 20}
        values = whole_numbers(bounded, order, "x", 0)
        assert values.min() >= math.floor(bounded["min"])
        assert values.max() <= math.ceil(bounded["max"])
    else:
        rounded = {max(1, round(v)) for v in table["values"]}
        assert set(whole_numbers(table, order, "x").tolist()) <= rounded
