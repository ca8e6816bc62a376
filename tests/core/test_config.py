"""Layers of values over keys, and what is said about a wrong one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.config import KeyTree, Layer, nearest, nest, read_toml
from kvbench.core.errors import UsageError
from kvbench.core.keys import Key

TREE = KeyTree(
    (
        Key("seed", "int", 0, "", "a seed", low=0),
        Key("arrivals.rate", "float", math.inf, "requests/s", "a rate", low=1e-6),
        Key("trace.rate", "float", 0.0, "requests/s", "another", low=0),
        Key("trace.path", "path", "", "", "a file"),
        Key("lengths.prompt", "length", 100, "tokens", "a distribution", low=1),
        Key("cache.kind", "choice", "hash", "", "a choice", ("hash", "none")),
        Key("cache.share", "float", 0.9, "share", "bounded", low=0, high=1),
        Key("overlap", "bool", False, "", "a switch"),
        Key("model", "str", "m", "", "a name"),
    ),
    (Key("name", "str", "", "", "of the phase"), Key("arrivals.rate", "float", 1.0, "requests/s", "a rate")),
)


def resolved(*texts: str):
    return TREE.resolve([TREE.assignments(texts, "--set")])


def test_layers_lie_over_each_other_and_say_where_a_value_stood():
    file = TREE.layer({"seed": 1, "arrivals": {"rate": 2}}, "a.toml")
    config = TREE.resolve([file, TREE.assignments(["seed=3"], "--set")])
    assert config["seed"] == 3
    assert config["arrivals.rate"] == 2.0
    assert config["cache.kind"] == "hash"
    assert (config.where["seed"], config.where["arrivals.rate"]) == ("--set", "a.toml")
    assert config.where["cache.kind"] == "default"
    assert config.section("arrivals") == {"rate": 2.0}


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("arrivals.rate=inf", "arrivals.rate", math.inf),
        ("arrivals.rate=4", "arrivals.rate", 4.0),
        ("seed=2e3", "seed", 2000),
        ("overlap=true", "overlap", True),
        ("model=1e5", "model", "1e5"),
        ("model='quoted'", "model", "quoted"),
        ("model=vllm-0.33", "model", "vllm-0.33"),
        ("model=2024-01-01", "model", "2024-01-01"),
        ("cache.kind = none", "cache.kind", "none"),
        ("lengths.prompt=512", "lengths.prompt", 512),
        (
            "lengths.prompt={dist = 'uniform', low = 1, high = 9}",
            "lengths.prompt",
            {"dist": "uniform", "low": 1, "high": 9},
        ),
    ],
)
def test_values_of_assignments(text, name, value):
    assert resolved(text)[name] == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed=1", "unknown key sed; the nearest is seed"),
        ("foo=1", "unknown key foo; `kvbench config` shows them all"),
        ("rate=1", "the nearest is trace.rate"),
        ("arivals.rate=1", "the nearest is arrivals.rate"),
        ("cache.policy=1", "unknown key cache.policy; cache has kind, share"),
        ("arrivals.rte=1", "the nearest is arrivals.rate"),
        ("arrivals=1", "arrivals is a table of keys"),
        ("seed", "write it as key=value"),
        ("=1", "write it as key=value"),
        ("seed=1.5", "seed is a whole number, got 1.5"),
        ("seed=inf", "seed is a whole number"),
        ("seed=true", "seed is a number, got True"),
        ("seed=-1", "seed must be at least 0, got -1"),
        ("cache.share=1.1", "cache.share must be at most 1 share, got 1.1"),
        ("arrivals.rate=nan", "arrivals.rate is a number of requests/s, got nan"),
        ("arrivals.rate=fast", "arrivals.rate is a number of requests/s, got 'fast'"),
        ("cache.kind=hahs", "cache.kind is one of hash, none; got 'hahs'"),
        ("overlap=1", "overlap is true or false, got 1"),
        ("lengths.prompt=0", "lengths.prompt must be at least 1 tokens, got 0"),
        ("lengths.prompt.mean=7", "lengths.prompt is 100, not a table"),
    ],
)
def test_a_wrong_value_is_one_line_with_its_place(text, message):
    with pytest.raises(UsageError) as error:
        resolved(text)
    assert message in str(error.value)
    assert str(error.value).startswith("--set")
    assert "\n" not in str(error.value)


def test_a_wrong_key_of_a_file_names_the_file():
    with pytest.raises(UsageError, match=r"^x\.toml: unknown key cahce\.kind; the nearest is cache\.kind$"):
        TREE.layer({"cahce": {"kind": "none"}}, "x.toml")
    with pytest.raises(UsageError, match=r"^x\.toml: model is a string"):
        TREE.layer({"model": {"name": "m"}}, "x.toml")


def test_a_field_of_a_distribution_changes_that_field_only():
    file = TREE.layer({"lengths": {"prompt": {"dist": "lognormal", "mean": 5}}}, "a.toml")
    config = TREE.resolve([file, TREE.assignments(["lengths.prompt.mean=7"], "--set")])
    assert config["lengths.prompt"] == {"dist": "lognormal", "mean": 7}


def test_phases_hold_their_own_keys_and_the_last_list_counts():
    first = TREE.layer({"phase": [{"name": "a", "arrivals": {"rate": 3}}, {"name": "b"}]}, "a.toml")
    assert first.phases == ({"name": "a", "arrivals.rate": 3.0}, {"name": "b"})
    assert TREE.resolve([first, Layer("b", {})]).phases == first.phases
    assert TREE.resolve([first]).tree()["phase"] == [{"name": "a", "arrivals": {"rate": 3.0}}, {"name": "b"}]
    with pytest.raises(UsageError, match=r"^a\.toml: \[\[phase\]\] 2: unknown key seed"):
        TREE.layer({"phase": [{}, {"seed": 1}]}, "a.toml")
    with pytest.raises(UsageError, match=r"write \[\[phase\]\]"):
        TREE.layer({"phase": {"name": "a"}}, "a.toml")


def test_a_path_is_relative_to_the_file_that_names_it(tmp_path):
    layer = TREE.layer({"trace": {"path": "t.jsonl"}}, "a.toml", tmp_path)
    assert layer.values["trace.path"] == str(tmp_path / "t.jsonl")
    assert TREE.layer({"trace": {"path": ""}}, "a.toml", tmp_path).values["trace.path"] == ""


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "seed": st.integers(0, 10**9),
            "arrivals.rate": st.floats(1e-6, allow_nan=False),
            "cache.kind": st.sampled_from(["hash", "none"]),
            "overlap": st.booleans(),
            "model": st.text(),
        },
    )
)
def test_a_resolved_tree_can_be_read_again(values):
    config = TREE.resolve([TREE.layer(nest(values), "a")])
    assert TREE.resolve([TREE.layer(config.tree(), "b")]).values == config.values


def test_an_infinite_rate_survives_json_as_a_string():
    assert TREE.layer({"arrivals": {"rate": "inf"}}, "run.json").values["arrivals.rate"] == math.inf


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = = 1", "not valid TOML: .*line 1"),
        (b"\xff\xfe", "not a UTF-8 text file"),
        (None, "no such file"),
    ],
)
def test_unreadable_files(tmp_path, content, message):
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        read_toml(path)
    with pytest.raises(UsageError):
        read_toml(tmp_path)


def test_a_key_may_be_declared_once():
    key = Key("a", "int", 0, "", "")
    with pytest.raises(ValueError, match="two rooms declare the key a"):
        KeyTree((key, Key("a", "int", 1, "", "")))
    with pytest.raises(ValueError, match="unknown kind"):
        Key("a", "number", 0, "", "")
    with pytest.raises(ValueError, match="choices belong"):
        Key("a", "choice", "x", "", "")


def test_nearest_counts_the_last_part_as_much_as_the_whole():
    assert nearest("max_seqs", ["scheduler.max_num_seqs", "max_model_len", "seed"]) == "scheduler.max_num_seqs"


def test_a_folder_is_not_a_file():
    with pytest.raises(UsageError, match="directory"):
        read_toml(Path("/"))
