"""How much the kernels are given: the shapes of a language model of 8 billion parameters, over memory that no cache holds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sizes:
    """memory_bytes: KV that one call reads, and the arrays of plain reading and copying. seconds: of rounds per group."""

    memory_bytes: int = 256 << 20
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    context: int = 4096
    prefill: tuple[tuple[int, int], ...] = ((128, 0), (512, 0), (2048, 0), (512, 4096), (512, 8192))
    """New tokens at a context."""

    copy_layers: int = 8
    written_tokens: int = 4096
    prefix_requests: int = 512
    matrix: int = 1024
    """Side of the matrices whose product is the limit of prefill."""

    seconds: float = 4.0


def last_cache_bytes() -> int:
    """Of the largest cache of the first processor, where the system tells it; else 0."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes)
