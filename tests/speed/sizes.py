"""Sizes at which plain Python is quick enough."""

from __future__ import annotations

from kvbench.speed.sizes import Sizes

TINY = Sizes(
    memory_bytes=1 << 18,
    heads=4,
    kv_heads=2,
    head_dim=64,
    context=32,
    prefill=((4, 0), (4, 8)),
    copy_layers=2,
    written_tokens=16,
    prefix_requests=2,
    matrix=16,
    dense_rows=9,
    vocabulary=100,
    answers=(2, 16, 3),
    seconds=0.0,
)
