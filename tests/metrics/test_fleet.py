"""How evenly a fleet was used, against loops that do it the slow way."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.journal import NEVER
from kvbench.metrics.fleet import hot_replicas, load_cv

STAYS = st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 30), st.integers(0, 30)), max_size=12)


@given(STAYS)
def test_load_cv(stays):
    journal = SimpleNamespace(
        columns={"engine": np.array([e for e, _, _ in stays], np.int64)},
        arrival_ns=np.array([a for _, a, _ in stays], np.int64),
        finish_ns=np.array([a + d for _, a, d in stays], np.int64),
    )
    total = weight = 0.0
    for t in range(60):
        load = [sum(e == k and a <= t < a + d for e, a, d in stays) for k in range(3)]
        if sum(load):
            total += np.std(load) / np.mean(load)
            weight += 1
    found = load_cv(journal, 3)
    if weight == 0:
        assert found is None
    else:
        assert abs(found - total / weight) < 1e-9


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 14)), max_size=40))
def test_hot_replicas(pairs):
    engine, keys = (np.array([p[i] for p in pairs], np.int64) for i in (0, 1))
    homes: dict[int, list[int]] = {}
    for e, key in pairs:
        if e != NEVER and key != NEVER:
            homes.setdefault(key, []).append(e)
    ranked = [(len(found), -key, len(set(found))) for key, found in homes.items() if len(found) > 1]
    shared = sorted(ranked, reverse=True)
    expected = [n for _, _, n in shared[:10]]
    found = hot_replicas(engine, keys)
    assert found is None if not expected else abs(found - np.mean(expected)) < 1e-9


def test_one_engine_is_even():
    journal = SimpleNamespace(
        columns={"engine": np.zeros(2, np.int64)}, arrival_ns=np.zeros(2, np.int64), finish_ns=np.full(2, 9)
    )
    assert load_cv(journal, 1) is None
