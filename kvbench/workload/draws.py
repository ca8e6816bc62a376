"""Random numbers: uniform doubles from the raw output of PCG64, one generator for each purpose.

NumPy may change how its Generator turns bits into numbers, but not the bits of PCG64 and SeedSequence.
Therefore everything here is made from raw 64-bit words through inverse distribution functions: the same
seed is the same workload under every NumPy version, and a new purpose disturbs no other draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


class Purpose(IntEnum):
    """What a draw is for. The numbers are part of every workload: never renumber, only add."""

    GAP = 1
    JITTER = 2
    CANCEL = 3
    CANCEL_AFTER = 4
    PRIORITY = 5
    SOJOURN = 6
    USER_START = 7
    PROMPT = 11
    OUTPUT = 12
    SAMPLES = 13
    TURNS = 14
    THINK = 15
    THINKING = 16
    RESPONSE = 17
    CALLS = 18
    CALL_PROMPT = 19
    CALL_OUTPUT = 20
    GROUP = 21
    PREFIX = 22
    CLIENT = 23
    TOOLS = 24
    FEW_SHOT = 25
    LAYER_TOKENS = 26
    SCAN = 27
    SCAN_TOKENS = 28
    FORK = 29
    FORK_FROM = 30
    DOCUMENTS = 31
    DOCUMENT = 32
    DOCUMENT_TOKENS = 33
    RETOKENISED = 34
    RETOKENISED_FROM = 35
    PRIVATE = 36
    NAMESPACE = 40


@dataclass(frozen=True)
class Seeds:
    """Non-negative. Changing one leaves what the others draw alone."""

    arrivals: int = 0
    lengths: int = 0
    sharing: int = 0


def uniforms(seed: int, purpose: Purpose, size: int, phase: int = 0) -> F64:
    """(size,) numbers strictly between 0 and 1, multiples of 2**-53, so that no quantile is infinite."""
    raw = np.random.PCG64(np.random.SeedSequence([seed, int(purpose), phase])).random_raw(size)
    return ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
