"""Groups, rows and doubts of `kvbench kernels`, at sizes for plain Python."""

from __future__ import annotations

import os

import pytest

from kvbench.bench.machine import load_average
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.speed import answers, experiments, sizes
from kvbench.speed import doubts as doubts_module
from kvbench.speed.doubts import doubts
from kvbench.speed.experiments import EXPERIMENTS, run_experiment
from kvbench.speed.run import GROUPS, chosen_groups, measure_kernels
from kvbench.speed.sizes import Sizes, last_cache_bytes

from .sizes import TINY


def quiet(done: int, total: int) -> None:
    """No progress."""


def test_groups_come_in_their_own_order():
    assert chosen_groups(None) == list(GROUPS)
    assert chosen_groups("write, copy") == ["copy", "write"]
    with pytest.raises(UsageError, match="'cpy' is not a group; take decode"):
        chosen_groups("copy,cpy")


def test_every_group_has_rows_with_one_and_with_all_threads():
    threads = os.cpu_count() or 1
    report = measure_kernels(list(GROUPS), threads, TINY, quiet)
    groups = {row.group for row in report.rows}
    assert {"memory", "paged decode", "paged prefill", "linear", "copy on write", "KV write", "prefix cache"} <= groups
    for row in report.rows:
        assert row.milliseconds > 0
        assert row.rate > 0
        assert (row.limit_rate is None) == (row.limit == "")
        assert row.ratio is None or row.ratio == row.rate / row.limit_rate
        assert row.rounds == 3
    assert {row.threads for row in report.rows if row.group == "KV write"} == {1, threads}
    assert all(row.limit for row in report.rows if row.group in ("paged decode", "copy on write", "KV write"))
    assert report.machine["threads"] == threads
    assert any("plain Python" in text for text in report.warnings) == PLAIN


def test_more_threads_than_processors_is_refused():
    with pytest.raises(UsageError, match="processors"):
        measure_kernels(["radix"], 10_000, TINY, quiet)


def test_a_busy_machine_and_wide_spreads_are_said(monkeypatch):
    monkeypatch.setattr(doubts_module, "PLAIN", False)
    big = Sizes(memory_bytes=1 << 40)
    assert doubts({"a": 0.01, "b": 0.02}, 0.1, big) == []
    busy, wide = doubts({"a": 0.01, "b": 0.3, "c": 0.2}, 1.5, big)
    assert "load 1.50 per processor" in busy
    assert "2 of 3 times" in wide
    assert "worst: b, 30 %" in wide


def test_memory_that_a_cache_holds_is_said(monkeypatch):
    monkeypatch.setattr(doubts_module, "PLAIN", False)
    monkeypatch.setattr(doubts_module, "last_cache_bytes", lambda: 32 << 20)
    assert doubts({}, 0.0, Sizes(memory_bytes=128 << 20)) == []
    assert "127 MB of KV" in doubts({}, 0.0, Sizes(memory_bytes=127 << 20))[0]


def test_the_default_is_more_than_the_last_cache_holds(monkeypatch):
    for cache, wanted in ((0, 128 << 20), (32 << 20, 128 << 20), (100 << 20, 400 << 20)):
        monkeypatch.setattr(sizes, "last_cache_bytes", lambda cache=cache: cache)
        assert sizes.enough_memory() == wanted


def test_what_the_system_tells():
    assert load_average() >= 0
    assert last_cache_bytes() >= 0


@pytest.fixture
def short_sequences(monkeypatch):
    monkeypatch.setattr(experiments, "_LENGTH", 48)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments(short_sequences, name):
    found = run_experiment(name, 1, TINY, quiet)
    assert all(len(row) == len(found.header) for row in found.rows)
    assert found.rows
    for _, values in found.lines:
        assert len(values) == len(found.x)
        assert all(value >= 0 for value in values)


def test_waste_grows_with_blocks_and_error_with_fewer_bits(short_sequences):
    blocks = run_experiment("block-size", 1, TINY, quiet)
    empty = [float(row[-1].split()[0]) for row in blocks.rows]
    assert empty[0] == 0.0
    assert empty == sorted(empty)
    assert empty[-1] > 50
    types = run_experiment("kv-type", 1, TINY, quiet)
    for column in range(len(types.header) - 5, len(types.header) - 1):
        errors = [float(row[column]) for row in types.rows]
        assert errors == sorted(errors)
        assert errors[0] < 1e-5 < errors[2]
    answers = {row[0]: row[-1] for row in types.rows}
    assert answers["bf16"] == "1.00"
    assert float(answers["int4"]) < 1


def test_answers_diverge_with_fewer_bits():
    found = answers.divergences(("bf16", "int8", "int4"), TINY)
    assert found["bf16"] == answers.Divergence(1.0, 1.0, 0.0)
    assert 0 < found["int8"].drift < found["int4"].drift < 1
    assert all(d.alike <= d.kept <= 1 for d in found.values())


def test_an_unknown_experiment_is_refused():
    with pytest.raises(UsageError, match="take one of block-size"):
        run_experiment("blocksize", 1, TINY, quiet)
