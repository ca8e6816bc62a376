"""An engine that needs no compiling, for tests of what lies above it.

A sequence is scheduled 1 ms after it arrives, has its first token after 2 ms more and one every 3 ms. What
the settings would refuse is refused. `interrupt_after` sequences it behaves as if the user pressed Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvbench.cluster.admissions import Admissions
from kvbench.cluster.fleet import Fleet, Member
from kvbench.core.journal import FINISHED, NEVER, PARTIAL, REFUSED, STEP_COLUMNS, Counters, Journal
from kvbench.core.requests import I64, Requests
from kvbench.engine.arrival import of_fleet
from kvbench.engine.settings import EngineSettings
from kvbench.prefix.keys import BlockKeys, block_keys

MS = 1_000_000


class FakeSimulation:
    """The Python face of an engine. One sequence a request."""

    interrupt_after: int | None = None
    last: FakeSimulation

    def __init__(self, requests: Requests, settings: EngineSettings, tables: Any) -> None:
        self.requests, self.settings = requests, settings
        self.fleet = Fleet((Member(settings, tables),))
        self.arrivals = of_fleet(requests, (settings,))
        self.num_sequences = requests.num_sequences
        self.done = self.num_sequences
        type(self).last = self

    def run(self, progress: Callable[[int, int], None] | None = None) -> bool:
        if progress is not None:
            progress(self.num_sequences // 2, self.num_sequences)
            progress(self.num_sequences, self.num_sequences)
        if self.interrupt_after is not None:
            self.done = self.interrupt_after
            raise KeyboardInterrupt
        return True

    def journal(self) -> Journal:
        r, n = self.requests, self.num_sequences
        need = r.prompt_tokens + r.max_tokens
        capacity = self.settings.cache.num_blocks * self.settings.block_tokens
        status = np.where(np.arange(n) < self.done, FINISHED, PARTIAL)
        status[(need > min(capacity, self.settings.max_model_len)) | (r.output_tokens == 0)] = REFUSED
        ran = status == FINISHED
        first = r.arrival_ns + 3 * MS
        gaps = np.where(ran, r.output_tokens - 1, 0)
        steps = np.arange(2 * len(STEP_COLUMNS), dtype=np.int64).reshape(2, -1)
        zeros = np.zeros(n, np.int64)
        return Journal(
            request_index=np.arange(n),
            sample=zeros,
            status=status,
            arrival_ns=r.arrival_ns,
            queued_ns=r.arrival_ns,
            scheduled_ns=np.where(ran, r.arrival_ns + MS, NEVER),
            first_token_ns=np.where(ran, first, NEVER),
            finish_ns=np.where(ran, first + 3 * MS * gaps, NEVER),
            cached_tokens=zeros,
            output_tokens=np.where(ran, r.output_tokens, 0),
            recomputed_tokens=zeros,
            preemptions=zeros,
            itl_gap_ns=np.full(1, 3 * MS),
            itl_count=np.full(1, gaps.sum()),
            steps=steps if self.settings.record_steps else steps[:0],
        )

    def release(self) -> None:
        pass

    def cache_prepared(self, leading: I64) -> None:
        pass

    def admissions(self) -> Admissions:
        """One sequence a request, all that finished."""
        j = self.journal()
        done = np.flatnonzero(j.status == FINISHED)
        prompt = self.requests.prompt_tokens[done]
        one = np.ones(done.size, np.int64)
        return Admissions(done, done, prompt, one, j.scheduled_ns[done], j.finish_ns[done], one * 0, j.request_index)

    def block_keys(self) -> BlockKeys:
        return block_keys(self.requests, self.settings.block_tokens)

    def counters(self) -> Counters:
        prompts = int(self.requests.prompt_tokens.sum())
        return Counters(
            end_ns=9 * MS,
            num_steps=2,
            decode_steps=1,
            prefill_steps=1,
            prefill_tokens=prompts,
            decode_tokens=5,
            matched_tokens=0,
            admitted_prompt_tokens=prompts,
            recomputed_tokens=0,
            preemptions=0,
            evicted_blocks=0,
            inserted_blocks=7,
            used_blocks_peak=7,
            used_blocks_mean=3.5,
            tail_waste_tokens_mean=1.5,
            tail_waste_share=0.01,
            metadata_bytes=256,
            num_blocks=self.settings.cache.num_blocks,
            path="step",
            busy_ns=8 * MS,
            host_ns=2 * MS,
            exposed_host_ns=2 * MS,
            device_ns=6 * MS,
        )


def fake_replay(offline: Any, settings: EngineSettings, costs: Any) -> dict[str, float | int]:
    """Numbers in the form of `--cache-only`."""
    return {
        "hit_rate_tokens": 0.25,
        "hit_rate_tokens_infinite": 0.5,
        "hit_rate_tokens_optimum": 0.375,
        "requests": len(offline.requests),
        "counted": int(offline.counted.sum()),
        "refused": 0,
        "answers": offline.answers,
        "warm_up": offline.warm_up,
        "prompts_with_answers": offline.prompts_with_answers,
        "blocks": settings.cache.num_blocks,
    }
