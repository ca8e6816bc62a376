"""When balancers collect loads, decide and commit: the clocks of vLLM, SGLang and vllm-ascend, step by step.

A clock counts forward passes and knows no placement. Whoever owns it brings the loads, decides where it says so, and
commits a layer where it says so.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from .layout import F64, I64


class Window:
    """The loads of the last steps that were recorded, per slot, as they were counted.

    ring      (size, layers, slots)
    """

    def __init__(self, size: int, layers: int, slots: int) -> None:
        self.ring = np.zeros((size, layers, slots), np.int32)
        self.at = 0
        self.filled = 0

    def record(self, of_slots: I64) -> None:
        """The loads of one step: (layers, slots)."""
        self.ring[self.at] = of_slots
        self.at = (self.at + 1) % self.ring.shape[0]
        self.filled = min(self.filled + 1, self.ring.shape[0])

    def clear(self) -> None:
        self.ring[:] = 0
        self.at = self.filled = 0

    def by_expert(self, experts: I64, num_experts: int) -> F64:
        """(filled steps, layers, num_experts) loads under the map of now, whichever they were counted under."""
        layers = experts.shape[0]
        cells = (experts + np.arange(layers)[:, None] * num_experts).ravel()
        found = np.zeros((max(self.filled, 1), layers * num_experts))
        for step, row in zip(found, self.ring, strict=False):
            step[:] = np.bincount(cells, row.ravel(), layers * num_experts)
        return found.reshape(-1, layers, num_experts)


class VllmClock:
    """Only the last `window` steps before a decision are recorded; the first comes after a quarter of an interval.

    A step without requests counts, and is not recorded. The ring is never cleared. Asynchronously, a layer is
    committed in the step after its weights have come; the counter goes on meanwhile and starts anew with the next
    decision.
    """

    def __init__(self, window: int, interval: int) -> None:
        self.window, self.interval = window, interval
        self.counter = interval - interval // 4
        self.moving = False

    @property
    def records(self) -> bool:
        """Whether the step that comes is recorded."""
        return self.interval - self.counter <= self.window

    def tick(self) -> bool:
        """A step is over. Returns whether to decide now."""
        self.counter += 1
        if self.counter < self.interval or self.moving:
            return False
        self.counter = 0
        return True


class SglangClock:
    """All steps are recorded; after `interval` of them the next one decides, and the window is cleared.

    With chunks of layers each chunk waits for one more pass, and the interval begins after the last.
    chunks  of layers that are moved one pass after the other; 1: all at once, in the deciding pass
    """

    records = True

    def __init__(self, interval: int, chunks: int = 1, threshold: float = 1.0) -> None:
        self.interval, self.chunks, self.threshold = interval, chunks, threshold
        self.passes = 0
        self.pending = 0
        self.utilization: deque[float] = deque(maxlen=1000)

    def tick(self, balancedness: float = 0.0) -> bool:
        """A pass is over. Returns whether to decide now; then call `begin` or `skip`."""
        self.utilization.append(balancedness)
        if self.pending:
            return False
        self.passes += 1
        return self.passes > self.interval

    @property
    def is_even(self) -> bool:
        """The ranks were busy enough evenly in the mean: nothing is decided. Never with a threshold of 1."""
        return self.threshold < 1.0 and sum(self.utilization) / max(len(self.utilization), 1) > self.threshold

    def begin(self) -> bool:
        """A decision was made. Returns whether all of it is committed at once."""
        if self.chunks > 1:
            self.pending = self.chunks
            return False
        self.skip()
        return True

    def commit(self) -> int:
        """A pass later: the number of the chunk that is committed."""
        self.pending -= 1
        if self.pending == 0:
            self.skip()
        return self.chunks - 1 - self.pending

    def skip(self) -> None:
        self.passes = 1  # the pass that decided is the first of the next interval


GATHER, WAKE, FETCH = "gather_load", "wake_planner", "get_plan"


class AscendClock:
    """Heat for `collect` passes, the planner for `decide` more, then a layer a pass; then from the beginning.

    A pass that does not match the phase of the loads that are collected does not count among the first.
    """

    def __init__(self, collect: int, decide: int, layers: int) -> None:
        self.collect, self.decide, self.layers = collect, decide, layers
        self.passes = 0

    def tick(self, collecting: bool = True) -> tuple[list[str], int]:
        """A pass is over. Returns what the engine does in it, and the layer that is moved and committed or -1."""
        at = self.passes
        if at < self.collect and not collecting:
            return [], -1
        self.passes += 1
        layer = at - self.collect - self.decide
        if layer == self.layers - 1:
            self.passes = 0
        if at == self.collect - 1:
            return [GATHER, WAKE], -1
        if at == self.collect + self.decide - 1:
            return [FETCH], -1
        return [], layer if layer >= 0 else -1
