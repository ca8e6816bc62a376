"""Attention: decode beside plain reading of as many bytes, prefill beside sgemm and the FMA units; and beside torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.decode import paged_decode
from ..kernels.layout import KvCache
from ..kernels.prefill import paged_prefill
from .copies import multiply_probe, product_probe, read_probe
from .entries import Entry
from .memory import Memory, shuffled_tables
from .peer import torch_decode, torch_prefill
from .probes import Probe

DECODE_TARGETS = {"float32": (0.60, 0.88), "bf16": (0.60, 0.88), "int8": (0.30, 0.50), "int4": None}
"""Share of plain reading with one thread and with two; none for int4."""

PREFILL_OF_SGEMM, PREFILL_OF_FMA, PREFILL_AIMED = 0.95, 0.72, 4096
"""Share of sgemm with one thread, of the FMA units with all; from this context on."""

ALSO_SHAPE = 1
"""Which of Sizes.prefill is measured over bf16 KV and with exact numerics too."""

DECODE_SHAPES = (
    ("NHD", "float32", 16),
    ("HND", "float32", 16),
    ("NHD", "bf16", 16),
    ("HND", "bf16", 16),
    ("NHD", "bf16", 128),
    ("NHD", "int8", 16),
    ("HND", "int8", 16),
    ("NHD", "int4", 16),
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
            targets = DECODE_TARGETS[kv_dtype]
            target = targets[n > 1] if targets and block_tokens == 16 else None
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
    name = f"{shape.layout} {shape.kv_dtype}, block {shape.block_tokens}, {len(tables)} x {int(lengths.max()):,}"
    return Probe(name, lambda: paged_decode(q, cache, 0, tables, lengths, out, threads=threads), work)


def prefill_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """One sequence's next tokens behind a context, blocks of 16 in random order."""
    entries = []
    shapes = [shape for shape in memory.sizes.prefill if sum(shape) <= _most_tokens(memory)]
    for n in threads:
        sgemm = product_probe(memory.sizes, n, n == max(threads)) if n == 1 else None
        limit, target = (sgemm, PREFILL_OF_SGEMM) if sgemm is not None else (multiply_probe(n), PREFILL_OF_FMA)
        for new, context in shapes:
            aimed = target if context >= PREFILL_AIMED else None
            peer = torch_prefill(memory, new, context, n)
            entries.append(
                Entry("paged prefill", "GFLOP/s", prefill_probe(memory, new, context, n), n, limit, aimed, peer)
            )
        also = shapes[min(ALSO_SHAPE, len(shapes) - 1)]
        others = (prefill_probe(memory, *also, n, kv_dtype="bf16"), prefill_probe(memory, *also, n, exact=True))
        entries += [Entry("paged prefill", "GFLOP/s", probe, n, limit) for probe in others]
    return entries


def prefill_probe(
    memory: Memory,
    new: int,
    context: int,
    threads: int,
    *,
    kv_dtype: str = "float32",
    layout: str = "NHD",
    exact: bool = False,
) -> Probe:
    """Attention of `new` tokens at positions context, context + 1, ...; work is multiplications and additions."""
    cache = memory.cache(layout, kv_dtype, 16)
    tables = shuffled_tables(cache, context + new)[:1]
    q = queries(memory, new)
    out = np.empty_like(q)
    starts, contexts = np.array([0, new]), np.array([context])
    seen = new * context + new * (new + 1) // 2
    name = f"{layout} {kv_dtype}, {new:,} at {context:,}{', exact' if exact else ''}"

    def run() -> None:
        paged_prefill(q, cache, 0, tables, starts, contexts, out, exact=exact, threads=threads)

    return Probe(name, run, 4 * seen * memory.sizes.heads * memory.sizes.head_dim)


def _most_tokens(memory: Memory) -> int:
    """Tokens of float32 KV that the memory holds, whole blocks of 16."""
    return memory.cache("NHD", "float32", 16).shape.num_blocks * 16


def queries(memory: Memory, rows: int) -> Any:
    """(rows, heads, head_dim) float32."""
    return np.random.default_rng(10).standard_normal((rows, memory.sizes.heads, memory.sizes.head_dim), np.float32)


def token_bytes(cache: KvCache) -> int:
    """Bytes of one token's keys and values in one layer, scales included."""
    elements = 2 * cache.shape.num_kv_heads * cache.shape.row * cache.data.itemsize
    return elements + (2 * cache.shape.num_kv_heads * 4 if cache.shape.kv_dtype == "int8" else 0)
