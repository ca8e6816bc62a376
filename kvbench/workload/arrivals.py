"""When requests arrive: the gaps of an arrival process, and which requests their clients cancel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from ..core.units import NS_PER_S, NS_PER_US
from .draws import F64, Purpose, Seeds, uniforms
from .lengths import durations_ns
from .profile import on_off, stages

I64 = NDArray[np.int64]

MAX_ARRIVAL_NS = 1 << 61
"""Later arrivals leave no room for the run itself below NEVER_NS."""

RATE_TOLERANCE = 0.1
"""How far the drawn rate may be from the asked one before a note says so."""

UNTIMED = ("all-at-once", "closed", "users")
"""Processes without a rate: all requests are handed over at once, and the engine lets `concurrency` of them in
(closed), or each user's next one waits for the one before (users)."""


def session_starts_ns(values: Mapping[str, Any], num_sessions: int, requests: int, seeds: Seeds, phase: int) -> I64:
    """(num_sessions,) arrivals of the first requests. Rates count requests: sessions of t turns start at rate / t."""
    process, rate, burstiness = (values[f"arrivals.{name}"] for name in ("process", "rate", "burstiness"))
    if process != "on-off" and values["arrivals.off_rate"]:
        raise UsageError(f"arrivals.off_rate needs arrivals.process = on-off; it is {process}")
    u = uniforms(seeds.arrivals, Purpose.GAP, num_sessions, phase)
    if process != "on-off" and not values["arrivals.stages"]:
        times = arrival_times_ns(process, num_sessions, rate * num_sessions / requests, burstiness, u)
        return rescaled_ns(times, requests / rate) if values["arrivals.exact_rate"] else times
    if values["arrivals.exact_rate"]:
        raise UsageError("arrivals.exact_rate rescales to one rate; with stages and on-off set it to false")
    amounts = np.cumsum(_gaps(process, burstiness, u)) * (requests / num_sessions)
    if process == "on-off":
        return _on_off(values, amounts, seeds, phase)
    if process in UNTIMED or not math.isinf(rate):
        other = f"arrivals.process = {process}" if process in UNTIMED else "arrivals.rate"
        raise UsageError(f"arrivals.stages say the rates; {other} has no effect beside them: remove one of the two")
    return stages(values["arrivals.stages"]).times_ns(amounts)


def _on_off(values: Mapping[str, Any], amounts: F64, seeds: Seeds, phase: int) -> I64:
    rate = values["arrivals.rate"]
    if values["arrivals.stages"]:
        raise UsageError("arrivals.stages and arrivals.process = on-off exclude each other; remove one of the two")
    if math.isinf(rate):
        raise UsageError("arrivals.process = on-off needs a mean arrivals.rate; set it")
    on_s, off_s = values["arrivals.on_s"], values["arrivals.off_s"]
    profile = on_off(rate, values["arrivals.off_rate"], on_s, off_s, float(amounts[-1]), seeds, phase)
    return profile.times_ns(amounts)


def arrival_times_ns(process: str, size: int, rate: float, burstiness: float, u: F64) -> I64:
    """(size,) ascending times from 0; the first request arrives after the first gap.

    rate        mean arrivals per second, inf for all at once
    burstiness  shape of the gamma gaps; their mean stays 1 / rate
    u           (size,) uniforms; `constant` and the untimed processes leave them unused
    source      vLLM's benchmark: gaps ~ Gamma(burstiness, 1 / (rate * burstiness))
    """
    if process in UNTIMED or math.isinf(rate):
        _check_burstiness(process, burstiness)
        return np.zeros(size, np.int64)
    if size / rate * NS_PER_S > MAX_ARRIVAL_NS:
        raise UsageError(f"arrivals.rate {rate:g} spreads {size} requests over more than 70 years; raise it")
    mean_us = NS_PER_S / NS_PER_US / rate
    if process == "constant":
        return np.rint(np.arange(1, size + 1) * mean_us).astype(np.int64) * NS_PER_US
    gaps_us = np.rint(_gaps(process, burstiness, u) * mean_us).astype(np.int64)
    return np.cumsum(gaps_us) * NS_PER_US


def rescaled_ns(times: I64, seconds: float) -> I64:
    """Arrivals stretched, whole microseconds, so that the last one comes after so many seconds; all at once stay.

    source   vLLM's benchmark: cumulated gaps times (requests / rate) / their sum, unless the rate ramps
    """
    if times.size == 0 or times[-1] == 0:
        return times
    return np.rint(times * (seconds * NS_PER_S / float(times[-1])) / NS_PER_US).astype(np.int64) * NS_PER_US


def rate_note(values: Mapping[str, Any], last_ns: int, requests: int) -> tuple[str, ...]:
    """Whether drawn gaps were rescaled, where that differs. last_ns: of the last arrival, from the phase's start"""
    rate = values["arrivals.rate"]
    plain = values["arrivals.process"] in ("gamma", "poisson") and not values["arrivals.stages"]
    if not plain or math.isinf(rate) or last_ns == 0:
        return ()
    if values["arrivals.exact_rate"]:
        return (f"gaps of arrivals are rescaled: {requests} requests in {requests / rate:.6g} s (arrivals.exact_rate)",)
    drawn = requests / (last_ns / NS_PER_S)
    if abs(drawn / rate - 1) <= RATE_TOLERANCE:
        return ()
    return (
        f"gaps of arrivals are as drawn: {drawn:.4g} requests/s where {rate:g} were asked; arrivals.exact_rate=true "
        "rescales them, as vllm bench serve does",
    )


def _check_burstiness(process: str, burstiness: float) -> None:
    if process in ("poisson", "on-off") and burstiness != 1.0:
        raise UsageError(
            f"arrivals.burstiness is {burstiness:g} but arrivals.process is {process}; set the process to gamma"
        )


def _gaps(process: str, burstiness: float, u: F64) -> F64:
    """(n,) gaps with mean 1. Gamma quantiles; the exponential has a closed form and spares the import of scipy."""
    _check_burstiness(process, burstiness)
    if process == "constant":
        return np.ones(u.size)
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
