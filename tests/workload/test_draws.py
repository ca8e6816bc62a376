"""Uniforms: pinned words of PCG64, open interval, purposes and seeds apart."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from kvbench.workload.draws import Purpose, uniforms


def test_values_are_pinned():
    """The stream is part of every generated workload: these numbers may never change."""
    raw = np.random.PCG64(np.random.SeedSequence([7, int(Purpose.PROMPT), 0])).random_raw(3)
    assert raw.tolist() == [2928435073059490798, 9082184335266424841, 6194819796556812793]
    assert uniforms(7, Purpose.PROMPT, 3).tolist() == [((w >> 12) + 0.5) / 2**52 for w in raw.tolist()]


def test_strictly_between_zero_and_one(monkeypatch):
    u = uniforms(0, Purpose.GAP, 100_000)
    assert 0 < u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert u.mean() == pytest.approx(0.5, abs=0.005)
    extremes = SimpleNamespace(random_raw=lambda n: np.array([0, 2**64 - 1], np.uint64))
    monkeypatch.setattr(np.random, "PCG64", lambda sequence: extremes)
    lowest, highest = uniforms(0, Purpose.GAP, 2).tolist()
    assert (lowest, 1 - highest) == (2.0**-53, 2.0**-53)


def test_a_longer_draw_begins_with_the_shorter():
    assert uniforms(3, Purpose.GAP, 10).tolist() == uniforms(3, Purpose.GAP, 20)[:10].tolist()


def test_seed_purpose_and_phase_change_the_stream():
    streams = [uniforms(seed, purpose, 4, phase) for seed in (0, 1) for purpose in Purpose for phase in (0, 1)]
    assert len({tuple(s.tolist()) for s in streams}) == len(streams)
