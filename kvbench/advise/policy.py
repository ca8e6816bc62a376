"""A user's eviction policy beside all built-in ones, on workloads on which policies differ."""

from __future__ import annotations

from collections.abc import Sequence

from ..bench.configure import Configured, configure
from ..bench.run import Progress
from ..bench.system import build_system
from ..core.errors import KvbenchError, UsageError
from ..prefix.eviction.own_file import find_policy
from ..report.policy import Comparison, Row
from ..scheduler.rules import EVICTION
from ..sweep.parallel import run_tasks
from .trial import Trial, Tried, try_one

KEY = "cache.eviction"

WORKLOADS: dict[str, tuple[str, ...]] = {
    "scan-thrash": (),
    "rag": (),
    "prefix-zipf": (),
    "chat": ("cache.blocks=1000",),
    "mooncake-like": ("cache.blocks=20000",),
}
"""Scenario -> keys under which its cache is too small."""


def compare_policies(own: str, more: Sequence[str], jobs: int, progress: Progress) -> Comparison:
    """Run the policy and every built-in one on each workload.

    own    FILE.py:NAME; more: "key=value" on top of each workload
    raises UsageError: the file, the function or a key is wrong; KvbenchError: a run failed
    """
    if ":" not in own:
        raise UsageError(f"{own}: write it as my_file.py:my_policy; `kvbench list` names the built-in ones")
    find_policy(own)  # before anything runs
    configured: dict[str, list[Configured]] = {}
    left_out: dict[str, str] = {}
    for policy in (own, *EVICTION):
        try:
            configured[policy] = [_under(name, (*keys, *more), policy) for name, keys in WORKLOADS.items()]
        except UsageError as error:
            if policy == own:
                raise
            left_out[policy] = str(error).removeprefix("--set: ")
    trials = [Trial(i, one, ()) for i, one in enumerate(one for own in configured.values() for one in own)]
    found: dict[int, Tried] = {}
    for one in run_tasks(try_one, trials, jobs):
        if one.error:
            raise KvbenchError(f"{trials[one.index].configured.name}: {one.error}")
        found[one.index] = one
        progress(len(found), len(trials))
    figures = [_figures(found[i]) for i in range(len(trials))]
    per = len(WORKLOADS)
    rows = tuple(Row(policy, tuple(figures[i * per : (i + 1) * per])) for i, policy in enumerate(configured))
    settings = {name: " ".join((*keys, *more)) for name, keys in WORKLOADS.items()}
    return Comparison(KEY, own, tuple(WORKLOADS), settings, rows, left_out)


def _under(name: str, keys: Sequence[str], policy: str) -> Configured:
    """UsageError: a key is wrong, or the policy does not go with the rest."""
    configured = configure(name, changes=[("--set", text) for text in (*keys, f"{KEY}={policy}")])
    build_system(configured.config)
    return configured


def _figures(one: Tried) -> dict[str, float]:
    assert one.record is not None
    summary = one.record.summary
    names = ("hit_rate", "hit_rate_optimum", "hit_rate_infinite")
    return {**{name: float(summary[name] or 0.0) for name in names}, "ttft": summary.latencies["ttft"].p99 or 0.0}
