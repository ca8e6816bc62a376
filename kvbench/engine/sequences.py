"""The sequences of a workload at t = 0, as all engines of a run share them."""

from __future__ import annotations

import numpy as np

from ..core.requests import I64, NONE, Requests
from ..prefix.keys import block_keys
from ..scheduler.spent import NUM_SPENT
from ..scheduler.state import Sequences
from ..scheduler.waiting_order import HRRN, LPM, SHORTEST_PREFILL, order_of
from .arrival import Arrivals
from .settings import EngineSettings


def make_sequences(requests: Requests, settings: EngineSettings, taken: Arrivals) -> Sequences:
    """Those of the requests at t = 0."""
    r = requests
    request = np.repeat(np.arange(len(r)), r.samples)
    num = request.size
    prompt = r.prompt_tokens[request]
    lead = np.arange(len(r)) if r.joins is None else np.where(r.joins == NONE, np.arange(len(r)), r.joins)
    child = np.full(len(r), -1, np.int64)
    sibling = np.full(len(r), -1, np.int64)
    for i in np.flatnonzero(r.after != NONE)[::-1]:  # so that a list of children is in order
        sibling[i] = child[r.after[i]]
        child[r.after[i]] = i
    given = {
        "request": request,
        "namespace": r.namespace[request],
        "root": r.namespace[request],
        "priority": r.priority[request],
        "prompt": prompt,
        "output": taken.output[request],
        "max_tokens": taken.max_tokens[request],
        "present": np.zeros(num) if r.present_tokens is None else r.present_tokens[request],
        "head": _heads(requests, settings),
        "spent": np.zeros((num, NUM_SPENT)),
        "cancel_after": r.cancel_ns[request],
        "arrival": r.arrival_ns[request],
        "lead": lead,
        "first": np.concatenate(([0], np.cumsum(r.samples))),
        "pending": np.bincount(lead, r.samples, len(r)),
        "child": child,
        "sibling": sibling,
    }
    unset = (
        "engine",
        "slot",
        "queued",
        "scheduled",
        "first_token",
        "last_token",
        "finish",
        "queue_next",
        "queue_prev",
        "ended_next",
    )
    arrays = []
    for name in Sequences.fields:
        if name in given:
            arrays.append(np.ascontiguousarray(given[name], np.int64))
        else:
            arrays.append(np.full(num, -1 if name in unset else 0, np.int64))
    return Sequences(*arrays)


def _heads(requests: Requests, settings: EngineSettings) -> I64:
    """(num_sequences,) equal numbers where the first tokens are equal, as many as policy lpm compares; else 0.

    They are the first blocks at that block size. Who has fewer tokens is never compared.
    """
    request = np.repeat(np.arange(len(requests)), requests.samples)
    s = settings.scheduler
    if (
        order_of(s.policy, settings.cache.kind) not in (LPM, HRRN, SHORTEST_PREFILL)
        or s.in_batch_deprioritize_threshold == 0
    ):
        return np.zeros(request.size, np.int64)
    keys = block_keys(requests, s.in_batch_deprioritize_threshold)
    has_one = np.diff(keys.offset) > 0
    first = np.zeros(request.size, np.int64)
    first[has_one] = keys.key[keys.offset[:-1][has_one]]
    _, number = np.unique(first, return_inverse=True)
    namespace = requests.namespace[request]
    _, number = np.unique(number * (namespace.max() + 1) + namespace, return_inverse=True)
    return number.astype(np.int64)
