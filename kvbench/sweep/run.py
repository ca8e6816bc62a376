"""Run the points of a grid. A workload is built once for all points that share it; these run one after another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..bench.keys import key_tree
from ..bench.replay import beside
from ..bench.run import Progress, Result, run
from ..bench.step_times import step_costs
from ..core.errors import UsageError
from ..offline.curve import Offline, is_stack, lru_curve
from ..offline.replay import check_replay, replay_cache
from ..report.grid import Grid, GridRow, run_figures
from ..workload.build import build_workload, workload_part
from .grid import Axis, Point

Keep = Callable[[int, Result], None]
"""Called with the number of a point and its result, which is not kept here."""

NOT_OF_A_CURVE = ("seconds", "hit_rate_ids")
"""Figures of a replay that one pass over all capacities does not give."""


def run_grid(
    axes: Sequence[Axis], points: Sequence[Point], keep: Keep, progress: Progress, steps: bool = False
) -> Grid:
    """A full run of every point. One that fails has its reason in its row; all failing is an error of the grid."""
    figures: dict[int, dict[str, Any]] = {}
    errors: dict[int, str] = {}
    complete = True
    try:
        for group in groups(points, lambda point: ()):
            workload = build_workload(points[group[0]].system.config.tree())
            for index in group:
                try:
                    result = run(points[index].configured, None, steps, workload)
                except UsageError as error:
                    errors[index] = str(error)
                else:
                    keep(index, result)
                    if not result.record.complete:  # its figures would read as those of a whole run
                        errors[index] = "interrupted: a partial result"
                        raise KeyboardInterrupt
                    figures[index] = run_figures(result.record)
                progress(len(figures) + len(errors), len(points))
    except KeyboardInterrupt:
        complete = False
    if complete and not figures:
        raise UsageError(f"no point of the grid could run; the first: {errors[0]}")
    return _grid(axes, points, figures, errors, cache_only=False, complete=complete)


def replay_grid(axes: Sequence[Axis], points: Sequence[Point], progress: Progress) -> Grid:
    """Every point through the cache alone. UsageError: a point without a cache."""
    for point in points:
        check_replay(point.system.settings)
    figures: dict[int, dict[str, Any]] = {}
    complete = True
    try:
        for group in groups(points, lambda point: (point.system.settings.block_tokens,)):
            requests, _ = build_workload(points[group[0]].system.config.tree())
            requests.check()
            offline = Offline(requests, points[group[0]].system.settings.block_tokens)
            for index, found in _replays(offline, points, group):
                figures[index] = found
                progress(len(figures), len(points))
    except KeyboardInterrupt:
        complete = False
    return _grid(axes, points, figures, {}, cache_only=True, complete=complete)


def _replays(offline: Offline, points: Sequence[Point], group: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, figures) of the points of one group: those of one pass first."""
    systems = {index: points[index].system.settings for index in group}
    bounds = dict(zip(group, offline.bounds([s.cache.num_blocks for s in systems.values()]), strict=True))
    stack = [index for index in group if is_stack(systems[index])]
    for index, found in zip(stack, lru_curve(offline, [systems[i] for i in stack]), strict=True):
        yield index, beside(found, bounds[index])
    for index in group:
        if index not in stack:
            system = points[index].system
            costs = step_costs(system).tables
            found = replay_cache(offline.requests, system.settings, costs, offline.keys)
            kept = {name: value for name, value in found.items() if name not in NOT_OF_A_CURVE}
            yield index, beside(kept, bounds[index])


def groups(points: Sequence[Point], more: Callable[[Point], tuple[Any, ...]]) -> list[list[int]]:
    """Numbers of points with one workload, and `more` in common, in order of their first."""
    found: dict[Any, list[int]] = {}
    for index, point in enumerate(points):
        workload = json.dumps(workload_part(point.system.config.tree()), sort_keys=True)
        found.setdefault((workload, more(point)), []).append(index)
    return list(found.values())


def _grid(
    axes: Sequence[Axis],
    points: Sequence[Point],
    figures: dict[int, dict[str, Any]],
    errors: dict[int, str],
    cache_only: bool,
    complete: bool,
) -> Grid:
    """Rows in the order of the points, those that were not reached left out."""
    done = sorted({*figures, *errors})
    rows = tuple(GridRow(points[i].values, _sized(figures, points, i), errors.get(i, "")) for i in done)
    first = points[0]
    return Grid(
        run=first.configured.name,
        keys=tuple(axis.key for axis in axes),
        units={axis.key: key_tree().key_of(axis.key, "grid").unit for axis in axes},
        rows=rows,
        cache_only=cache_only,
        policy=first.system.settings.cache.eviction or "lru",
        block_tokens=first.system.settings.block_tokens,
        complete=complete,
    )


def _sized(figures: dict[int, dict[str, Any]], points: Sequence[Point], index: int) -> dict[str, Any]:
    """The figures of a point, with what a block takes on a device and how many would fit there."""
    budget = points[index].system.budget
    sizes = {"block_bytes": budget.block_bytes, "device_blocks": budget.num_blocks}
    return {**figures[index], **sizes} if index in figures else {}
