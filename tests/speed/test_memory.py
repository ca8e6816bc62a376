"""The one memory as KV of every type: it covers what it should, and holds numbers that no type stumbles over."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.kernels.layout import KV_DTYPES, LAYOUTS
from kvbench.kernels.quantise import from_bf16
from kvbench.speed.memory import Memory, shuffled_tables

from .sizes import TINY


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_cache_is_all_of_the_memory(layout, kv_dtype):
    memory = Memory(TINY)
    cache = memory.cache(layout, kv_dtype, 16, num_layers=2)
    assert np.shares_memory(cache.data, memory.words)
    block = cache.data.nbytes // cache.shape.num_blocks
    assert TINY.memory_bytes - block < cache.data.nbytes <= TINY.memory_bytes


def test_numbers_are_of_ordinary_size():
    memory = Memory(TINY)
    for values in (memory.words.view(np.float32), from_bf16(memory.words.view(np.uint16))):
        size = np.abs(values)
        assert size.max() <= 2.02
        assert np.mean(size > 1e-6) > 0.999


@pytest.mark.parametrize("context", [16, 17, 32])
def test_tables_share_no_block(context):
    cache = Memory(TINY).cache("NHD", "bf16", 16)
    tables = shuffled_tables(cache, context)
    assert tables.dtype == np.int32
    assert len(np.unique(tables)) == tables.size
    assert tables.max() < cache.shape.num_blocks
    assert tables.shape == (cache.shape.num_blocks // -(-context // 16), -(-context // 16))
