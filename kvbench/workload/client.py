"""The client of a benchmark: how many prompts, what warms the server up, how lengths spread.

In a closed loop the client decides TTFT as much as the server does: all slots arrive at once, so the fewer prompts a
slot gets, the larger the part of the mean that this first burst is. `protocols` has the keys and the tools that set
them; each key can be set by itself.

A warm-up is sent first, the client waits until all of it has been answered, and it is left out of the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import I64, NONE, Requests

Values = Mapping[str, Any]

WARM_UP = "warm-up"
"""The phase of requests that only warm up."""


def measured_part(values: Values) -> dict[str, Any]:
    """The values of the requests that count: their number and the spread of their lengths. UsageError: no slots."""
    told = dict(values)
    per_slot, least = values["client.prompts_per_slot"], values["client.min_prompts"]
    if not told["num_prompts"] and (per_slot or least):
        told["num_prompts"] = max(per_slot * _slots(values, "client.prompts_per_slot", per_slot), least)
    low, high = values["client.range_low"], values["client.range_high"]
    if (low, high) != (1.0, 1.0):
        for name in ("lengths.prompt", "lengths.output"):
            told[name] = _spread(values[name], low, high, name)
    return told


def warm_up_part(values: Values) -> dict[str, Any] | None:
    """The values of the requests that warm up, None without any. They come at once, within arrivals.concurrency."""
    per_slot = values["client.warm_up_per_slot"]
    count = values["client.warm_up"] + per_slot * _slots(values, "client.warm_up_per_slot", per_slot)
    if count == 0:
        return None
    if values["arrivals.process"] == "users":
        raise UsageError("client.warm_up is of a client with slots; with arrivals.process = users leave it out")
    closed = values["arrivals.process"] == "closed"
    return {
        **values,
        "num_prompts": count,
        "exclude": True,
        "arrivals.process": "closed" if closed else "all-at-once",
        "arrivals.rate": float("inf"),
        "arrivals.stages": [],
        "arrivals.off_rate": 0.0,
        "arrivals.burstiness": 1.0,
        "arrivals.cancel_share": 0.0,
        "sessions.turns": 1,
        "agents.calls": 0,
    }


def warmed_up_first(requests: Requests, same_prompt: bool) -> Requests:
    """Phase 0 warms up: whoever came by himself in phase 1 comes when all of phase 0 has been answered.

    same_prompt  phase 0 asks what the first request of phase 1 asks
    """
    count = int(np.count_nonzero(requests.phase == 0))
    waits = (requests.phase == 1) & (requests.after == NONE)
    joins = np.full(len(requests), NONE, np.int64) if requests.joins is None else requests.joins.copy()
    joins[1:count] = 0
    changed = replace(
        requests,
        after=np.where(waits, 0, requests.after),
        think_ns=np.where(waits, requests.arrival_ns, requests.think_ns),
        arrival_ns=np.where(waits, 0, requests.arrival_ns),
        joins=joins if count > 1 or requests.joins is not None else None,
    )
    return _asking_the_same(changed, count) if same_prompt else changed


def _asking_the_same(requests: Requests, count: int) -> Requests:
    """The first `count` requests ask what request `count` asks."""
    offset = requests.segment_offset
    begin, end = int(offset[count]), int(offset[count + 1])
    size = end - begin
    stream, start, length = (
        np.concatenate((np.tile(column[begin:end], count), column[begin:]))
        for column in (requests.segment_stream, requests.segment_start, requests.segment_length)
    )

    def repeated(column: I64) -> I64:
        return np.concatenate((np.full(count, column[count]), column[count:]))

    return replace(
        requests,
        prompt_tokens=repeated(requests.prompt_tokens),
        output_tokens=repeated(requests.output_tokens),
        max_tokens=repeated(requests.max_tokens),
        namespace=repeated(requests.namespace),
        segment_offset=np.concatenate((np.arange(count) * size, offset[count:] + count * size - begin)),
        segment_stream=stream,
        segment_start=start,
        segment_length=length,
    )


def _slots(values: Values, name: str, asked: int) -> int:
    slots = int(values["arrivals.concurrency"])
    if asked and slots == 0:
        raise UsageError(f"{name} counts by slot; set arrivals.concurrency (--max-concurrency)")
    return slots


def _spread(length: Any, low: float, high: float, name: str) -> dict[str, Any]:
    if isinstance(length, Mapping) and length.get("distribution") == "fixed":
        length = length.get("value")
    if not isinstance(length, int | float) or isinstance(length, bool):
        raise UsageError(
            f"client.range_low and client.range_high spread a fixed length; {name} draws by itself: set {name} to a "
            "number, or both shares to 1"
        )
    return {"distribution": "uniform", "min": max(int(length * low), 1), "max": max(int(length * high), 1)}
