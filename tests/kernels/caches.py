"""Small paged caches of every kind for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvbench.kernels.layout import KV_DTYPES, LAYOUTS, KvCache, KvShape
from kvbench.speed.check import poisoned


@st.composite
def shapes(draw: Any) -> KvShape:
    """At most two layers, three heads, six blocks of up to nine tokens, of any type and layout."""
    return KvShape(
        draw(st.integers(1, 2)),
        draw(st.integers(1, 6)),
        draw(st.integers(1, 3)),
        draw(st.sampled_from((1, 2, 4, 9))),
        draw(st.sampled_from((64, 80))),
        draw(st.sampled_from(LAYOUTS)),
        draw(st.sampled_from(tuple(KV_DTYPES))),
    )


def random_rows(rng: np.random.Generator, shape: KvShape, tokens: int) -> tuple[Any, Any]:
    """Keys and values of some tokens, of very different sizes."""
    size = (tokens, shape.num_kv_heads, shape.head_dim)
    scale = (10.0 ** rng.integers(-3, 4, size[:2])).astype(np.float32)[..., None]
    k, v = (rng.standard_normal(size, np.float32) * scale for _ in range(2))
    return k, v


def bits(cache: KvCache) -> bytes:
    """Everything the cache holds, NaN included."""
    return cache.data.tobytes() + cache.scales.tobytes()


def filled(shape: KvShape, seed: int = 0) -> KvCache:
    """A cache of which every byte is random."""
    cache, rng = poisoned(shape), np.random.default_rng(seed)
    for array in (cache.data, cache.scales):
        array.view(np.uint8)[...] = rng.integers(0, 256, array.view(np.uint8).shape, np.uint8)
    return cache
