"""Step times of a quantised cache from those of one at 16 bits, or of another way to compute: see kv_format."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .axes import F64, Grid, axis_points
from .classes import fitted
from .deployment import Deployment
from .keys import CostSettings
from .kv_format import byte_share, is_quantised, slope_share
from .step_times import StepTimes


def quantised(times: StepTimes, deployment: Deployment, settings: CostSettings, share: float = 1.0) -> StepTimes:
    """Decode attention whose part that grows with the context takes as long as the KV's type and way let it.

    times   of this deployment; share: of the bytes at 16 bits that its decode attention reads per token already
    """
    d = deployment
    if not is_quantised(d.kv_dtype):
        return times
    factor = slope_share(d.model, d.kv_dtype, d.tp, d.kv) / share
    decode = _steeper(times.decode, factor)
    launches = (d.model.num_layers - d.kv.wide_layers(d.model)) * fitted(settings, d.device, d.dtype).launch_us * 1e3
    derived = () if share < 1 else (f"attention over {d.kv_dtype} KV derived from measurements at 16 bits",)
    return replace(
        times,
        origin=replace(times.origin, kv_dtype=d.kv_dtype, notes=(*times.origin.notes, *derived)),
        decode=decode,
        mixed=decode if times.mixed is times.decode else _steeper(times.mixed, factor),
        launch_ns=times.launch_ns + launches,
    )


def break_even_tokens(times: StepTimes, deployment: Deployment, settings: CostSettings) -> float:
    """Cached tokens read in a step from which a quantised cache is faster than 16 bits; inf: never.

    times   of the quantised cache
    """
    d = deployment
    share = slope_share(d.model, d.kv_dtype, d.tp, d.kv)
    launches = (d.model.num_layers - d.kv.wide_layers(d.model)) * fitted(settings, d.device, d.dtype).launch_us * 1e3
    wide_ns = _slope_ns(times.decode) / share
    return launches / ((1 - share) * wide_ns) if share < 1 else float("inf")


def own_share(deployment: Deployment) -> float:
    """Of the bytes at 16 bits: what the roofline's memory bound reads per token."""
    d = deployment
    return byte_share(d.model, d.kv_dtype, d.tp, d.kv)


def _steeper(grid: Grid, factor: float) -> Grid:
    """Every row: what it takes at the least context stays, what comes on top is so many times as much."""

    def scaled(ns: F64) -> F64:
        least = ns[:, :1]
        return least + factor * (ns - least)

    return replace(grid, compute_ns=scaled(grid.compute_ns) if not grid.memory_ns.any() else grid.compute_ns,
                   memory_ns=scaled(grid.memory_ns))  # fmt: skip


def _slope_ns(grid: Grid) -> float:
    """ns per cached token of one long sequence... of a row in the middle, over its last stretches."""
    ns = np.maximum(grid.compute_ns, grid.memory_ns)[grid.compute_ns.shape[0] // 3]
    points = axis_points(grid.column_bits, 2)
    while points.size < ns.size:
        points = axis_points(grid.column_bits, int(points[-1]) * 2)
    high = int(np.searchsorted(points, 1 << 17))
    low = int(np.searchsorted(points, 1 << 14))
    return float((ns[high] - ns[low]) / (points[high] - points[low]))
