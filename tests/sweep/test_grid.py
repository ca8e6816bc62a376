"""Axes as text, points as configurations, folders as names."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.core.errors import UsageError
from kvbench.sweep.grid import Axis, folder_name, make_points, parse_axis, values_by_key


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("cache.blocks=1000,10000", ("1000", "10000")),
        ("cache.blocks = 1000 , 10000", ("1000", "10000")),
        ("cache.blocks=1000..70000*4", ("1000", "4000", "16000", "64000")),
        ("cache.blocks=1_000..8000*2,5", ("1000", "2000", "4000", "8000", "5")),
        ("arrivals.rate=1..3+0.5", ("1", "1.5", "2", "2.5", "3")),
        ("arrivals.rate=0.1..0.3+.1", ("0.1", "0.2", "0.3")),
        ("arrivals.rate=1e3..1e5*10", ("1000", "10000", "100000")),
        ("seed=5,5,7", ("5", "7")),
        ("lengths.prompt={distribution='uniform', min=1, max=4},9", ("{distribution='uniform', min=1, max=4}", "9")),
        ("trace.path='a,b.jsonl',c", ("'a,b.jsonl'", "c")),
    ],
)
def test_values_and_ranges(text, values):
    assert parse_axis(text) == Axis(text.partition("=")[0].strip(), values)


@pytest.mark.parametrize(
    "text",
    [
        "cache.blocks",
        "=3",
        "seed=",
        "seed=1,,2",
        "seed=5..1*2",
        "seed=1..9*1",
        "seed=0..9*2",
        "seed=1..9+0",
        "seed=1..9+-1",
        "pd.prefill:pd.decode=1:2,3",
        "pd.prefill:pd.decode=1:2:3",
        "pd.prefill:pd.decode=1:",
        "pd.prefill:=1:2",
    ],
)
def test_what_is_no_axis(text):
    with pytest.raises(UsageError, match="--grid"):
        parse_axis(text)


def test_keys_that_change_together_are_columns_of_their_own():
    together = parse_axis("pd.prefill:pd.decode=1:3,2:2,{engines=3, tp=1}:1")
    assert together.keys == ("pd.prefill", "pd.decode")
    assert values_by_key([together]) == {"pd.prefill": ("1", "2", "{engines=3, tp=1}"), "pd.decode": ("3", "2", "1")}
    found = points("fleet.replicas:pd.prefill:pd.decode=4:0:0,1:1:3", "seed=1,2")
    assert [p.values for p in found] == [
        ("4", "0", "0", "1"),
        ("4", "0", "0", "2"),
        ("1", "1", "3", "1"),
        ("1", "1", "3", "2"),
    ]
    assert [p.system.config["fleet.replicas"] for p in found] == [4, 4, 1, 1]
    with pytest.raises(UsageError, match="twice"):
        points("pd.prefill:pd.decode=1:1", "pd.decode=2,3")


def points(*texts: str):
    return make_points([parse_axis(text) for text in texts], lambda changes: configure("chat", changes=changes))


def test_every_combination_is_a_point_the_last_axis_fastest():
    found = points("cache.blocks=100,200", "seed=1..3+1")
    assert [p.values for p in found] == [(b, s) for b in ("100", "200") for s in ("1", "2", "3")]
    assert [(p.system.settings.cache.num_blocks, p.system.config["seed"]) for p in found][3] == (200, 1)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["cache.blcks=1"], "--grid cache.blcks=1: unknown key cache.blcks; the nearest is cache.blocks"),
        (["seed=1,x"], "--grid seed=x"),
        (["seed=1", "seed=2"], "--grid seed is given twice"),
        (["seed=1..200+1", "cache.blocks=1..200+1"], "more than 10,000 points"),
        (["trace.rate=1"], "trace.rate needs a trace"),
    ],
)
def test_wrong_points_are_found_before_anything_runs(texts, message):
    with pytest.raises(UsageError, match=message):
        points(*texts)


def test_folders_have_safe_names_of_their_own():
    keys = ["cache.blocks", "trace.path"]
    assert folder_name(6, keys, ["100", "../a b/c.jsonl"]) == "007-cache.blocks=100,trace.path=.._a_b_c.jsonl"
    long = [folder_name(i, ["x"], ["y" * 500]) for i in range(2)]
    assert len(set(long)) == 2
    assert max(map(len, long)) < 255
