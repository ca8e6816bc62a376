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


FLEETS: dict[str, tuple[str, ...]] = {
    "routing-imbalance": (
        *("num_prompts=60", "arrivals.rate=60", "lengths.prompt=1800", "lengths.output=4"),
        *("fleet.replicas=3", "router.policy=cache-aware", "sharing.groups=1", "sharing.prefix=1500"),
    ),
    "prefixes-again": (
        *("num_prompts=90", "arrivals.rate=12", "lengths.prompt=60", "lengths.output=15", "sharing.groups=12"),
        *("sharing.prefix=3000", "fleet.replicas=3", "router.policy=round-robin", "cache.blocks=1200"),
    ),
    "transfers-exposed": (
        *("num_prompts=40", "arrivals.rate=8", "lengths.prompt=60", "lengths.output=8", "sharing.groups=10"),
        *("sharing.prefix=3000", "cache.blocks=900", "tiers.host.ratio=4", "links.host.up=0.5"),
    ),
    "separated at low load": (
        *("num_prompts=20", "arrivals.rate=2", "lengths.prompt=4000", "lengths.output=10"),
        *("pd.prefill=1", "pd.decode=1", "links.kv.gb_per_s=1"),
    ),
    "ranks-wait": (
        *("num_prompts=10", "arrivals.rate=200", "lengths.prompt=400", "lengths.output=3", "model=qwen3-30b-a3b"),
        *("dp=4", "ep=4", "max_model_len=4000", "experts.exponent=2"),
    ),
    "exchange-exposed": (
        *("num_prompts=24", "arrivals.rate=200", "lengths.prompt=3000", "lengths.output=4", "model=qwen3-30b-a3b"),
        *("dp=4", "ep=4", "max_model_len=8000", "experts.exponent=0", "experts.node_devices=1"),
    ),
}
"""The same of several engines, of tiers and of ranks; memory may be a symptom beside them."""
