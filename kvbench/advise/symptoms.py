"""What a run suffers from: one rule each, with its signal, its threshold and what shows it.

The signal of a rule is a share of the latency that it lengthens (of TTFT, or of the time after the first token), over
the whole run; a run in which no signal reaches its threshold is healthy. The weight of a symptom is the share of the
time from arrival to end that it takes, so that symptoms of all latencies can be put in order. What is computed
needlessly also stalls others: that belongs to the prefixes. Thresholds are choices, made so that the built-in scenarios
are told apart as their heads describe them.
"""

from __future__ import annotations

from collections.abc import Sequence

from .evidence import Evidence
from .fleet_symptoms import exchange_exposed, ranks_wait, routing_imbalance, transfers_exposed
from .rule import DECODE, TTFT, Rule, Symptom, percent

WEAK = 0.25
"""Share of its threshold at which a signal counts where a promise is broken and no signal reaches its own."""


def prefill_stalls(e: Evidence) -> Symptom:
    """Prompts of others hold up those who decode: the time after the first token that no decode of its own took."""
    tail = e["itl.p99"] / e.decode_ms if e.decode_ms else 0.0
    signal = e.stall * (1 - e.needless)
    return Symptom(
        "prefill-stalls",
        "long prompts stall those who decode",
        signal,
        0.05 if tail >= 3 else 0.20,  # a few long stalls make the tail; many short ones the mean
        signal * (1 - e.first),
        DECODE,
        (
            f"{percent(e.stall)} of the time after the first token goes to steps with prompts of others",
            f"ITL p99 {e['itl.p99']:.1f} ms, a step of decodes alone {e.decode_ms:.1f} ms ({tail:.1f} times)",
        ),
    )


def prefixes_again(e: Evidence) -> Symptom:
    """Prompts are computed that an endless cache would have found; routing, memory and policy apart."""
    found, optimum, endless = e.cached
    apart = min(max(e.routed, found), endless)
    possible = min(max(optimum, found), apart)
    prefill = e.prefill + e.device
    signal = e.needless * prefill if endless - found >= 0.05 else 0.0
    return Symptom(
        "prefixes-again",
        "the same prefixes are computed again",
        signal,
        0.12,
        e.needless * (prefill * e.first + e.stall * (1 - e.first)),
        TTFT if e.stall * e.needless < 0.05 else (*TTFT, *DECODE),
        (
            f"{percent(found)} of prompt tokens found, {percent(endless)} in an endless cache: "
            f"{percent(e.needless)} of those computed were needless",
            f"prefill and waiting for it are {percent(prefill)} of TTFT",
            (f"of the gap {percent(endless - apart)} points are routing, " if e["engines"] > 1 else "of the gap ")
            + f"{percent(apart - possible)}{'' if e['engines'] > 1 else ' points are'} memory, "
            f"{percent(possible - found)} policy: {percent(possible)} here with the future known",
        ),
    )


def memory_limits(e: Evidence) -> Symptom:
    """Requests wait although there are places and tokens left in the step, or lose their memory again."""
    again = e["recomputed_tokens"] / max(e["recomputed_tokens"] + e["prompt_tokens"] - e["cached_tokens"], 1)
    return Symptom(
        "memory-limits",
        "KV memory limits how many run at once",
        max(e.memory, e.preempted),
        0.10,
        e.memory * e.first + e.preempted,
        TTFT if e.memory >= e.preempted else (*TTFT, *DECODE),
        (
            f"{percent(e.memory)} of TTFT is waiting for blocks while places are free",
            f"{e['preemptions']:,.0f} preemptions: {percent(e.preempted)} of the time from arrival to end, "
            f"{percent(again)} of the tokens computed are computed again",
            f"blocks used {_used(e)}, tail waste {percent(e['tail_waste_share'])} of their slots",
        ),
    )


def places_limit(e: Evidence) -> Symptom:
    """Requests wait because as many run as may."""
    return Symptom(
        "places-limit",
        "the number of sequences at once is the limit",
        e.places,
        0.10,
        e.places * e.first,
        TTFT,
        (f"{percent(e.places)} of TTFT is waiting for a place", f"blocks used {_used(e)}"),
    )


def idle_device(e: Evidence) -> Symptom:
    """The device waits for the host, or its steps are shorter than its launches."""
    signal = e.exposed + (1 - e.exposed) * e.launch
    return Symptom(
        "idle-device",
        "the device waits for the host",
        signal,
        0.15,
        signal * (1 - e.first),
        DECODE,
        (
            f"{percent(e.exposed)} of the time of steps the device waits for the host",
            f"launches are {percent(e.launch)} of the device's time in steps of decodes",
        ),
    )


def kv_bandwidth(e: Evidence) -> Symptom:
    """Reading KV is most of a decode step."""
    signal = (1 - e.stall) * e.attention
    return Symptom(
        "kv-bandwidth",
        "decode is bound by reading KV",
        signal,
        0.40,
        signal * (1 - e.first),
        DECODE,
        (
            f"{percent(e.attention)} of the device's time in steps of decodes is reading KV",
            f"a step of decodes alone takes {e.decode_ms:.1f} ms",
        ),
    )


def too_much_load(e: Evidence) -> Symptom:
    """Waiting that nothing but the device explains."""
    signal = e.device * (1 - e.needless)
    return Symptom(
        "too-much-load",
        "more load than the device computes",
        signal if e.idle <= 0.05 else 0.0,
        0.50,
        signal * e.first,
        TTFT,
        (
            f"{percent(e.device)} of TTFT is waiting for a step that has tokens left",
            f"steps ran {percent(1 - e.idle)} of the time between the first arrival and the last",
        ),
    )


RULES: tuple[Rule, ...] = (
    prefill_stalls,
    prefixes_again,
    memory_limits,
    places_limit,
    idle_device,
    kv_bandwidth,
    too_much_load,
    routing_imbalance,
    ranks_wait,
    exchange_exposed,
    transfers_exposed,
)


def find_symptoms(evidence: Sequence[Evidence], broken: Sequence[str]) -> list[Symptom]:
    """Symptoms that more than half of the runs show, worst first: those of a broken promise before the others.

    evidence  of one configuration under several seeds; what is told is the run of the middle signal
    broken    latencies whose promises are broken; where no signal of one reaches its threshold, weak ones count
    """
    middle = [_middle(rule, evidence) for rule in RULES]
    found = [s for s in middle if s.signal >= s.threshold]
    if broken and not any(set(s.hurts) & set(broken) for s in found):
        found += [s for s in middle if WEAK * s.threshold <= s.signal < s.threshold and set(s.hurts) & set(broken)]
    return sorted(found, key=lambda s: (not set(s.hurts) & set(broken), -s.weight))


def _middle(rule: Rule, evidence: Sequence[Evidence]) -> Symptom:
    """Of an even number of runs the smaller of the two, so that more than half show as much."""
    shown = sorted((rule(one) for one in evidence), key=lambda s: s.signal)
    return shown[(len(shown) - 1) // 2]


def _used(e: Evidence) -> str:
    blocks = max(e["blocks"], 1)
    return f"{percent(e['used_blocks_mean'] / blocks)} in the mean, {percent(e['used_blocks_peak'] / blocks)} at most"
