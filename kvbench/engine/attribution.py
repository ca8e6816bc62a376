"""From the clocks that an engine read for each sequence to the parts of its life (core.journal.PARTS)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..core.journal import CANCELLED, FINISHED, NEVER, PARTIAL, PARTS, REFUSED
from ..scheduler.spent import AGAIN, DECODE, PREFILL, STEPS
from .settings import EngineSettings

I64 = NDArray[np.int64]


def parts_of(sequences: Mapping[str, I64], status: I64, settings: EngineSettings) -> I64:
    """(num_sequences, len(PARTS)) ns whose rows sum to end minus arrival; NEVER for sequences that have not ended.

    sequences   arrays of scheduler.state.Sequences by name
    status      (num_sequences,) of the journal
    """
    q, spent = sequences, sequences["spent"]
    end, ran = q["finish"], q["scheduled"] != NEVER
    tokenize = tokenize_of(q, status, settings)
    handed = q["finish"] - q["last_token"] if settings.output_ns_per_token else settings.detokenize_ns
    detokenize = np.where(status == FINISHED, handed, 0)
    queue = np.where(ran, q["scheduled"], end) - q["arrival"] - tokenize
    known = [
        tokenize + detokenize,
        queue,
        spent[:, PREFILL],
        spent[:, DECODE],
        spent[:, STEPS] - spent[:, PREFILL] - spent[:, DECODE],
        spent[:, AGAIN],
    ]
    parts = np.stack([*known, end - q["arrival"] - sum(known)], axis=1)
    parts[(status == PARTIAL) | (end == NEVER)] = NEVER
    assert parts.shape[1] == len(PARTS)
    return parts


def tokenize_of(sequences: Mapping[str, I64], status: I64, settings: EngineSettings) -> I64:
    """(num_sequences,) ns that turned the text of each into tokens: a part of no queue, in parts or in the table."""
    q = sequences
    queued = (q["queued"] != NEVER) & (status != REFUSED) & ((status != CANCELLED) | (q["queued"] <= q["finish"]))
    return np.where(queued, settings.tokenize_ns_per_request + settings.tokenize_ns_per_token * q["prompt"], 0)
