"""What a large run gives back before its figures are worked out is in none of them."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.cluster import release
from kvbench.core.jit import PLAIN

FLEETS = [
    ["fleet.replicas=3", "router.policy=cache-aware"],
    ["fleet.replicas=3", "router.policy=kv-aware"],
    ["pd.prefill=1", "pd.decode=1"],
]


@pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")
@pytest.mark.parametrize("changes", FLEETS, ids=["own", "events", "pairs"])
def test_figures_are_the_same(changes, monkeypatch):
    seen = []
    for large in (1 << 60, 0):
        monkeypatch.setattr(release, "LARGE", large)
        configured = configure("prefix-zipf", changes=[("test", c) for c in ("num_prompts=40", *changes)])
        result = run(configured, record_steps=True)
        told = (result.record.summary, result.record.sections, result.record.notes, result.journal.itl_gap_ns.sum())
        seen.append((str(told), result.journal.steps.shape))
    assert seen[0] == seen[1]
    assert seen[0][1][0] > 0
