"""Requests under copy on write, beams and reservations: what becomes sequences, and what cannot run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..core.errors import UsageError
from ..core.requests import I64, Requests
from .settings import PREFILL_FIRST, EngineSettings


def with_beams(requests: Requests, settings: EngineSettings) -> Requests:
    """Each beam is a sequence of its request. A request whose beams could never run side by side is to be refused."""
    width = settings.beam.width
    if width == 0:
        return requests
    if np.any(requests.samples != 1):
        raise UsageError(f"beam.width = {width} and lengths.samples exclude each other; set lengths.samples = 1")
    fits = beam_blocks(requests, width, settings.block_tokens) <= settings.cache.num_blocks
    output = np.where(fits, requests.output_tokens, 0)  # no output is refused at arrival
    return replace(requests, samples=np.full(len(requests), width, np.int64), output_tokens=output)


def beam_blocks(requests: Requests, width: int, block_tokens: int) -> I64:
    """(requests,) blocks of all beams when they share nothing but whole blocks of the prompt."""
    shared = requests.prompt_tokens // block_tokens
    whole = -(-(requests.prompt_tokens + requests.max_tokens) // block_tokens)
    blocks: I64 = shared + width * (whole - shared)
    return blocks


def check_forks(requests: Requests, settings: EngineSettings) -> None:
    """Raise UsageError on rules that do not go together."""
    cache, rules = settings.cache, settings.scheduler
    if settings.beam.width > 0 and not cache.copy_on_write:
        raise UsageError("beam.width needs cache.copy_on_write = true: beams fork at every step")
    for key, wanted in (("cache.copy_on_write", cache.copy_on_write), ("cache.allocation", cache.allocation != "paged")):
        if wanted and (rules.discipline == PREFILL_FIRST or settings.batching == "static" or cache.kind == "radix"):
            raise UsageError(
                f"{key} is for the token budget of vLLM with continuous batching, not for SGLang, a radix tree "
                "or static batches; try --preset vllm"
            )
    if cache.copy_on_write and int(requests.samples.max()) > rules.max_num_seqs:
        raise UsageError(
            f"a request has {int(requests.samples.max())} sequences that run together, more than "
            f"scheduler.max_num_seqs = {rules.max_num_seqs}; raise it, or lower beam.width or lengths.samples"
        )
    if cache.allocation != "paged":
        _check_reservation(requests, settings)


def _check_reservation(requests: Requests, settings: EngineSettings) -> None:
    cache = settings.cache
    if cache.kind != "none" or cache.copy_on_write:
        raise UsageError(
            f"cache.allocation = {cache.allocation} shares no blocks; set cache.kind = none and cache.copy_on_write = false"
        )
    if cache.allocation == "contiguous" and cache.num_blocks * settings.block_tokens < settings.max_model_len:
        raise UsageError(
            f"cache.allocation = contiguous reserves max_model_len = {settings.max_model_len} tokens and the cache has "
            f"{cache.num_blocks * settings.block_tokens}; lower max_model_len or raise cache.blocks"
        )
    if requests.present_tokens is not None:
        raise UsageError(f"cache.allocation = {cache.allocation} takes no KV from elsewhere; use paged")
