"""The order in which requests come when there is no clock."""

from __future__ import annotations

import numpy as np

from ..core.requests import I64, NONE, Requests


def virtual_arrivals(requests: Requests) -> I64:
    """(n,) ns at which a request comes if answers took no time: a later turn its think time after the turn before."""
    r = requests
    if not (r.after != NONE).any():
        return r.arrival_ns
    times = r.arrival_ns.tolist()
    for i, (before, think) in enumerate(zip(r.after.tolist(), r.think_ns.tolist(), strict=True)):
        if before != NONE:
            times[i] = times[before] + think
    return np.array(times, np.int64)


def arrival_order(requests: Requests) -> I64:
    """(n,) requests as they come; at one time by number, so a turn never comes before the one that it goes on from."""
    return np.argsort(virtual_arrivals(requests), kind="stable")
