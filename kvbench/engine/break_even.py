"""Fetching against computing: what a hit in a lower tier saves, and from which bandwidth on it is worth it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..core.jit import entry
from ..core.requests import I64
from ..costs.tables import NUM_RESOURCES, QUERY_SIZE, CostTables, add_prefill, clear, step_ns
from ..scheduler.state import Engine
from ..tiers.state import HOST_TOKENS, WAIT_IN_STEPS, WAIT_QUEUED


@dataclass(frozen=True)
class BreakEven:
    """Of the loads of a run.

    link        bytes/s of the link from host to device, set-up and fragments left out
    bandwidth   bytes/s at which fetching a whole prompt but its last block takes as long as computing it, at the mean
                length of the prompts that fetched; 0 = nothing was fetched
    tokens      that mean
    fetched     sequences that fetched before their first admission
    lost        of these, which waited longer than computing what they fetched would have taken
    """

    link: float
    bandwidth: float
    tokens: int
    fetched: int
    lost: int


@entry
def _prefill_ns(costs, context, tokens, out):
    """out[i]: ns of a step that computes tokens[i] behind context[i], alone."""
    query, resources = np.zeros(QUERY_SIZE, np.float64), np.zeros(NUM_RESOURCES, np.int64)
    for i in range(out.size):
        clear(query)
        add_prefill(costs, query, tokens[i], context[i])
        out[i] = step_ns(costs, query, resources)


def saved_ns(costs: CostTables, prompt: I64, hits: I64, fetched: I64) -> I64:
    """(n,) ns that a prefill is shorter by for `fetched` tokens behind `hits`; each in one step of its own."""
    full, rest = np.zeros(prompt.size, np.int64), np.zeros(prompt.size, np.int64)
    _prefill_ns(costs, hits, prompt - hits, full)
    _prefill_ns(costs, hits + fetched, prompt - hits - fetched, rest)
    return full - rest


def break_even(engines: Sequence[Engine]) -> BreakEven:
    """Over all engines with tiers, by the step times of the first."""
    tiered = [e for e in engines if e.rules.tiered]
    prompt, fetched, hits, wait = (np.zeros(0, np.int64) for _ in range(4))
    for e in tiered:
        q, rows = e.seqs.read(), e.tiers.of_seq
        own = (q["engine"] == e.number) & (rows[:, HOST_TOKENS] > 0) & (q["cached"] >= rows[:, HOST_TOKENS])
        prompt = np.concatenate((prompt, q["prompt"][own]))
        fetched = np.concatenate((fetched, rows[own, HOST_TOKENS]))
        hits = np.concatenate((hits, q["cached"][own] - rows[own, HOST_TOKENS]))
        wait = np.concatenate((wait, rows[own, WAIT_QUEUED] + rows[own, WAIT_IN_STEPS]))
    ns_per_byte = float(tiered[0].links.rates[tiered[0].tiers.link_up, 2])
    link = 1e9 / ns_per_byte if ns_per_byte > 0 else 0.0
    if prompt.size == 0:
        return BreakEven(link, 0.0, 0, 0, 0)
    saved = saved_ns(tiered[0].costs, prompt, hits, fetched)
    bt = tiered[0].rules.block_tokens
    mean = np.array([int(prompt.mean())])
    whole = (mean - 1) // bt * bt
    gain = int(saved_ns(tiered[0].costs, mean, mean * 0, whole)[0])
    num_bytes = int(whole[0]) // bt * tiered[0].tiers.block_bytes
    return BreakEven(link, num_bytes * 1e9 / max(gain, 1), int(mean[0]), prompt.size, int((wait > saved).sum()))
