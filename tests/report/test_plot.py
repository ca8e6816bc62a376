"""Pictures of grids: what is on them, and the same bytes twice."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.core.errors import UsageError
from kvbench.report.grid import GridRow
from kvbench.report.pictures.misses import grid_charts
from kvbench.report.plot import check_plot
from kvbench.report.plot import draw_grid as draw

from .test_grid import curve, runs

AXES = {"cache.blocks": ("1000", "2000")}


def full_runs():
    one = runs().rows[0].figures
    bounds = {"hit_rate_optimum": 0.4, "hit_rate_infinite": 0.5}
    rows = tuple(GridRow((blocks,), {**one, **bounds, "p99_ttft_ms": 1 / n}) for n, blocks in ((1, "10"), (20, "900")))
    return replace(runs(), keys=("cache.blocks",), rows=rows)


@pytest.fixture
def matplotlib():
    return pytest.importorskip("matplotlib", reason="needs the extra `plot`")


@pytest.mark.parametrize("suffix", [".svg", ".png"])
@pytest.mark.parametrize("grid", [curve, full_runs])
def test_the_same_grid_gives_the_same_bytes(matplotlib, suffix, grid):
    assert draw(grid(), suffix) == draw(grid(), suffix)


def test_names_units_and_bounds_are_on_it():
    text = draw(curve(), ".svg").decode()
    for label in ("lru", "mru", "optimum", "infinite cache", "prompt tokens missed"):
        assert f">{label}</text>" in text
    assert "blocks of 16 tokens" in text
    assert "TTFT" not in text
    assert "device holds" not in text


def test_capacities_are_also_in_gigabytes_with_the_device_marked():
    sizes = {"block_bytes": 2_000_000, "device_blocks": 300}
    grid = full_runs()
    sized = replace(grid, rows=tuple(replace(row, figures={**row.figures, **sizes}) for row in grid.rows))
    text = draw(sized, ".svg").decode()
    assert "GB of KV on a device" in text
    assert "device holds 300" in text
    assert ">0.1</text>" in text  # 50 blocks


def test_hits_are_the_misses_upside_down():
    (misses,), (hits,) = (grid_charts(curve(), which) for which in ("miss", "hit"))
    for below, above in zip(misses.series, hits.series, strict=True):
        assert (below.name, below.y.tolist()) == (above.name, pytest.approx((100 - above.y).tolist()))


def test_full_runs_have_a_second_panel():
    assert ">TTFT p99</text>" in draw(full_runs(), ".svg").decode()


def test_another_axis_has_its_unit():
    grid = replace(full_runs(), keys=("arrivals.rate",), units={"arrivals.rate": "requests/s"})
    assert "arrivals.rate (requests/s)" in draw(grid, ".svg").decode()


def test_one_point_is_no_line():
    with pytest.raises(UsageError, match="too few points"):
        draw(replace(full_runs(), rows=full_runs().rows[:1]), ".svg")
    nothing = tuple(replace(row, figures={}) for row in full_runs().rows)
    with pytest.raises(UsageError, match="too few points"):
        draw(replace(full_runs(), rows=nothing), ".svg")


@pytest.mark.parametrize(
    ("name", "axes", "message"),
    [
        ("a.pdf", AXES, "write it as FILE.svg or FILE.png"),
        ("none/a.svg", AXES, "there is no folder"),
        ("a.svg", {"cache.kind": ("hash", "radix")}, "needs an axis of numbers"),
    ],
)
def test_what_cannot_be_drawn_is_known_before(tmp_path, name, axes, message):
    with pytest.raises(UsageError, match=message):
        check_plot(tmp_path / name, axes)


def test_without_matplotlib_it_says_how_to_get_it(monkeypatch, tmp_path: Path):
    real = builtins.__import__

    def missing(name: str, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"pip install 'kvbench\[plot\]'"):
        check_plot(tmp_path / "a.png", AXES)
    check_plot(tmp_path / "a.svg", AXES)
