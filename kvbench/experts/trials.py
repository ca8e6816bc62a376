"""Replicas onto devices by load and a margin for its spread, and how even that is: what flashlb tries many times."""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline


@entry
def fill_devices(order, replicas, mean, variance, covariance, margin, boxes):
    """Every replica onto the device with the lowest load and margin that has a slot and not this expert.

    order       (experts,) in which they are placed; replicas: (experts,)
    mean        (experts,) load; variance: (experts,), covariance: (experts, experts) of it
    margin      standard deviations
    boxes       (devices, slots) experts, -1 before; overwritten
    returns     whether all have found a place. Loads of devices are summed in float32, as vllm-ascend does
    """
    devices, slots = boxes.shape
    load, spread = np.zeros(devices, np.float32), np.zeros(devices, np.float32)
    filled = np.zeros(devices, np.int64)
    for i in range(order.size):
        expert = order[i]
        n = replicas[expert]
        for _ in range(n):
            best, least, its_load, its_spread = np.int64(-1), np.inf, 0.0, 0.0
            for device in range(devices):
                if filled[device] >= slots or _holds(boxes, device, expert):
                    continue
                mine = load[device] + mean[expert] / n
                wide = spread[device] + variance[expert] / n**2
                for k in range(filled[device]):
                    other = boxes[device, k]
                    wide += 2.0 * covariance[expert, other] / n / replicas[other]
                risk = mine + margin * np.sqrt(max(wide, 0.0))
                if risk < least:
                    best, least, its_load, its_spread = device, risk, mine, wide
            if best < 0:
                return False
            load[best], spread[best] = its_load, its_spread
            boxes[best, filled[best]] = expert
            filled[best] += 1
    return True


@inline
def _holds(boxes, device, expert):
    found = False
    for k in range(boxes.shape[1]):
        found = found or boxes[device, k] == expert
    return found


@entry
def fullest(loads, replicas, boxes):
    """Fullest device over the mean one, in the mean of rows.

    loads  (rows, experts)
    """
    devices, slots = boxes.shape
    total = 0.0
    for row in range(loads.shape[0]):
        most, together = 0.0, 0.0
        for device in range(devices):
            own = 0.0
            for k in range(slots):
                expert = boxes[device, k]
                own += loads[row, expert] / replicas[expert]
            together += own
            most = max(most, own)
        total += (most * devices + 1e-2) / (together + 1e-2)
    return total / loads.shape[0]
