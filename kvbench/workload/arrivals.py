"""When requests arrive: the gaps of an arrival process, and which requests their clients cancel."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from ..core.units import NS_PER_S, NS_PER_US
from .draws import F64, Purpose, Seeds, uniforms
from .lengths import durations_ns

I64 = NDArray[np.int64]

MAX_ARRIVAL_NS = 1 << 61
"""Later arrivals leave no room for the run itself below NEVER_NS."""

UNTIMED = ("all-at-once", "closed")
"""Processes that hand over every request at once; with `closed` the engine lets `concurrency` of them in."""


def arrival_times_ns(process: str, size: int, rate: float, burstiness: float, u: F64) -> I64:
    """(size,) ascending times from 0; the first request arrives after the first gap.

    rate        mean arrivals per second, inf for all at once
    burstiness  shape of the gamma gaps; their mean stays 1 / rate
    u           (size,) uniforms; `constant` and the untimed processes leave them unused
    source      vLLM's benchmark: gaps ~ Gamma(burstiness, 1 / (rate * burstiness))
    """
    if process == "poisson" and burstiness != 1.0:
        raise UsageError(
            f"arrivals.burstiness is {burstiness:g} but arrivals.process is poisson; set the process to gamma"
        )
    if process in UNTIMED or math.isinf(rate):
        return np.zeros(size, np.int64)
    if size / rate * NS_PER_S > MAX_ARRIVAL_NS:
        raise UsageError(f"arrivals.rate {rate:g} spreads {size} requests over more than 70 years; raise it")
    mean_us = NS_PER_S / NS_PER_US / rate
    if process == "constant":
        return np.rint(np.arange(1, size + 1) * mean_us).astype(np.int64) * NS_PER_US
    gaps_us = np.rint(_unit_gaps(burstiness, u) * mean_us).astype(np.int64)
    return np.cumsum(gaps_us) * NS_PER_US


def _unit_gaps(burstiness: float, u: F64) -> F64:
    """Gamma quantiles with mean 1; the exponential has a closed form and spares the import of scipy."""
    if burstiness == 1.0:
        return -np.log1p(-u)
    from scipy.special import gammaincinv

    return np.asarray(gammaincinv(burstiness, u), np.float64) / burstiness


def cancel_times_ns(share: float, after_s: object, size: int, seeds: Seeds, phase: int) -> I64:
    """(size,) nanoseconds from arrival to cancel; NONE for requests that nobody cancels."""
    if share == 0.0:
        return np.full(size, NONE, np.int64)
    chosen = uniforms(seeds.arrivals, Purpose.CANCEL, size, phase) < share
    u = uniforms(seeds.arrivals, Purpose.CANCEL_AFTER, size, phase)
    return np.where(chosen, durations_ns(after_s, u, "arrivals.cancel_after_s"), NONE)
