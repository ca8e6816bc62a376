"""Small workloads with a planted cause each, as changes of the defaults: a few dozen requests."""

from __future__ import annotations

from kvbench.bench.configure import Configured, configure

_STALLS = (
    "num_prompts=60",
    "arrivals.rate=8",
    'lengths.prompt={distribution="mixture", parts=[64, 12000], weights=[0.85, 0.15]}',
    "lengths.output=50",
)
_PREFIXES = (
    *("num_prompts=60", "arrivals.rate=10", "lengths.prompt=60", "lengths.output=15"),
    *("sharing.groups=6", "sharing.prefix=4000", "sharing.zipf=0.6"),
)
_LOW = ("num_prompts=40", "arrivals.rate=2", "lengths.prompt=200", "lengths.output=30")

PLANTED: dict[str, tuple[str, ...]] = {
    "prefill-stalls": _STALLS,
    "prefixes-again": (*_PREFIXES, "cache.kind=none"),
    "memory-limits": (
        "num_prompts=60",
        "arrivals.rate=10",
        "lengths.prompt=400",
        "lengths.output=100",
        "cache.blocks=150",
    ),
    "places-limit": (
        "num_prompts=60",
        "arrivals.rate=10",
        "lengths.prompt=200",
        "lengths.output=60",
        "scheduler.max_num_seqs=3",
    ),
    "idle-device": (*_LOW, "preset=vllm-0.12"),
    "kv-bandwidth": (
        *("num_prompts=16", "arrivals.rate=40", "lengths.prompt=50", "lengths.output=40"),
        *("sharing.groups=1", "sharing.prefix=30000", "cache.state=prefilled"),
    ),
    "too-much-load": ("num_prompts=80", "arrivals.rate=60", "lengths.prompt=4000", "lengths.output=4"),
}
"""Symptom -> changes that make it, and no other first."""

HEALTHY = _LOW

BOTH: dict[tuple[str, str], tuple[str, ...]] = {
    ("memory-limits", "idle-device"): (*PLANTED["memory-limits"], "preset=vllm-0.12"),
    ("places-limit", "prefill-stalls"): (*_STALLS, "scheduler.max_num_seqs=4"),
    ("prefixes-again", "idle-device"): (
        *_PREFIXES,
        "cache.kind=none",
        "preset=vllm-0.12",
        "lengths.output=60",
        "arrivals.rate=2",
    ),
}
"""Two causes at once -> both symptoms."""


def planted(changes: tuple[str, ...], *more: tuple[str, str]) -> Configured:
    """The configuration that holds them."""
    return configure(None, changes=[*(("--set", text) for text in changes), *more])
