"""Two sides run in turn under the same seeds: A B on the modelled clock, A B B A where time is measured.

The machine drifts while it measures (heat, other loads); in A B B A a steady drift falls on both sides alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..bench.replicates import Configure, with_seed
from ..bench.run import Progress, Result, run
from .pairing import Group, check_pair
from .runs import Run, runs_of
from .verdict import MODELLED

MAY_DIFFER = ("model", "device", "cache_state")
"""What a side may set: who sets it means to compare it. The workload stays, or it is another question."""

ORDERS = {MODELLED: "AB", "measured": "ABBA"}

Keep = Callable[[str, int, Result], None]
"""Called with a side ("A", "B"), how many runs of it under this seed there were before, and the result."""


def run_ab(
    sides: dict[str, Configure], seeds: Sequence[int], progress: Progress, keep: Keep = lambda *_: None
) -> tuple[Group, tuple[str, ...]]:
    """Run both sides under every seed; the pairs, and warnings. All is configured before the first run.

    sides    "A" and "B" -> from changes to a configuration
    raises   NotComparable: what a side sets changes the workload; KeyboardInterrupt: a run was interrupted
    """
    configured = {name: [with_seed(configure, seed) for seed in seeds] for name, configure in sides.items()}
    order = ORDERS[configured["A"][0].config["clock"]]
    pairs: list[tuple[Run, Run]] = []
    warnings: dict[str, None] = {}
    for i in range(len(seeds)):
        done: dict[str, list[Run]] = {"A": [], "B": []}
        for k, name in enumerate(order):
            result = _complete(run(configured[name][i]))
            warnings |= dict.fromkeys(f"{name}: {warning}" for warning in result.warnings)
            keep(name, len(done[name]), result)
            done[name] += runs_of([result.record])
            progress(i * len(order) + k + 1, len(seeds) * len(order))
        for a, b in zip(done["A"], done["B"], strict=True):
            check_pair(a, b, MAY_DIFFER)
            pairs.append((a, b))
    return Group(pairs[0][0]["run"], tuple(pairs)), tuple(warnings)


def _complete(result: Result) -> Result:
    if not result.record.complete:
        raise KeyboardInterrupt
    return result
