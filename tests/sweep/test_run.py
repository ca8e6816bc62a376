"""Grids against single runs: the same figures, the workload built once, what fails has its reason in its row."""

from __future__ import annotations

import pytest

from kvbench.bench import replay as single
from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.core.errors import UsageError
from kvbench.report.grid import run_figures
from kvbench.sweep import run as sweep
from kvbench.sweep.grid import Point, make_points, parse_axis

SHARED = ["sessions.turns=1", "sharing.groups=6", "sharing.prefix=120", "sharing.zipf=1"]
SMALL = [("code", text) for text in ("num_prompts=40", "lengths.prompt=60", "lengths.output=6", *SHARED)]


def axes_and_points(*texts: str, preset: str = "vllm"):
    axes = [parse_axis(text) for text in texts]
    changes = [*SMALL, ("code", f"preset={preset}")]
    return axes, make_points(axes, lambda more: configure("chat", changes=[*changes, *more]))


def ignore(*_: object) -> None:
    pass


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """How often a workload was built."""
    count: list[int] = []
    build = sweep.build_workload

    def counted(tree):
        count.append(1)
        return build(tree)

    monkeypatch.setattr(sweep, "build_workload", counted)
    return count


def sizes(point):
    budget = point.system.budget
    return {"block_bytes": budget.block_bytes, "device_blocks": budget.num_blocks}


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_a_curve_is_what_single_replays_give(kind, built):
    axes, points = axes_and_points("cache.blocks=1,40,150,400,700,100000", f"cache.kind={kind}", "block_tokens=16,7")
    found = sweep.replay_grid(axes, points, ignore)
    assert len(built) == 2  # block sizes
    assert found.complete
    assert {row.values[0] for row in found.rows if "no request could run" in row.error} == {"1"}
    for point, row in zip(points, found.rows, strict=True):
        if row.error:
            continue
        alone = single.replay(point.configured)
        del alone["seconds"]
        assert dict(row.figures) == alone | sizes(point)
        assert row.values == point.values
    ran = [row.figures for row in found.rows if not row.error]
    assert ran[0]["hit_rate_tokens"] < ran[-1]["hit_rate_tokens"]
    assert len({figures["evicted_blocks"] for figures in ran}) > 3


def test_policies_of_one_capacity_have_one_optimum():
    axes, points = axes_and_points("cache.blocks=60", "cache.eviction=lru,mru", preset="sglang")
    lru, mru = sweep.replay_grid(axes, points, ignore).rows
    assert lru.figures["hit_blocks"] != mru.figures["hit_blocks"]
    assert lru.figures["hit_rate_tokens_optimum"] == mru.figures["hit_rate_tokens_optimum"]


def test_rows_are_in_the_order_of_the_points_and_runs_those_of_a_run(built):
    axes, points = axes_and_points("seed=1,2", "cache.blocks=30,60,1000")
    seen: list[int] = []
    ticks: list[tuple[int, int]] = []
    found = sweep.run_grid(axes, points, lambda i, _: seen.append(i), lambda *tick: ticks.append(tick))
    assert len(built) == 2
    assert seen == list(range(6))
    assert ticks[-1] == (6, 6)
    for point, row in zip(points, found.rows, strict=True):
        assert dict(row.figures) == run_figures(run(point.configured).record) | sizes(point)
    assert found.rows[0].figures["fingerprint"] != found.rows[-1].figures["fingerprint"]


def test_a_workload_that_comes_back_is_built_once(built):
    axes, points = axes_and_points("cache.blocks=30,60", "seed=1,2")
    found = sweep.run_grid(axes, points, ignore, ignore)
    assert len(built) == 2
    assert [row.values for row in found.rows] == [point.values for point in points]


def test_a_point_that_cannot_run_says_why():
    axes, points = axes_and_points("cache.blocks=1,1000")
    found = sweep.run_grid(axes, points, ignore, ignore)
    assert [bool(row.error) for row in found.rows] == [True, False]
    assert "exceed the cache (1 blocks" in found.rows[0].error
    assert found.complete
    axes, points = axes_and_points("cache.blocks=1,2")
    with pytest.raises(UsageError, match="no point of the grid could run; the first: all 40 sequences"):
        sweep.run_grid(axes, points, ignore, ignore)


def test_without_a_cache_there_is_no_curve():
    with pytest.raises(UsageError, match="nothing to replay"):
        sweep.replay_grid(*axes_and_points("cache.kind=hash,none"), ignore)


def test_ctrl_c_leaves_the_points_that_were_done(monkeypatch):
    axes, points = axes_and_points("cache.blocks=30,60,90")

    def stop_at_the_second(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for grid in (
        sweep.run_grid(axes, points, ignore, stop_at_the_second),
        sweep.replay_grid(axes, points, stop_at_the_second),
    ):
        assert len(grid.rows) == 2
        assert not grid.complete


def test_a_point_that_was_cut_short_says_so(fake_engine):
    axes, points = axes_and_points("cache.blocks=3000,6000")
    fake_engine.interrupt_after = 5
    found = sweep.run_grid(axes, points, ignore, ignore)
    assert [row.error for row in found.rows] == ["interrupted: a partial result"]
    assert not found.complete


def test_points_with_one_workload_are_one_group():
    _, points = axes_and_points("seed=1,2", "cache.blocks=30,60")
    assert sweep.groups(points, lambda _: ()) == [[0, 1], [2, 3]]

    def blocks(point: Point) -> tuple[int]:
        return (point.system.settings.cache.num_blocks,)

    assert sweep.groups(points, blocks) == [[0], [1], [2], [3]]


def test_fleets_of_a_grid_are_those_of_single_replays(built):
    axes, points = axes_and_points("fleet.replicas=1,2,3", "router.policy=round-robin,cache-aware", "cache.blocks=60")
    found = sweep.replay_grid(axes, points, ignore)
    assert len(built) == 1
    for point, row in zip(points, found.rows, strict=True):
        alone = single.replay(point.configured)
        alone.pop("seconds", None)
        assert dict(row.figures) == alone | sizes(point)
    rates = {row.values[:2]: row.figures["hit_rate_tokens"] for row in found.rows}
    assert rates["3", "cache-aware"] > rates["3", "round-robin"]
    assert rates["1", "cache-aware"] == rates["1", "round-robin"]
