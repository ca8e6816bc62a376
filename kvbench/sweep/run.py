"""Run the points of a grid. A workload is built once for all points that share it; these run one after another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..bench.configure import Configured
from ..bench.keys import key_tree
from ..bench.replay import offline_view, replay_system
from ..bench.run import Progress, Result, run
from ..bench.system import build_system
from ..core.errors import UsageError
from ..costs.tables import CostTables
from ..offline.replay import check_replay
from ..report.grid import Grid, GridRow, run_figures
from ..workload.build import build_workload, workload_part
from .grid import Axis, Point, keys_of

Keep = Callable[[int, Result], None]
"""Called with the number of a point and its result, which is not kept here."""

SHARED_BY = ("block_tokens", "offline.answers", "offline.warm_up")
"""Keys on which what replays of one workload share depends."""


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
    return _grid(axes, points, figures, errors, cache_only=False, complete=complete)


def replay_grid(axes: Sequence[Axis], points: Sequence[Point], progress: Progress) -> Grid:
    """Every point through the cache alone. UsageError: a point without a cache."""
    for point in points:
        check_replay(point.system.settings)
    figures: dict[int, dict[str, Any]] = {}
    errors: dict[int, str] = {}
    complete = True
    try:
        for group in groups(points, lambda point: tuple(point.system.config[key] for key in SHARED_BY)):
            config = points[group[0]].system.config
            requests, _ = build_workload(config.tree())
            requests.check()
            offline = offline_view(requests, config)
            known: dict[str, CostTables] = {}
            for index in group:
                system = points[index].system
                try:
                    found = replay_system(offline, system, known)
                except UsageError as error:
                    errors[index] = str(error)
                else:
                    figures[index] = {name: value for name, value in found.items() if name != "seconds"}
                progress(len(figures) + len(errors), len(points))
    except KeyboardInterrupt:
        complete = False
    return _grid(axes, points, figures, errors, cache_only=True, complete=complete)


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
    """Rows in the order of the points, those that were not reached left out. UsageError: there is not a figure."""
    if complete and not figures:
        raise UsageError(f"no point of the grid could run; the first: {errors[0]}")
    done = sorted({*figures, *errors})
    rows = tuple(GridRow(points[i].values, _sized(figures, points, i), errors.get(i, "")) for i in done)
    first = points[0]
    return Grid(
        run=first.configured.name,
        keys=keys_of(axes),
        units={key: key_tree().key_of(key, "grid").unit for key in keys_of(axes)},
        rows=rows,
        cache_only=cache_only,
        policy=first.system.settings.cache.eviction or "lru",
        block_tokens=first.system.settings.block_tokens,
        complete=complete,
        head=_head(axes, points, figures, cache_only),
    )


def _head(
    axes: Sequence[Axis], points: Sequence[Point], figures: dict[int, dict[str, Any]], cache_only: bool
) -> tuple[tuple[str, str], ...]:
    """What all points share; a key that is an axis stands in the table."""
    varied = set(keys_of(axes))
    config = points[0].system.config
    prints = {str(found["fingerprint"])[:16] for found in figures.values() if found.get("fingerprint")}
    workload = f"seed {config['seed']}" + (f"; fingerprint {next(iter(prints))}" if len(prints) == 1 else "")
    if len(prints) > 1:
        workload = f"{len(prints)} workloads"
    rows = [
        ("run", points[0].configured.name),
        ("clock", "none: the cache alone" if cache_only else config["clock"]),
        ("device", config["device"] if "device" not in varied else "varied"),
        ("model", points[0].system.deployment.model.name if "model" not in varied else "varied"),
        ("preset", config["preset"] if "preset" not in varied else "varied"),
        ("workload", workload),
    ]
    return tuple((name, str(text)) for name, text in rows)


def _sized(figures: dict[int, dict[str, Any]], points: Sequence[Point], index: int) -> dict[str, Any]:
    """The figures of a point, with what a block takes on a device and how many would fit there."""
    budget = points[index].system.budget
    sizes = {"block_bytes": budget.block_bytes, "device_blocks": budget.num_blocks}
    return {**figures[index], **sizes} if index in figures else {}


SIZES = 9
"""Of an automatic axis of capacities."""


def automatic_sizes(configured: Configured) -> tuple[str, ...]:
    """Capacities from what the longest request needs to what holds every block, in equal ratios."""
    config = build_system(configured.config).config
    requests, _ = build_workload(config.tree())
    tokens = config["block_tokens"]
    longest = int((requests.prompt_tokens + requests.output_tokens).max()) // tokens + 1
    view = offline_view(requests, config)
    distinct = max(int((requests.prompt_tokens + requests.output_tokens).sum()) // tokens, 1)
    hits = int((requests.prompt_tokens * requests.samples).sum() / tokens * view.endless().blocks)
    most = max(distinct - hits, 2 * longest)
    sizes = np.geomspace(longest, most, SIZES)
    return tuple(dict.fromkeys(f"{math.ceil(size) if size < 100 else float(f'{size:.3g}'):.0f}" for size in sizes))
