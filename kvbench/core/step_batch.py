"""One step of a model on paged KV: what goes in, what comes out. Plain arrays, so that the engine needs no model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .requests import I64


@dataclass(frozen=True)
class StepBatch:
    """R rows, each a run of tokens of one sequence; T tokens in all, rows one after the other.

    tokens       (T,) ids
    positions    (T,) in their sequences
    slots        (T,) where their KV goes: block * block_tokens + offset
    row_starts   (R + 1,) row r owns tokens [row_starts[r], row_starts[r + 1])
    contexts     (R,) tokens before the row's first one, whose KV is there
    tables       (R, m) int32 block ids
    sample_keys  (R,) uint64: the draw of a row depends on its key and its logits alone
    temperature  0 = the most likely token
    """

    tokens: I64
    positions: I64
    slots: I64
    row_starts: I64
    contexts: I64
    tables: NDArray[np.int32]
    sample_keys: NDArray[np.uint64]
    temperature: float = 0.0


@dataclass(frozen=True)
class StepResult:
    """next_tokens (R,): drawn after each row's last token. logits (R, vocab) float32. kernel_ns: by kind."""

    next_tokens: I64
    logits: NDArray[Any]
    kernel_ns: dict[str, int] = field(default_factory=dict)
