"""The catalogue and what runs bring: one unit for a metric, and every better side belongs to a metric that there is."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.core.jit import PLAIN
from kvbench.gate.metrics import direction
from kvbench.metrics.catalogue import HIGHER, LOWER, METRICS

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")

RUNS = {
    "one engine": [],
    "fleet": ["fleet.replicas=2", "router.policy=cache-aware"],
    "tiers": ["tiers.host.blocks=100", "tiers.storage.blocks=200"],
    "pairs": ["pd.prefill=1", "pd.decode=1"],
}


@pytest.fixture(scope="module")
def scalars():
    """kind -> name -> (value, unit)."""
    small = ["num_prompts=12", "lengths.output=4", "cache.blocks=400", "slo.ttft=1000"]
    found = {}
    for kind, changes in RUNS.items():
        configured = configure("prefix-zipf", changes=[("test", change) for change in (*small, *changes)])
        found[kind] = run(configured).record.summary.scalars
    return found


def test_a_metric_has_one_unit(scalars):
    for kind, found in scalars.items():
        for name, (_, unit) in found.items():
            assert name not in METRICS or METRICS[name].unit == unit, (kind, name)


def test_every_row_belongs_to_a_metric_of_some_run(scalars):
    assert METRICS.keys() == {name for found in scalars.values() for name in found if name in METRICS}


def test_fleets_tiers_and_pairs_are_judged():
    assert direction("load_cv") == direction("fetch_wait") == direction("transfer_p99") == LOWER
    assert direction("engine_hit_rate_min") == direction("goodput_per_device") == HIGHER
