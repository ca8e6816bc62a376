"""Distributions: means, quantiles, bounds, and tables that are wrong."""

from __future__ import annotations

import math
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.config import KeyTree
from kvbench.core.errors import UsageError
from kvbench.workload.build import build_workload
from kvbench.workload.draws import Purpose, uniforms
from kvbench.workload.keys import WORKLOAD_KEYS
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
    "another name for it": ({"dist": "uniform", "min": 5}, "; it has dist, min"),
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


# ------------------------------------------------------------------ further distributions


def test_lognormal_by_its_median_and_99th_percentile():
    values = drawn(distribution="lognormal", p50=400, p99=6_000)
    assert np.quantile(values, [0.5, 0.99]) == pytest.approx([400, 6_000], rel=0.02)


def test_zipf():
    counts = np.bincount(drawn(distribution="zipf", exponent=1.5, min=3, max=12), minlength=13)
    expected = np.arange(3, 13) ** -1.5
    assert counts[3:] / U.size == pytest.approx(expected / expected.sum(), abs=0.004)
    assert counts[:3].sum() == 0


def test_histogram_is_even_within_its_bins():
    values = drawn(distribution="histogram", edges=[0, 100, 400], weights=[1, 3], low=0)
    assert (values.min(), values.max()) == (0, 399)
    assert (values < 100).mean() == pytest.approx(0.25, abs=0.005)
    assert values[values >= 100].mean() == pytest.approx(249.5, abs=2)
    times = durations_ns({"distribution": "histogram", "edges": [1, 2], "weights": [1]}, U, "x")
    assert times.mean() == pytest.approx(1.5e9, rel=0.01)


def test_a_mixture_has_its_parts_in_their_shares():
    parts = [
        {"distribution": "uniform", "min": 10, "max": 19},
        {"distribution": "lognormal", "median": 1e4, "sigma": 0.1},
    ]
    values = drawn(distribution="mixture", parts=parts, weights=[3, 1])
    assert (values < 20).mean() == pytest.approx(0.75, abs=0.005)
    assert np.bincount(values[values < 20])[10:] / U.size == pytest.approx([0.075] * 10, abs=0.004)
    assert np.median(values[values > 20]) == pytest.approx(1e4, rel=0.01)
    assert drawn(distribution="mixture", parts=parts, max=500).max() == 500


def test_a_column_of_a_file(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text("model,tokens,count\na,10,1\nb,40,3\n\nc,90,0\n")
    values = drawn(distribution="empirical", file=str(path), column="tokens", weights="count")
    assert set(values.tolist()) == {10, 40}
    assert (values == 10).mean() == pytest.approx(0.25, abs=0.005)
    assert set(drawn(distribution="empirical", file=str(path), column="tokens", max=50).tolist()) == {10, 40, 50}


def test_rows_of_a_file_stay_together(tmp_path):
    (tmp_path / "pairs.csv").write_text("in,out\n" + "".join(f"{10 + i},{900 - i}\n" for i in range(50)))
    table = "{{distribution='empirical', file='{}', column='{}'}}"
    text = "num_prompts = 400\nlengths = {{prompt = {}, output = {}, joint = {}}}"
    columns = [table.format(tmp_path / "pairs.csv", column) for column in ("in", "out")]
    joint = build_workload(tomllib.loads(text.format(*columns, "true")))[0]
    assert (joint.prompt_tokens + joint.output_tokens == 910).all()
    apart = build_workload(tomllib.loads(text.format(*columns, "false")))[0]
    assert (apart.prompt_tokens + apart.output_tokens != 910).mean() > 0.9
    assert apart.prompt_tokens.tolist() == joint.prompt_tokens.tolist()


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path):
    (tmp_path / "lengths.csv").write_text("tokens\n7\n")
    tree = KeyTree(WORKLOAD_KEYS)
    part = {"distribution": "empirical", "file": "lengths.csv", "column": "tokens"}
    layer = tree.layer({"lengths": {"prompt": {"distribution": "mixture", "parts": [part]}}}, "x", tmp_path)
    assert set(whole_numbers(layer.values["lengths.prompt"], U[:9], "lengths.prompt").tolist()) == {7}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "no such file"),
        ("", "is empty"),
        ("in,tokens\n", "no rows below its header"),
        ("in,out\n1,2\n", "has no column 'tokens'; the nearest is"),
        ("tokens\n5\nmany\n", "lengths.csv:3: column 'tokens' holds 'many'"),
        ("a,tokens\n5\n", "lengths.csv:2: column 'tokens' holds ''"),
        ("tokens\n-3\n", "wanted is a number >= 0"),
        ("tokens\nnan\n", "holds 'nan'"),
        (b"tokens\n\xff\xfe\n", "is not a readable CSV file"),
    ],
)
def test_wrong_files_are_explained(tmp_path, content, expected):
    path = tmp_path / "lengths.csv"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as caught:
        drawn(distribution="empirical", file=str(path), column="tokens")
    assert str(caught.value).startswith(f"lengths.prompt: {path}")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


MORE_WRONG = {
    "p50 alone": ({"distribution": "lognormal", "p50": 5}, "takes p50 and p99, or sigma"),
    "p50 and sigma": ({"distribution": "lognormal", "p50": 5, "p99": 9, "sigma": 1}, "takes p50 and p99, or sigma"),
    "p99 below": ({"distribution": "lognormal", "p50": 5, "p99": 4}, "p99 4 not below it"),
    "no sigma": ({"distribution": "lognormal", "mean": 5}, "needs sigma"),
    "wide zipf": ({"distribution": "zipf", "exponent": 1, "max": 1e9}, "at most 10,000,000 values"),
    "zipf of 0": ({"distribution": "zipf", "exponent": 1, "min": 0, "max": 9}, "whole numbers from 1"),
    "bins": ({"distribution": "histogram", "edges": [1, 2], "weights": [1, 1]}, "one edge more than weights"),
    "edges": ({"distribution": "histogram", "edges": [2, 1], "weights": [1]}, "edges must rise"),
    "no parts": ({"distribution": "mixture", "parts": []}, "parts is a list of tables"),
    "part": ({"distribution": "mixture", "parts": [3, {"distribution": "zip"}]}, "parts[1] needs distribution"),
    "part weights": ({"distribution": "mixture", "parts": [3], "weights": [1, 2]}, "one weight for each value"),
    "file alone": ({"distribution": "empirical", "file": "x.csv"}, "file and column (two strings), or values"),
    "both": ({"distribution": "empirical", "file": "x", "column": "y", "values": [1]}, "or values"),
    "weights of a file": (
        {"distribution": "empirical", "file": "x", "column": "y", "weights": [1]}, "is the name of a column"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE_WRONG)
def test_further_wrong_tables_are_explained(name):
    spec, text = MORE_WRONG[name]
    with pytest.raises(UsageError) as caught:
        whole_numbers(spec, U[:100], "lengths.prompt")
    assert str(caught.value).startswith("lengths.prompt")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("prompt", "output", "expected"),
    [
        ("5", "{distribution='empirical', values=[1]}", "must both be empirical"),
        ("{distribution='empirical', values=[1, 2]}", "{distribution='empirical', values=[1]}", "has 2 values"),
        (
            "{distribution='empirical', values=[1, 2]}",
            "{distribution='empirical', values=[1, 2], weights=[1, 2]}",
            "same weights",
        ),
    ],
)
def test_what_cannot_be_joint(prompt, output, expected):
    with pytest.raises(UsageError, match=expected):
        build_workload(tomllib.loads(f"lengths = {{prompt = {prompt}, output = {output}, joint = true}}"))


def test_quantiles_are_pinned():
    """Draws may never change."""
    u = np.array([0.02, 0.3, 0.55, 0.9, 0.999])
    tables = {
        "p99": {"distribution": "lognormal", "p50": 100, "p99": 3000},
        "zipf": {"distribution": "zipf", "exponent": 1.1, "max": 1000},
        "histogram": {"distribution": "histogram", "edges": [0, 10, 1000], "weights": [1, 2]},
        "mixture": {"distribution": "mixture", "parts": [5, {"distribution": "exponential", "mean": 80}]},
    }
    assert {name: whole_numbers(table, u, "x", 0).tolist() for name, table in tables.items()} == PINNED


PINNED = {
    "p99": [5, 46, 120, 651, 9165],
    "zipf": [1, 3, 17, 349, 989],
    "histogram": [0, 9, 331, 851, 998],
    "mixture": [5, 5, 8, 129, 497],
}
