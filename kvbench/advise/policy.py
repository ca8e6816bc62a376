"""A user's eviction or routing policy beside all built-in ones, on workloads on which policies differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench.configure import Configured, configure
from ..bench.run import Progress
from ..bench.system import build_system
from ..core.errors import KvbenchError, UsageError
from ..core.own_file import load_file
from ..prefix.eviction.own_file import find_policy
from ..report.policy import Comparison, Row
from ..routing.own_file import find_choice
from ..routing.settings import POLICIES
from ..scheduler.rules import EVICTION
from ..sweep.parallel import run_tasks
from .trial import Trial, Tried, try_one

_FOUR_ENGINES = ("num_prompts=300", "fleet.replicas=4", "cache.blocks=2500")


@dataclass(frozen=True)
class Kind:
    """What a policy decides.

    key        names it; builtin: the policies that kvbench has
    check      raises UsageError on a file that is none; runs before anything else does
    workloads  scenario -> keys under which policies differ
    """

    key: str
    builtin: tuple[str, ...]
    check: Callable[[str], Any]
    workloads: Mapping[str, tuple[str, ...]]


EVICTING = Kind(
    "cache.eviction",
    tuple(EVICTION),
    find_policy,
    {
        "scan-thrash": (),
        "rag": (),
        "prefix-zipf": (),
        "chat": ("cache.blocks=1000",),
        "mooncake-like": ("cache.blocks=20000",),
    },
)
ROUTING = Kind(
    "router.policy",
    tuple(POLICIES),
    find_choice,
    {
        "chat": (*_FOUR_ENGINES, "arrivals.rate=40"),
        "agent": (*_FOUR_ENGINES, "arrivals.rate=8"),
        "prefix-zipf": (*_FOUR_ENGINES, "arrivals.rate=60"),
        "long-vs-short": (*_FOUR_ENGINES, "arrivals.rate=40"),
        "rag": (*_FOUR_ENGINES, "arrivals.rate=20"),
    },
)


def kind_of(own: str) -> Kind:
    """Routing, where the function's parameters are those of a router. UsageError: no such file or function."""
    file, _, name = own.rpartition(":")
    function = getattr(load_file("policy", Path(file)), name, None)
    function = getattr(function, "py_func", function)
    parameters = list(inspect.signature(function).parameters) if callable(function) else []
    return ROUTING if parameters[:3] == ["load", "cached", "accepts"] else EVICTING


def compare_policies(own: str, more: Sequence[str], jobs: int, progress: Progress) -> Comparison:
    """Run the policy and every built-in one on each workload.

    own    FILE.py:NAME; more: "key=value" on top of each workload
    raises UsageError: the file, the function or a key is wrong; KvbenchError: a run failed
    """
    if ":" not in own:
        raise UsageError(f"{own}: write it as my_file.py:my_policy; `kvbench list` names the built-in ones")
    kind = kind_of(own)
    kind.check(own)
    configured: dict[str, list[Configured]] = {}
    left_out: dict[str, str] = {}
    for policy in (own, *kind.builtin):
        try:
            configured[policy] = [
                _under(name, (*keys, *more, f"{kind.key}={policy}")) for name, keys in kind.workloads.items()
            ]
        except UsageError as error:
            if policy == own:
                raise
            left_out[policy] = str(error).removeprefix("--set: ")
    names = [policy for policy in configured for _ in kind.workloads]
    trials = [Trial(i, one, ()) for i, one in enumerate(one for own in configured.values() for one in own)]
    found: dict[str, list[tuple[int, dict[str, float]]]] = {}
    for done, one in enumerate(run_tasks(try_one, trials, jobs), 1):
        policy, name = names[one.index], trials[one.index].configured.name
        if one.error and policy == own:
            raise KvbenchError(f"{name}: {one.error}")
        if one.error:
            left_out[policy] = f"{name}: {one.error}"
        else:
            found.setdefault(policy, []).append((one.index, _figures(one)))
        progress(done, len(trials))
    rows = tuple(Row(name, tuple(f for _, f in sorted(found[name]))) for name in configured if name not in left_out)
    settings = {name: " ".join((*keys, *more)) for name, keys in kind.workloads.items()}
    return Comparison(kind.key, own, tuple(kind.workloads), settings, rows, left_out)


def _under(name: str, keys: Sequence[str]) -> Configured:
    """UsageError: a key is wrong, or the policy does not go with the rest."""
    configured = configure(name, changes=[("--set", text) for text in keys])
    build_system(configured.config)
    return configured


def _figures(one: Tried) -> dict[str, float]:
    assert one.record is not None
    summary = one.record.summary
    names = ("hit_rate", "hit_rate_optimum", "hit_rate_infinite")
    return {**{name: float(summary[name] or 0.0) for name in names}, "ttft": summary.latencies["ttft"].p99 or 0.0}
