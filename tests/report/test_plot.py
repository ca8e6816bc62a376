"""Pictures of grids: what is on them, and the same bytes twice."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.core.errors import UsageError
from kvbench.report.grid import GridRow
from kvbench.report.plot import check_plot, draw

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


def test_names_units_and_bounds_are_on_it(matplotlib):
    text = draw(curve(), ".svg").decode()
    for label in ("lru", "mru", "optimum", "infinite cache", "miss ratio (% of prompt tokens)"):
        assert f">{label}</text>" in text
    assert "cache capacity (blocks of 16 tokens)" in text
    assert "TTFT" not in text
    assert "dc:date" not in text


def test_full_runs_have_a_second_panel(matplotlib):
    assert "TTFT p99 (ms)" in draw(full_runs(), ".svg").decode()


def test_another_axis_has_its_unit(matplotlib):
    grid = replace(full_runs(), keys=("arrivals.rate",), units={"arrivals.rate": "requests/s"})
    assert "arrivals.rate (requests/s)" in draw(grid, ".svg").decode()


def test_one_point_is_no_line(matplotlib):
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
        check_plot(tmp_path / "a.svg", AXES)
