"""What an engine makes of a request when it arrives: refused, with the reason, or taken, with the lengths it may have.

Whatever could never be scheduled is refused here: it would bar the queue for those behind it.
source: vLLM's front end and its check of the cache at start; the tokenizer manager and `init_req_max_new_tokens` of
SGLang 0.5.12 and 0.5.23, which do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core.requests import I64, Requests
from .forking import beam_blocks
from .settings import EngineSettings, is_prefill_first

TAKEN, NO_OUTPUT, TOO_LONG, TOO_LARGE, OVER_BUDGET, BEAMS_TOO_LARGE, NO_RESERVE = range(7)
"""TAKEN, or why a request is refused."""

RESERVED_INPUT = 6
"""SGLang refuses a prompt that leaves no more than this of context or pool."""


class Arrivals(NamedTuple):
    """By request.

    reason      TAKEN, or why it is refused
    max_tokens  what the scheduler believes; SGLang lowers it to what context and pool leave
    output      tokens that each of its samples produces; 0 = refused
    """

    reason: I64
    max_tokens: I64
    output: I64


def arrivals(requests: Requests, settings: EngineSettings) -> Arrivals:
    """Judge every request by its lengths alone: nothing else decides whether it can ever run."""
    if is_prefill_first(settings):
        reason, max_tokens = _by_sglang(requests, settings)
    else:
        reason, max_tokens = _by_vllm(requests, settings)
    if settings.beam.width > 0:
        blocks = beam_blocks(requests, settings.beam.width, settings.block_tokens)
        reason[(reason == TAKEN) & (blocks > settings.cache.num_blocks)] = BEAMS_TOO_LARGE
    reason[requests.output_tokens < 1] = NO_OUTPUT
    # With max_tokens clipped to 0 SGLang still computes the token that ends the prefill.
    output = np.where(reason == TAKEN, np.minimum(requests.output_tokens, np.maximum(max_tokens, 1)), 0)
    return Arrivals(reason, max_tokens, output)


def of_fleet(requests: Requests, settings: Sequence[EngineSettings]) -> Arrivals:
    """The same where there are several engines: refused is what none of them takes, cut short what each cuts short."""
    each = [arrivals(requests, one) for one in dict.fromkeys(settings)]
    most = np.max([np.where(one.reason == TAKEN, one.max_tokens, 0) for one in each], axis=0)
    return Arrivals(
        np.min([one.reason for one in each], axis=0),
        np.where(most > 0, most, each[0].max_tokens),
        np.max([one.output for one in each], axis=0),
    )


def takers(requests: Requests, settings: Sequence[EngineSettings]) -> NDArray[np.uint8]:
    """(engines, requests) 1 = the engine takes it; (0, 0) where they all judge alike."""
    reasons = [arrivals(requests, one).reason for one in dict.fromkeys(settings)]
    if all(np.array_equal(reasons[0] == TAKEN, other == TAKEN) for other in reasons[1:]):
        return np.zeros((0, 0), np.uint8)
    return np.array([arrivals(requests, one).reason == TAKEN for one in settings], np.uint8)


def as_asked(requests: Requests, settings: EngineSettings) -> Arrivals:
    """Nothing refused or clipped, but for what max_model_len leaves; who has no output in a recording never ends."""
    room = np.maximum(settings.max_model_len - requests.prompt_tokens, 0)
    output = np.minimum(np.minimum(requests.output_tokens, requests.max_tokens), room)
    return Arrivals(np.full(len(requests), TAKEN), requests.max_tokens, np.maximum(output, 1))


def _by_vllm(requests: Requests, settings: EngineSettings) -> tuple[I64, I64]:
    """A server of vLLM does not start where the longest request that it would accept cannot run."""
    rules = settings.scheduler
    prompt, max_tokens = requests.prompt_tokens, requests.max_tokens
    reason = np.full(len(requests), TAKEN)
    if not rules.enable_chunked_prefill and settings.batching != "static":  # all but the last token is prefilled again
        reason[prompt + max_tokens - 1 > rules.max_num_batched_tokens] = OVER_BUDGET
    reason[prompt + max_tokens > capacity_tokens(settings)] = TOO_LARGE
    reason[prompt + max_tokens > settings.max_model_len] = TOO_LONG
    return reason, max_tokens


def _by_sglang(requests: Requests, settings: EngineSettings) -> tuple[I64, I64]:
    """The front end looks at what was asked; the scheduler refuses long prompts and clips outputs."""
    page, context, prompt = settings.block_tokens, settings.max_model_len, requests.prompt_tokens
    pool = settings.cache.num_blocks * page
    whole_pages = -(-prompt // page) * page
    room = np.minimum(min(context, pool) - 2 - prompt, pool - whole_pages - page - 1)
    reason = np.full(len(requests), TAKEN)
    reason[(prompt >= pool - RESERVED_INPUT) | (prompt + page >= pool)] = TOO_LARGE  # the engine waits for the latter
    if settings.role == "decode":
        need = whole_pages if settings.cache.kind == "radix" else prompt  # hits take away from both sides alike
        reason[need + settings.reserved_decode_tokens > pool] = NO_RESERVE  # the engine waits for its time-out
    reason[(prompt >= context - RESERVED_INPUT) | (prompt + requests.max_tokens > context)] = TOO_LONG
    return reason, np.clip(room, 0, requests.max_tokens)


def capacity_tokens(settings: EngineSettings) -> int:
    """Tokens that one sequence can have in the cache at most."""
    blocks = settings.cache.num_blocks
    if settings.cache.allocation == "buddy":
        blocks = 1 << blocks.bit_length() - 1
    return blocks * settings.block_tokens


def why_refused(reason: int, settings: EngineSettings) -> str:
    """The reason in words, as what "n sequences" do."""
    blocks, most = settings.cache.num_blocks, settings.max_model_len
    spare = f", or leave no more than {RESERVED_INPUT} of it" if is_prefill_first(settings) else ""
    return {
        NO_OUTPUT: "have no output token",
        TOO_LONG: f"exceed max_model_len ({most}) with prompt + max_tokens{spare}",
        TOO_LARGE: f"exceed the cache ({blocks} blocks, {blocks * settings.block_tokens} tokens)",
        OVER_BUDGET: f"exceed a step ({settings.scheduler.max_num_batched_tokens} tokens) that cuts no prompt",
        BEAMS_TOO_LARGE: f"exceed the cache ({blocks} blocks) with all their beams",
        NO_RESERVE: "exceed the decode side's cache with pd.reserved_decode_tokens beside the prompt",
    }[reason]
