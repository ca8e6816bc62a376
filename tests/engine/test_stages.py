"""The stages around an engine that a server has once: a tokeniser and an output stage."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run


def journal(*changes: str):
    texts = ("num_prompts=24", "lengths.prompt=50", "lengths.output=20", "arrivals.process=all-at-once", *changes)
    return run(configure(None, changes=[("--set", text) for text in texts])).journal


def test_prompts_are_tokenised_one_after_the_other_in_the_order_in_which_they_are_sent():
    us = "costs.tokenize_us_per_token=7"
    serial, parallel = journal(us, "costs.serial_tokenizer=true"), journal(us, "costs.serial_tokenizer=false")
    assert np.array_equal(serial.queued_ns, 50 * 7_000 * np.arange(1, 25))
    assert (parallel.queued_ns == 50 * 7_000).all()


@pytest.mark.parametrize("overlap", ["true", "false"])
@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_no_more_tokens_leave_than_the_output_stage_can_bear(preset, overlap):
    us = 900
    slow = journal(f"costs.output_us_per_token={us}", f"overlap={overlap}", f"preset={preset}")
    tokens = int(slow.output_tokens.sum())
    assert slow.finish_ns.max() >= tokens * us * 1000
    assert slow.finish_ns.max() <= tokens * us * 1000 * 1.2
    fast = journal(f"overlap={overlap}", f"preset={preset}")
    assert fast.finish_ns.max() < slow.finish_ns.max() / 2


def test_a_stage_faster_than_the_device_only_delays():
    none, quick = journal(), journal("costs.output_us_per_token=1")
    assert 0 < (quick.finish_ns - none.finish_ns).max() <= 24 * 1000
    assert np.array_equal(none.itl_count, quick.itl_count)


def test_a_client_with_slots_sends_when_it_has_its_last_token():
    closed = ("arrivals.process=closed", "arrivals.concurrency=6", "costs.output_us_per_token=400")
    found = journal(*closed, "costs.tokenize_us_per_token=0")
    assert set(found.arrival_ns[found.arrival_ns > 0].tolist()) <= set(found.finish_ns.tolist())


def test_the_parts_of_a_life_sum_to_it():
    found = journal("costs.output_us_per_token=300", "costs.serial_tokenizer=true")
    assert np.array_equal(found.parts_ns.sum(axis=1), found.finish_ns - found.arrival_ns)
    assert (found.parts_ns >= 0).all()
