"""Argmax and draws by key: distribution, and independence of the batch."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from kvbench.kernels import sampling
from tests.reference.splitmix import SplitMix

KEYS = np.arange(4000, dtype=np.uint64) * np.uint64(977)


def test_the_lowest_index_of_equals():
    logits = np.array([[1, 3, 3, 2], [5, 5, 5, 5], [-np.inf, -np.inf, 0, 0]], np.float32)
    assert sampling.greatest(logits).tolist() == [1, 0, 2]
    assert sampling.greatest(logits[:0]).tolist() == []


def test_uniforms_are_those_of_splitmix64():
    keys = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
    wanted = [((SplitMix(int(k))() >> 12) + 0.5) / 2**52 for k in keys]
    assert sampling.uniforms(keys).tolist() == wanted
    assert kstest(sampling.uniforms(KEYS), "uniform").pvalue > 0.01


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_frequencies_follow_the_softmax(temperature):
    row = np.array([0.0, 1.0, -1.0, 2.0, -30.0, 0.5], np.float32)
    tokens = sampling.draw(np.tile(row, (len(KEYS), 1)), temperature, KEYS)
    p = np.exp(row.astype(np.float64) / temperature)
    p /= p.sum()
    likely = p > 1e-3
    counts = np.bincount(tokens, minlength=6)
    assert counts[~likely].sum() <= 4000 * p[~likely].sum() + 5
    assert chisquare(counts[likely], counts[likely].sum() * p[likely] / p[likely].sum()).pvalue > 0.01


def test_a_token_depends_on_its_key_and_logits_alone():
    logits = np.random.default_rng(0).standard_normal((9, 300)).astype(np.float32)
    together = sampling.draw(logits, 1.0, KEYS[:9])
    order = np.array([4, 0, 8, 2, 6, 1, 3, 7, 5])
    assert (sampling.draw(logits[order], 1.0, KEYS[order]) == together[order]).all()
    assert [int(sampling.draw(logits[i : i + 1], 1.0, KEYS[i : i + 1])[0]) for i in range(9)] == together.tolist()


def test_a_low_temperature_is_greedy():
    logits = np.random.default_rng(0).standard_normal((50, 30)).astype(np.float32)
    assert (sampling.draw(logits, 1e-4, KEYS[:50]) == sampling.greatest(logits)).all()
