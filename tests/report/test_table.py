"""What a user reads: everything is named, nothing is wider than 100 columns, no number is made up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvbench.core.journal import HitBounds
from kvbench.metrics.latency import summarise
from kvbench.metrics.percentiles import Distribution
from kvbench.report.table import WIDTH, run_table, size
from tests.runs import counters, journal, record, requests


def test_the_head_names_what_a_reader_must_know():
    text = run_table(record())
    for words in (
        "modelled (step path)",
        "cold; hash, blocks of 16 tokens",
        "vllm-0.33 (vLLM 0.33); continuous batching",
        "overlap off (the engine's default is on)",
        "device       h100",
        "step times   datasheet, uncalibrated",
        "llama-3.1-8b; bf16, KV bf16; tp 1",
        "seed 0",
        "4: 2 finished, 1 refused, 1 partial",
        "13.71 % of prompt tokens (96 of 700)",
        "mean 31 (31.25 %), peak 50 (50.00 %) of 100",
        "mean 12 tokens (2.50 % of used slots)",
        "1, 17 tokens computed again",
        "16.06 GB",
        "200.00 MB  100 blocks",
        "4.10 kB",
    ):
        assert words in text.replace("\n" + " " * 13, " ")


def test_bounds_stand_below_the_hit_rate_where_they_were_worked_out():
    bounded = summarise(journal(), requests(), counters(), HitBounds(350, 175))
    line = "at most      25.00 % in 100 blocks with the future known (a bound), 50.00 % in an infinite cache"
    assert line in run_table(record(summary=bounded)).splitlines()
    assert "at most" not in run_table(record())


def test_nothing_is_wider_than_a_terminal():
    long = record(run="r" * 150, notes=("a note " * 40,), device="d" * 40, step_times="datasheet, uncalibrated " * 8)
    assert max(map(len, run_table(long).splitlines())) <= WIDTH


def test_large_numbers_keep_their_digits():
    d = Distribution(1234567.891, 1e5, 1e5, 1e5, 1e5, 1e6, 10**7)
    summary = record().summary
    text = run_table(record(summary=replace(summary, latencies={**summary.latencies, "e2el": d})))
    assert "1,234,567.89" in text
    assert "100,000.00 .. 1,000,000.00" in text
    assert "10,000,000" in text
    assert max(map(len, text.splitlines())) <= WIDTH


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [(None, None, "n too small (needs 368)"), (5.0, None, ">= 5.00"), (5.0, 6.0, "5.00 .. 6.00")],
)
def test_a_bound_that_does_not_exist_is_no_number(low, high, shown):
    summary = record().summary
    d = Distribution(1.0, 1.0, 1.0, 1.0, low, high, 3)
    text = run_table(record(summary=replace(summary, latencies={**summary.latencies, "ttft": d})))
    assert shown in next(line for line in text.splitlines() if line.startswith("TTFT"))


def test_a_partial_result_says_so():
    assert "PARTIAL" in run_table(record(complete=False))
    assert "PARTIAL" not in run_table(record())


def test_sizes():
    assert [size(n) for n in (0, 999, 1000, 10**6, 16_060_000_000)] == [
        "0 B", "999 B", "1.00 kB", "1.00 MB", "16.06 GB",
    ]  # fmt: skip


def test_no_two_lines_have_one_label():
    labels = [line.split("  ")[0] for line in run_table(record()).splitlines() if line[:1].strip()]
    assert len(labels) == len(set(labels))
