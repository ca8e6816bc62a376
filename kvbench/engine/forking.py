"""Requests under copy on write, beams and reservations: what becomes a sequence, and what cannot run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import UsageError
from ..core.requests import I64, Requests
from .settings import EngineSettings


def with_beams(requests: Requests, settings: EngineSettings) -> Requests:
    """Each beam is a sequence of its request."""
    width = settings.beam.width
    if width == 0:
        return requests
    if np.any(requests.samples != 1):
        raise UsageError(f"beam.width = {width} and lengths.samples exclude each other; set lengths.samples = 1")
    return replace(requests, samples=np.full(len(requests), width, np.int64))


def beam_blocks(requests: Requests, width: int, block_tokens: int) -> I64:
    """(requests,) blocks of all beams when they share nothing but whole blocks of the prompt."""
    shared = requests.prompt_tokens // block_tokens
    whole = -(-(requests.prompt_tokens + requests.max_tokens) // block_tokens)
    blocks: I64 = shared + width * (whole - shared)
    return blocks


def check_requests(requests: Requests, settings: EngineSettings) -> None:
    """Raise UsageError on requests that these rules cannot run."""
    most = int(requests.samples.max())
    if settings.cache.copy_on_write and most > settings.scheduler.most_admitted:
        raise UsageError(
            f"a request has {most} sequences that run together, more than scheduler.max_num_seqs = "
            f"{settings.scheduler.most_admitted}; raise it, or lower beam.width or lengths.samples"
        )
    if settings.cache.allocation != "paged" and requests.present_tokens is not None:
        raise UsageError(f"cache.allocation = {settings.cache.allocation} takes no KV from elsewhere; use paged")
