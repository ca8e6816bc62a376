"""The device of the measured clock: one thread that runs steps in order, each copies first, then the model.

A plan is taken down as arrays (`PlannedStep`) while the step before may still run; token ids that are only sampled by
then are filled in by the worker, which runs the steps one after the other. So a block that a step lets go may be given
to the next one at once, as on a device's queue.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core.requests import I64
from ..model.forward import StepBatch, StepResult
from .texts import Texts

PLANTED = ("skip_copy", "wrong_block", "short_context", "skip_move")
"""Faults that a test can plant: copies are not made, one table entry is another's, the last token of a context is not
seen, nothing moves between memories. The token proof has to notice each."""


class Memory(Protocol):
    """Blocks of KV, whose ids begin at 1. block_bytes: of one over all layers."""

    block_bytes: int

    def read(self, blocks: I64) -> NDArray[np.uint8]:
        """The bytes of some blocks, (n, bytes of a block)."""

    def write(self, blocks: I64, content: NDArray[np.uint8]) -> None:
        """What `read` has returned into some blocks."""

    def copy_from(self, source: Any, pairs: I64) -> None:
        """Whole blocks of all layers, in order, of memory of the same kind; pairs (n, 2) of source and target."""


class Device(Memory, Protocol):
    """A model with its KV in blocks."""

    vocab: int

    def another(self, num_blocks: int) -> Memory:
        """Memory for so many blocks of the same kind."""

    def step(self, batch: StepBatch) -> StepResult: ...

    def sample(self, logits: NDArray[Any], keys: NDArray[np.uint64], temperature: float) -> I64:
        """(R,) a token for each row of logits (R, vocab), by its key; temperature 0: the most likely."""

    def copy(self, pairs: I64) -> None:
        """Copy whole blocks of all layers, in order; pairs (n, 2) of source and destination."""


@dataclass(frozen=True)
class PlannedStep:
    """Rows of a plan, taken down. known: tokens of the sequence, those included whose values are on their way."""

    seqs: I64
    starts: I64
    tokens: I64
    known: I64
    tables: NDArray[np.int32]
    copies: I64

    @property
    def emits(self) -> NDArray[np.bool_]:
        """(R,) the row computes the last token that is known, so another one comes out."""
        return self.starts + self.tokens >= self.known


@dataclass
class DoneStep:
    """What a step came to. device_ns: wall time on the worker."""

    planned: PlannedStep
    result: StepResult
    device_ns: int


class Worker:
    """Runs planned steps on a thread of its own; one at a time, in order."""

    def __init__(self, device: Device, texts: Texts, block_tokens: int, temperature: float, plant: str = "") -> None:
        self._device, self._texts, self._bt = device, texts, block_tokens
        self._temperature, self._plant = temperature, plant
        self._thread = ThreadPoolExecutor(1, "kvbench-device")

    def launch(self, planned: PlannedStep) -> Future[DoneStep]:
        return self._thread.submit(self._run, planned)

    def run(self, work: Callable[[], None]) -> None:
        """Something else in its turn; waits for it."""
        self._thread.submit(work).result()

    def close(self) -> None:
        self._thread.shutdown()

    def _run(self, planned: PlannedStep) -> DoneStep:
        batch = self._batch(planned)
        begin = time.perf_counter_ns()
        if planned.copies.size and self._plant != "skip_copy":
            self._device.copy(planned.copies)
        result = self._device.step(batch)
        took = time.perf_counter_ns() - begin
        self._say(planned, result)
        return DoneStep(planned, result, took)

    def _batch(self, p: PlannedStep) -> StepBatch:
        """Token ids, positions and slots of all rows."""
        row_starts = np.concatenate(([0], np.cumsum(p.tokens)))
        row = np.repeat(np.arange(p.tokens.size), p.tokens)
        positions = np.arange(row.size) - row_starts[row] + p.starts[row]
        rows = zip(p.seqs.tolist(), p.starts.tolist(), (p.starts + p.tokens).tolist(), strict=True)
        ids = [self._texts.tokens(*one) for one in rows]
        tables = p.tables
        slots = tables[row, positions // self._bt].astype(np.int64) * self._bt + positions % self._bt
        contexts = p.starts
        if self._plant == "wrong_block":
            tables = tables.copy()
            tables[p.starts >= 2 * self._bt, 1] = tables[p.starts >= 2 * self._bt, 0]
        if self._plant == "short_context":
            contexts = np.where(p.starts % self._bt == self._bt - 1, p.starts - 1, p.starts)
        return StepBatch(
            tokens=np.concatenate(ids),
            positions=positions,
            slots=slots,
            row_starts=row_starts,
            contexts=contexts,
            tables=tables,
            sample_keys=self._texts.sample_keys(p.seqs, p.known - self._texts.prompt_tokens[p.seqs]),
            temperature=self._temperature,
        )

    def _say(self, p: PlannedStep, result: StepResult) -> None:
        texts = self._texts
        index = p.known - texts.prompt_tokens[p.seqs]
        heard = p.emits & (index < texts.output[p.seqs])  # a row beyond the end is computed for nobody
        for row in np.flatnonzero(heard).tolist():
            texts.say(int(p.seqs[row]), int(index[row]), int(result.next_tokens[row]))
