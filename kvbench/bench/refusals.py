"""What an engine did not give as asked: sequences refused, cut short or failed, each with its reason and a count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.errors import UsageError
from ..core.journal import FAILED, REFUSED, Journal
from ..core.requests import Requests
from ..engine.arrival import TAKEN, Arrivals, why_refused
from ..engine.settings import EngineSettings


def refusals(taken: Arrivals, journal: Journal, settings: Sequence[EngineSettings]) -> tuple[str, ...]:
    """One line on what was refused and why. UsageError when that is everything. settings: of every engine."""
    refused = journal.status == REFUSED
    count = int(refused.sum())
    if count == 0:
        return ()
    reasons = taken.reason[journal.request_index[refused]]
    # of several engines the largest takes most; of two sides each has to take a request
    pick = min if any(one.role != "both" for one in settings) else max
    judge = pick(settings, key=lambda one: one.cache.num_blocks)
    told = ", ".join(f"{(reasons == r).sum()} {why_refused(int(r), judge)}" for r in np.unique(reasons))
    if count == refused.size:
        raise UsageError(f"all {count} sequences were refused: {told}; shorten them, or raise what limits them")
    return (f"{count} of {refused.size} sequences were refused at arrival: {told}",)


def failures(journal: Journal, several: bool = False) -> tuple[str, ...]:
    """One line on sequences that were given up. several: of engines, which can go down, and transfers between them."""
    failed = journal.status == FAILED
    if not failed.any():
        return ()
    started = int((failed & (journal.scheduled_ns >= 0)).sum())
    if several:
        why = ("had begun when their engine or a transfer failed", "found no engine that could run them")
    else:
        why = ("ran out of memory with nobody left to make room", "could not be scheduled though nothing else ran")
    told = ", ".join(f"{n} {text}" for n, text in zip((started, failed.sum() - started), why, strict=True) if n)
    hint = "" if several else "; cache.blocks may be too few"
    return (f"{failed.sum()} of {failed.size} sequences FAILED: {told}{hint}",)


def clip_notes(requests: Requests, taken: Arrivals) -> tuple[str, ...]:
    """Whose max_tokens the engine lowered to what context and cache leave, and what that costs in output."""
    clipped = (taken.reason == TAKEN) & (taken.max_tokens < requests.max_tokens)
    if not clipped.any():
        return ()
    asked = np.minimum(requests.output_tokens, requests.max_tokens)
    lost = int(((asked - taken.output) * requests.samples)[clipped].sum())
    return (
        f"max_tokens of {clipped.sum():,} requests was clipped to what max_model_len and the cache leave, as the "
        f"engine does: {lost:,} output tokens fewer than asked for",
    )
