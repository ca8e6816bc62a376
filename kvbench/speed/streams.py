"""Two kernels on two threads: do they take what the rule of streams says, on this machine?

    read, read   both want the memory's bandwidth
    read, FMA    one wants bandwidth, the other the units that multiply and add
    FMA, FMA     both want these units, and each thread has its own

The rule (costs.streams): the largest of what both want of a resource, summed, and of what either takes alone.
What a resource gives is measured with as many threads: bandwidth is shared by the cores, units are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.jit import PLAIN
from ..costs.streams import NEITHER, Demand, at_once
from ..kernels import limits
from ..kernels.threads import share_out
from ..report.experiment_table import Experiment
from ..report.kernels_table import short
from .copies import MULTIPLY_ROUNDS
from .memory import Memory
from .probes import Probe, Timing

_PLAIN_ROUNDS = 200
_THREADS = 2
_TIMES = 1 if PLAIN else 8
"""Each kernel is run so often in a row: a thread that wakes on a busy core needs some ms to find another."""


@dataclass(frozen=True)
class _Kernel:
    name: str
    run: Callable[[], object]
    is_memory: bool


def streams(
    memory: Memory, threads: Sequence[int], measure: Callable[[Sequence[Probe]], dict[Probe, Timing]]
) -> Experiment:
    """Pairs in turn and at once, beside the rule. It takes two threads, whatever --threads says."""
    words = memory.words
    half = words.size // 2
    first = _Kernel("read", _often(lambda: limits.read(words[:half], 1)), True)
    second = _Kernel("read", _often(lambda: limits.read(words[half:], 1)), True)
    multiply = _Kernel("FMA", _often(_multiplying()), False)
    pairs = [(first, second), (first, multiply), (multiply, multiply)]
    alone = {id(k): Probe(f"{k.name} alone", k.run, 1.0) for k in (first, second, multiply)}
    both = [Probe(f"{a.name} and {b.name}", _at_once(a, b), 1.0) for a, b in pairs]
    wide = Probe("read, two threads", _often(lambda: limits.read(words, _THREADS)), _TIMES * words.nbytes)
    timings = measure([*alone.values(), *both, wide])
    share = timings[wide].seconds / 2
    rows, rules, found = [], [], []
    for (a, b), probe in zip(pairs, both, strict=True):
        one, other = timings[alone[id(a)]].seconds, timings[alone[id(b)]].seconds
        rule, decides = _rule(a, one, b, other, share)
        took = timings[probe].seconds
        rules.append(100 * rule / (one + other))
        found.append(100 * took / (one + other))
        cells = [short(s * 1e3) for s in (one, other, one + other, took, rule)]
        what = "the longer alone" if decides == NEITHER else decides
        rows.append([f"{a.name}, {b.name}", *cells, f"{100 * (took / rule - 1):+.0f} %", what])
    return Experiment(
        name="streams: two kernels at once",
        held="Two threads, a kernel each, against one after the other. read: half of the memory; FMA: registers alone. "
        "Rule: the largest of summed demand and of either alone; bandwidth as two threads of one read reach it.",
        header=["kernels", "ms, one", "other", "in turn", "at once", "rule", "off it", "decides"],
        rows=rows,
        x_label="kernels",
        x=[row[0] for row in rows],
        y_label="% of in turn",
        lines=[("at once", found), ("rule", rules)],
    )


def _often(run: Callable[[], object]) -> Callable[[], object]:
    return lambda: [run() for _ in range(_TIMES)]


def _multiplying() -> Callable[[], object]:
    if PLAIN:  # which has no way to the units: NumPy on what fits into a cache
        values = np.ones(1 << 12)
        return lambda: [np.multiply(values, 1.000001, out=values) for _ in range(_PLAIN_ROUNDS)]
    return lambda: limits.multiply_add(MULTIPLY_ROUNDS, 1)


def _at_once(a: _Kernel, b: _Kernel) -> Callable[[], object]:
    kernels = (a, b)
    return lambda: share_out(lambda i, start, stop: kernels[i].run(), [0, 1, 2])


def _rule(a: _Kernel, one: float, b: _Kernel, other: float, share: float) -> tuple[float, str]:
    """Seconds. share: of one read, of the bandwidth that two threads reach."""
    demands = [
        Demand(memory=share) if kernel.is_memory else Demand(compute=seconds / _THREADS)
        for kernel, seconds in ((a, one), (b, other))
    ]
    took, decides = at_once(demands[0], demands[1], 0.0)
    return (took, decides) if took >= max(one, other) else (max(one, other), NEITHER)
