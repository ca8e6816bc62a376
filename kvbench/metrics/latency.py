"""Latencies of sequences and the summary of a run: from the journal and the request table, nothing else.

A latency counts from the *intended* arrival. The distributions are over finished sequences; the others are
counted. Names and definitions are those of `vllm bench serve`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.journal import FINISHED, NEVER, STATUS_NAMES, Counters, HitBounds, Journal
from ..core.requests import Requests
from ..core.units import NS_PER_MS, NS_PER_S
from .catalogue import Number, with_units
from .percentiles import EMPTY, Distribution, distribution, percentiles
from .slo import Promise, Slo, kept, percentile_of_all, promised
from .tiers import tier_scalars

I64 = NDArray[np.int64]

LATENCIES = ("ttft", "tpot", "itl", "e2el", "queue")
"""Names in the order of summary.csv; all in ms."""

NO_SLO = Slo()


@dataclass(frozen=True)
class SequenceTimes:
    """Per sequence, (num_sequences,) int64 ns; NEVER where it does not exist.

    queue_ns   arrival to the start of the first step that computed one of its tokens, without tokenising
    ttft_ns    arrival to its first token
    tpot_ns    mean gap of the tokens after the first, rounded to a ns; one token has none
    e2el_ns    arrival to its last token; of a cancelled one, to its end
    """

    queue_ns: I64
    ttft_ns: I64
    tpot_ns: I64
    e2el_ns: I64


@dataclass(frozen=True)
class Summary:
    """One run in numbers.

    latencies   name -> distribution in ms (LATENCIES)
    scalars     name -> (value, unit), in the order of summary.csv; None is a number that does not exist
    statuses    status name -> sequences, those that occurred
    """

    latencies: dict[str, Distribution]
    scalars: dict[str, tuple[float | int | None, str]]
    statuses: dict[str, int]

    def __getitem__(self, name: str) -> float | int | None:
        return self.scalars[name][0]


def sequence_times(journal: Journal) -> SequenceTimes:
    """Latencies of every sequence."""
    arrival, first, finish = journal.arrival_ns, journal.first_token_ns, journal.finish_ns
    gaps = journal.output_tokens - 1
    spread = finish - first
    has_tpot = (journal.status == FINISHED) & (gaps > 0)
    # rint of the quotient, half to even, in integers: the same on every machine
    tpot = np.where(has_tpot, _divide_rounding(spread, np.maximum(gaps, 1)), NEVER)
    tokenize = journal.tokenize_ns if journal.tokenize_ns.size else np.zeros_like(arrival)
    return SequenceTimes(
        queue_ns=_since(journal.scheduled_ns, arrival + tokenize),
        ttft_ns=_since(first, arrival),
        tpot_ns=tpot,
        e2el_ns=_since(finish, arrival),
    )


def promised_value(promise: Promise, journal: Journal, requests: Requests) -> float:
    """What a run made of a promise, in ms; inf where so many sequences did not finish, NaN where nothing has it."""
    journal = included(journal, requests)
    if promise.latency == "itl":
        found = percentiles(journal.itl_gap_ns, journal.itl_count, [promise.percentile])
        return found[0] / NS_PER_MS if found else float("nan")
    times = getattr(sequence_times(journal), f"{promise.latency}_ns")
    return percentile_of_all(times, journal, promise.percentile)


def broken_most(slo: Slo, journal: Journal, requests: Requests) -> str:
    """Of a joint promise the latency that most sequences broke; "" where all kept all."""
    journal = included(journal, requests)
    times, done = sequence_times(journal), journal.status == FINISHED
    broken = {}
    for name in ("ttft", "tpot", "e2el"):
        bound, taken = getattr(slo, name), getattr(times, f"{name}_ns")
        if bound:
            broken[name] = int((done & (taken != NEVER) & (taken > bound * NS_PER_MS)).sum())
    most = max(broken, key=lambda name: broken[name], default="")
    return most if most and broken[most] else ""


def summarise(
    journal: Journal, requests: Requests, counters: Counters, bounds: HitBounds | None = None, slo: Slo = NO_SLO
) -> Summary:
    """Distributions and totals of a run, finished or partial. bounds: of its hits, where they were worked out.

    Of phases that are left out nothing is in latencies, throughput and hits; totals of the engine hold them.
    """
    if requests.excluded:
        journal, bounds = included(journal, requests), None
    times = sequence_times(journal)
    done = journal.status == FINISHED
    latencies = {
        "ttft": _of(times.ttft_ns[done]),
        "tpot": _of(times.tpot_ns[done]),
        "itl": _in_ms(distribution(journal.itl_gap_ns, journal.itl_count)),
        "e2el": _of(times.e2el_ns[done]),
        "queue": _of(times.queue_ns[done]),
    }
    counted = np.bincount(journal.status, minlength=len(STATUS_NAMES))
    statuses = {name: int(k) for name, k in zip(STATUS_NAMES, counted, strict=True) if k}
    scalars = with_units(_scalars(journal, requests, counters, bounds, done) | _goodput(journal, times, slo))
    if bounds is not None and bounds.routed is not None:
        scalars |= with_units({"hit_rate_routed": bounds.routed / max(counters.admitted_prompt_tokens, 1)})
    scalars |= tier_scalars(journal, counters, wall_time_ns(journal))
    return Summary(latencies, scalars, statuses)


def _goodput(journal: Journal, times: SequenceTimes, slo: Slo) -> dict[str, Number]:
    """Sequences that kept every promise, a second and as a share of all but those that their clients gave up."""
    good = int(kept(slo, journal, times.ttft_ns, times.tpot_ns, times.e2el_ns).sum())
    return {
        "goodput": _rate(good, wall_time_ns(journal)) if slo else None,
        "slo_share": _share(good, promised(journal)) if slo else None,
    }


def included(journal: Journal, requests: Requests) -> Journal:
    """The rows of sequences and gaps of the phases that are in the results."""
    if not requests.excluded:
        return journal
    out = requests.is_excluded()
    kept = ~out[journal.request_index]
    phases = np.array([name not in requests.excluded for name in requests.phases])
    phase = journal.itl_phase
    gaps = slice(None) if phase is None else phases[phase]
    columns = {
        f.name: getattr(journal, f.name)[kept]
        for f in fields(Journal)
        if not f.name.startswith(("itl_", "step", "part", "tokenize_", "columns", "moves", "link_"))
    }
    return Journal(
        **columns,
        itl_gap_ns=journal.itl_gap_ns[gaps],
        itl_count=journal.itl_count[gaps],
        steps=journal.steps,
        step_engine=journal.step_engine,
        moves=journal.moves,
        link_names=journal.link_names,
        parts_ns=journal.parts_ns[kept] if len(journal.parts_ns) else journal.parts_ns,
        tokenize_ns=journal.tokenize_ns[kept] if len(journal.tokenize_ns) else journal.tokenize_ns,
        part_names=journal.part_names,
        columns={name: values[kept] for name, values in journal.columns.items()},
    )


def _hits(journal: Journal, requests: Requests, counters: Counters) -> tuple[int, int]:
    """Prompt tokens found, and asked for, at first admissions."""
    if not requests.excluded:
        return int(counters.matched_tokens), int(counters.admitted_prompt_tokens)
    admitted = journal.scheduled_ns != NEVER
    prompts = requests.prompt_tokens[journal.request_index]
    return int(journal.cached_tokens[admitted].sum()), int(prompts[admitted].sum())


def _scalars(
    journal: Journal, requests: Requests, counters: Counters, bounds: HitBounds | None, done: NDArray[np.bool_]
) -> dict[str, Number]:
    wall_ns = wall_time_ns(journal)
    prompts = requests.prompt_tokens[journal.request_index]
    output = int(journal.output_tokens[done].sum())
    total = output + int(prompts[done].sum())
    matched, admitted = _hits(journal, requests, counters)
    return {
        "requests": int(np.count_nonzero(~requests.is_excluded())),
        "sequences": int(done.size),
        "finished": int(done.sum()),
        "duration": wall_ns / NS_PER_S,
        "request_throughput": _rate(int(done.sum()), wall_ns),
        "output_throughput": _rate(output, wall_ns),
        "total_token_throughput": _rate(total, wall_ns),
        "hit_rate": _share(matched, admitted),
        "hit_rate_infinite": _share(None if bounds is None else bounds.infinite, admitted),
        "hit_rate_optimum": _share(None if bounds is None else bounds.optimum, admitted),
        "cached_tokens": matched,
        "prompt_tokens": admitted,
        "recomputed_tokens": int(counters.recomputed_tokens),
        "preemptions": int(counters.preemptions),
        "evicted_blocks": int(counters.evicted_blocks),
        "blocks": int(counters.num_blocks),
        "used_blocks_mean": float(counters.used_blocks_mean),
        "used_blocks_peak": int(counters.used_blocks_peak),
        "tail_waste_mean": float(counters.tail_waste_tokens_mean),
        "tail_waste_share": float(counters.tail_waste_share),
        "metadata": int(counters.metadata_bytes),
        "backup_blocks": int(counters.backup_blocks),
        "backup_busy": counters.backup_ns / NS_PER_S,
        "steps": int(counters.num_steps),
        "host_time": counters.host_ns / NS_PER_S,
        "host_time_exposed": counters.exposed_host_ns / NS_PER_S,
        "device_time": counters.device_ns / NS_PER_S,
        "device_idle": (None if requests.excluded else _share_idle(counters.device_ns, wall_ns * counters.num_engines)),
        "saved_blocks_mean": float(counters.saved_blocks_mean),
        "saved_blocks_share": float(counters.saved_blocks_share),
        "copied_blocks": int(counters.copied_blocks),
        "copied_bytes": int(counters.copied_bytes),
        **_kv_shares(counters),
    }


def _kv_shares(counters: Counters) -> dict[str, Number]:
    """What the token slots hold that are used, or free and of no use. Paged memory has internal waste only."""
    names = ("tokens", "reserved", "internal", "external")
    slots = {name: float(getattr(counters, f"kv_{name}_mean")) for name in names}
    total = sum(slots.values())
    return {f"kv_{name}_share": mean / total if total else None for name, mean in slots.items()}


def wall_time_ns(journal: Journal) -> int:
    """End of the last finish minus first arrival, filling and draining included; 0 when nothing finished."""
    done = journal.status == FINISHED
    if not done.any():
        return 0
    return int(journal.finish_ns[done].max() - journal.arrival_ns[journal.arrival_ns != NEVER].min())


def _share_idle(busy_ns: int, wall_ns: int) -> float | None:
    return max(1.0 - busy_ns / wall_ns, 0.0) if wall_ns else None


def _rate(count: int, wall_ns: int) -> float | None:
    return count * NS_PER_S / wall_ns if wall_ns else None


def _share(part: int | None, whole: int) -> float | None:
    return None if part is None or whole == 0 else part / whole


def _since(moment: I64, arrival: I64) -> I64:
    return np.where((moment == NEVER) | (arrival == NEVER), NEVER, moment - arrival)


def _divide_rounding(a: I64, b: I64) -> I64:
    quotient, rest = np.divmod(a, b)
    up = (2 * rest > b) | ((2 * rest == b) & (quotient % 2 == 1))
    return quotient + up


def _of(values_ns: I64) -> Distribution:
    return _in_ms(distribution(values_ns[values_ns != NEVER]))


def _in_ms(d: Distribution) -> Distribution:
    if d is EMPTY:
        return d

    def ms(value: float | None) -> float | None:
        return None if value is None else value / NS_PER_MS

    in_ms: dict[str, Any] = {name: ms(value) for name, value in vars(d).items() if name != "n"}
    return replace(d, **in_ms)
