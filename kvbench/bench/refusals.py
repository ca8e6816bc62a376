"""What an engine did not give as asked: sequences refused, cut short or failed, each with its reason and a count."""

from __future__ import annotations

import numpy as np

from ..core.errors import UsageError
from ..core.journal import FAILED, REFUSED, Journal
from ..core.requests import Requests
from ..engine.arrival import TAKEN, Arrivals, why_refused
from ..engine.settings import EngineSettings


def refusals(taken: Arrivals, journal: Journal, settings: EngineSettings) -> tuple[str, ...]:
    """One line on what was refused and why. UsageError when that is everything."""
    refused = journal.status == REFUSED
    count = int(refused.sum())
    if count == 0:
        return ()
    reasons = taken.reason[journal.request_index[refused]]
    told = ", ".join(f"{(reasons == r).sum()} {why_refused(int(r), settings)}" for r in np.unique(reasons))
    if count == refused.size:
        raise UsageError(f"all {count} sequences were refused: {told}; shorten them, or raise what limits them")
    return (f"{count} of {refused.size} sequences were refused at arrival: {told}",)


def failures(journal: Journal) -> tuple[str, ...]:
    """One line on sequences that the engine gave up."""
    failed = journal.status == FAILED
    if not failed.any():
        return ()
    started = int((failed & (journal.scheduled_ns >= 0)).sum())
    reasons = (
        (started, "ran out of memory with nobody left to make room"),
        (int(failed.sum()) - started, "could not be scheduled though nothing else ran"),
    )
    told = ", ".join(f"{count} {text}" for count, text in reasons if count)
    return (f"{int(failed.sum())} of {failed.size} sequences FAILED: {told}; cache.blocks may be too few",)


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
