"""The next token of each row of logits: the greatest, or one drawn by a key.

A draw depends on its key and its row of logits alone: no generator has a state, so neither batch nor order matters.
NumPy does the work; a draw costs far more than the greatest (`kvbench kernels --only dense` measures both).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


def greatest(logits: F32) -> I64:
    """(rows,) int64: index of the greatest of each row, the lowest of equals; logits (rows, vocab) float32."""
    return np.argmax(logits, axis=1).astype(np.int64)


def mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """(n,) uint64 whose every bit depends on every bit of its number.

    source   the output function of splitmix64 (Steele, Lea, Flood 2014)
    """
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniforms(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """(n,) float64 strictly between 0 and 1 for (n,) uint64 keys."""
    bits = mix(np.asarray(keys, np.uint64) + np.uint64(0x9E3779B97F4A7C15))
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def draw(logits: F32, temperature: float, keys: NDArray[np.uint64]) -> I64:
    """One token a row, token i with a probability in proportion to exp(logits[i] / temperature).

    logits       (rows, vocab) float32
    temperature  above 0
    keys         (rows,) uint64
    returns      (rows,) int64
    source       inverse of the cumulative distribution, in float64
    """
    tokens = np.empty(len(logits), np.int64)
    for row, u in enumerate(uniforms(keys)):
        scaled = logits[row].astype(np.float64)
        scaled -= scaled.max()
        cumulative = np.cumsum(np.exp(scaled / temperature))
        tokens[row] = np.searchsorted(cumulative, u * cumulative[-1], side="right")
    return np.minimum(tokens, logits.shape[1] - 1)
