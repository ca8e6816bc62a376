"""Decode attention beside plain reading of as many bytes, and beside torch on contiguous KV where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.decode import paged_decode
from ..kernels.layout import KvCache
from .copies import read_probe
from .entries import Entry
from .memory import Memory, shuffled_tables
from .peer import torch_decode
from .probes import Probe

DECODE_TARGETS = {"float32": (0.60, 0.83), "bf16": (0.55, 0.83), "int8": (0.30, 0.50)}
"""Share of plain reading with one thread and with two: what the prototypes reached, rounded."""

DECODE_SHAPES = (
    ("NHD", "float32", 16),
    ("HND", "float32", 16),
    ("NHD", "bf16", 16),
    ("HND", "bf16", 16),
    ("NHD", "bf16", 128),
    ("NHD", "int8", 16),
    ("HND", "int8", 16),
)


def decode_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """One new token of every sequence that the memory holds, at a long context, blocks in random order."""
    entries = []
    for n in threads:
        limit = read_probe(memory, n)
        for layout, kv_dtype, block_tokens in DECODE_SHAPES:
            cache = memory.cache(layout, kv_dtype, block_tokens)
            probe = decode_probe(memory, cache, shuffled_tables(cache, memory.sizes.context), n)
            with_peer = layout == "NHD" and block_tokens == 16
            peer = torch_decode(memory, kv_dtype, n) if with_peer else None
            target = DECODE_TARGETS[kv_dtype][n > 1] if block_tokens == 16 else None
            entries.append(Entry("paged decode", "GB/s", probe, n, limit, target, peer))
    return entries


def decode_probe(memory: Memory, cache: KvCache, tables: Any, threads: int, lengths: Any = None) -> Probe:
    """Attention of one query per row of the tables over `lengths` tokens, by default all of a row; work is KV bytes."""
    shape = cache.shape
    if lengths is None:
        tokens = min(memory.sizes.context, tables.shape[1] * shape.block_tokens)
        lengths = np.full(len(tables), tokens)
    q = queries(memory, len(tables))
    out = np.empty_like(q)
    work = int(lengths.sum()) * token_bytes(cache)
    name = f"{shape.layout} {shape.kv_dtype}, block {shape.block_tokens}, {len(tables)} x {int(lengths.max()):,} tokens"
    return Probe(name, lambda: paged_decode(q, cache, 0, tables, lengths, out, threads=threads), work)


def queries(memory: Memory, rows: int) -> Any:
    """(rows, heads, head_dim) float32."""
    return np.random.default_rng(10).standard_normal((rows, memory.sizes.heads, memory.sizes.head_dim), np.float32)


def token_bytes(cache: KvCache) -> int:
    """Bytes of one token's keys and values in one layer, scales included."""
    elements = 2 * cache.shape.num_kv_heads * cache.shape.head_dim * cache.data.itemsize
    return elements + (2 * cache.shape.num_kv_heads * 4 if cache.shape.kv_dtype == "int8" else 0)
