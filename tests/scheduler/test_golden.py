"""Recordings of the real schedulers, step by step through the product's code: every recorded field is equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kvbench.engine.integrity import check_integrity

from ..recordings import read_recording, recording_params
from .replays import Replay, SglangReplay, VllmReplay


def replay(path: Path, kind: type[VllmReplay] | type[SglangReplay]) -> tuple[Replay, list[dict]]:
    header, steps, last = read_recording(path)
    engine = kind(header)
    with np.errstate(over="ignore"):
        for number, step in enumerate(steps):
            got = engine.step(step, number)
            for name, value in step.get("out", {}).items():
                assert got[name] == value, f"{path.name} step {number}, field {name}"
            if number % 20 == 0:
                check_integrity(engine.engine)
        check_integrity(engine.engine)
    return engine, last["summary"]


@pytest.mark.parametrize("path", recording_params("vllm_sched_*"))
def test_vllm(path):
    engine, summary = replay(path, VllmReplay)
    q = engine.engine.seqs
    for row in summary:
        i = engine.index[row["id"]]
        assert (q.preemptions[i], engine.generated(i)) == (row["num_preemptions"], row["num_output"]), row["id"]
        if row["first_sched"] is not None:
            assert (q.scheduled[i], q.cached[i]) == (row["first_sched"], row["num_cached_tokens"]), row["id"]


@pytest.mark.parametrize("path", recording_params("sglang_sched_*"))
def test_sglang(path):
    engine, summary = replay(path, SglangReplay)
    q = engine.engine.seqs
    for row in summary:
        i = engine.index[row["id"]]
        assert (q.preemptions[i], engine.generated(i)) == (row["retractions"], row["num_output"]), row["id"]
        assert (q.scheduled[i], q.cached[i]) == (row["first_sched"], row["cached_tokens"]), row["id"]
