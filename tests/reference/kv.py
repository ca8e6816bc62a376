"""A KV cache as plain Python and NumPy: what is written where, and how numbers become shorter, by float64."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np


def bf16(x: Any) -> int:
    """The bits of the bf16 nearest to one float32, ties to even; NaN gives 0x7FC0."""
    if np.isnan(x):
        return 0x7FC0
    sign = 0x8000 if np.signbit(x) else 0
    if np.isinf(x):
        return sign | 0x7F80
    exact = Fraction(abs(float(x)))
    below = int(np.float32(abs(x)).view(np.uint32)) >> 16  # the next bf16 towards zero
    low, high = bf16_value(below), bf16_value(below + 1)
    if exact - low == high - exact:
        return sign | (below if below % 2 == 0 else below + 1)
    return sign | (below if exact - low < high - exact else below + 1)


def bf16_value(bits: int) -> Fraction:
    """What positive bits of a bf16 stand for, exactly; infinity counts as 2^128, the next step of the same size."""
    exponent, fraction = bits >> 7, bits & 0x7F
    if exponent == 0:
        return Fraction(fraction, 128) * Fraction(1, 2**126)
    return (1 + Fraction(fraction, 128)) * Fraction(2) ** (exponent - 127)


class PlainCache:
    """(layer, slot, head) -> key and value as they were given; a block copy copies its slots."""

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.held: dict[tuple[int, int, int], tuple[Any, Any]] = {}

    def write(self, k: Any, v: Any, layer: int, slots: Any) -> None:
        for t, slot in enumerate(slots.tolist()):
            for head in range(k.shape[1]):
                self.held[layer, slot, head] = (k[t, head].copy(), v[t, head].copy())

    def copy(self, pairs: Any, num_layers: int, num_heads: int) -> None:
        for source, target in pairs.tolist():
            for layer in range(num_layers):
                for offset in range(self.block_tokens):
                    for head in range(num_heads):
                        self._copy_one(layer, source, target, offset, head)

    def _copy_one(self, layer: int, source: int, target: int, offset: int, head: int) -> None:
        origin = (layer, source * self.block_tokens + offset, head)
        to = (layer, target * self.block_tokens + offset, head)
        if origin in self.held:
            self.held[to] = self.held[origin]
        else:
            self.held.pop(to, None)
