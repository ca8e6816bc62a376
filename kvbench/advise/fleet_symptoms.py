"""What several engines, ranks or tiers suffer from beside what one engine does; the rules are as in symptoms.py."""

from __future__ import annotations

from .evidence import Evidence
from .rule import DECODE, TTFT, Symptom, percent


def routing_imbalance(e: Evidence) -> Symptom:
    """Some engines have a queue while others have none: by the spread of what they computed."""
    waiting, spread = e.memory + e.places + e.device, e["load_cv"]
    signal = min(spread, 1.0) * waiting if e["engines"] > 1 else 0.0
    return Symptom(
        "routing-imbalance",
        "engines get unequal load",
        signal,
        0.10,
        signal * e.first,
        TTFT,
        (
            f"{percent(waiting)} of TTFT is waiting; the load of {e['engines']:.0f} engines has a CV of {spread:.2f}",
            f"queue p99 of the worst engine {e['engine_queue_p99_max']:,.1f} ms; the hottest prefix lies on "
            f"{e['hot_prefix_replicas']:.0f} of them",
        ),
    )


def ranks_wait(e: Evidence) -> Symptom:
    """Ranks that step together wait for the slowest one, or for the device with the most tokens."""
    return Symptom(
        "ranks-wait",
        "ranks wait for the busiest one",
        e.ranks_wait,
        0.08,
        e.ranks_wait,
        (*DECODE, *TTFT),
        (f"{percent(e.ranks_wait)} of the ranks' time is waiting for the slowest rank or the fullest device",),
    )


def exchange_exposed(e: Evidence) -> Symptom:
    """Ranks wait for tokens on their way to experts and back."""
    return Symptom(
        "exchange-exposed",
        "ranks wait for the exchange of tokens",
        e.exchange,
        0.40,
        e.exchange,
        (*DECODE, *TTFT),
        (f"{percent(e.exchange)} of the ranks' steps is dispatch and combine, with nothing computed beside it",),
    )


def transfers_exposed(e: Evidence) -> Symptom:
    """Requests wait for KV that is on its way."""
    return Symptom(
        "transfers-exposed",
        "requests wait for KV to arrive",
        e.fetch,
        0.10,
        e.fetch * e.first,
        TTFT,
        (
            f"{percent(e.fetch)} of TTFT passes while nothing is computed and KV is on its way",
            f"{percent(e['hit_rate_host'])} of prompt tokens come from host memory",
        ),
    )
