"""How much the kernels are given: shapes of a model of 8 billion parameters, over memory that no cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sizes:
    """memory_bytes: KV that one call reads, and arrays of plain reading and copying. seconds: of rounds per group."""

    memory_bytes: int
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    context: int = 4096
    prefill: tuple[tuple[int, int], ...] = ((128, 0), (512, 0), (1024, 0), (256, 4096))
    """New tokens at a context."""

    copy_layers: int = 8
    written_tokens: int = 4096
    prefix_requests: int = 256
    matrix: int = 1024
    """Side of the matrices whose product is the limit of prefill."""

    dense_rows: int = 256
    vocabulary: int = 128_000
    answers: tuple[int, int, int] = (16, 96, 48)
    """Prompts, their tokens, tokens of an answer."""

    seconds: float = 3.0


CACHES = 4
"""KV should be this many times the last cache, else that serves a part of it."""
LEAST_MEMORY = 128 << 20


def enough_memory() -> int:
    """Bytes of KV that no cache of this machine holds to a large part."""
    return max(CACHES * last_cache_bytes(), LEAST_MEMORY)


def last_cache_bytes() -> int:
    """Of the largest cache of the first processor, where the system tells it; else 0."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)
