"""Requests in other namespaces share nothing, whichever part of the namespace is another."""

from __future__ import annotations

import pytest

from kvbench.engine.settings import EngineSettings
from kvbench.scheduler.rules import CacheRules, SchedulerRules
from kvbench.workload.build import build_workload
from kvbench.workload.keys import NAMESPACE_PARTS

from ..offline.test_replay import replayed


def hit_blocks(kind, **namespace):
    """Of 40 requests with one prefix of 10 blocks and 6 tokens of their own, in a cache that holds everything."""
    tree = {"num_prompts": 40, "sharing": {"groups": 1, "prefix": 160}, "lengths": {"prompt": 6}}
    requests, _ = build_workload({**tree, "namespace": namespace})
    system = EngineSettings(SchedulerRules(), CacheRules(kind=kind, num_blocks=1000), 16, 1000)
    return replayed(requests, system)["hit_blocks"]


@pytest.mark.parametrize("kind", ["radix", "hash"])
@pytest.mark.parametrize("part", NAMESPACE_PARTS)
def test_each_part_alone_keeps_equal_text_apart(part, kind):
    assert hit_blocks(kind, **{part: "a"}) == 390
    assert hit_blocks(kind, **{part: ["a", "b"]}) == 380
    assert hit_blocks(kind, **{part: ["a", "b", "c"]}) == 370


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_all_parts_together(kind):
    assert hit_blocks(kind, model=["m", "n"], salt=["x", "y"]) == 360
