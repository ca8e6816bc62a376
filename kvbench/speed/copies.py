"""Copy on write and KV write beside memcpy, and the machine's limits as probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.jit import PLAIN
from ..kernels import limits
from ..kernels.kv_copy import copy_blocks
from ..kernels.kv_write import gather, write
from .entries import Entry
from .memory import Memory
from .probes import Probe
from .sizes import Sizes

COPY_TARGET, WRITE_TARGET = 1.3, 0.85
"""Of memcpy: a copy past the caches reads no line that it overwrites; a write has to find its slots."""

ROW_BYTES = 1 << 20
MULTIPLY_ROUNDS = 2_000_000


def limit_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """What the machine can do at most, each with one and with all threads."""
    entries = []
    for n in threads:
        for unit, probe in (
            ("GB/s", read_probe(memory, n)),
            ("GB/s", copy_probe(memory, n)),
            ("GB/s", stream_probe(memory, n)),
        ):
            entries.append(Entry("memory", unit, probe, n))
    for n in threads:
        found = (multiply_probe(n), product_probe(memory.sizes, n, n == max(threads)))
        entries += [Entry("arithmetic", "GFLOP/s", probe, n) for probe in found if probe is not None]
    return entries


def read_probe(memory: Memory, threads: int) -> Probe:
    return Probe("read", lambda: limits.read(memory.words, threads), memory.words.nbytes)


def copy_probe(memory: Memory, threads: int) -> Probe:
    source, target = memory.halves()
    return Probe("memcpy", lambda: limits.copy(target, source, threads), source.nbytes)


def stream_probe(memory: Memory, threads: int) -> Probe:
    size = min(ROW_BYTES, memory.words.nbytes // 2)
    data = memory.words.view(np.uint8)
    rows = data[: data.size // (2 * size) * 2 * size].reshape(-1, size)
    return Probe("copy past the caches", lambda: limits.stream_copy(rows, threads), rows.nbytes // 2)


def multiply_probe(threads: int) -> Probe | None:
    """None in plain Python, which has no way to the units that multiply and add."""
    if PLAIN:
        return None
    operations = limits.multiply_add(1, threads) * MULTIPLY_ROUNDS
    return Probe("FMA, float32", lambda: limits.multiply_add(MULTIPLY_ROUNDS, threads), operations)


def product_probe(sizes: Sizes, threads: int, all_threads: bool) -> Probe | None:
    """None where BLAS cannot be told how many threads to take, unless it takes all anyway."""
    n = sizes.matrix
    a, out = np.ones((n, n), np.float32), np.empty((n, n), np.float32)
    limit_to = limits.blas_threads()
    if limit_to is None:
        return Probe("matrix product", lambda: limits.product(a, a, out), 2 * n**3) if all_threads else None

    def run() -> None:
        with limit_to(threads):
            limits.product(a, a, out)

    return Probe("matrix product", run, 2 * n**3)


def copy_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """Half of the blocks to the other half, in random order, over all layers."""
    entries = []
    for n in threads:
        limit = copy_probe(memory, n)
        for kv_dtype, block_tokens in (("float32", 16), ("bf16", 16), ("float32", 1)):
            cache = memory.cache("NHD", kv_dtype, block_tokens, memory.sizes.copy_layers)
            pairs = _random_pairs(cache.shape.num_blocks)
            work = copied_bytes(cache, pairs)
            shape = f"{kv_dtype}, block {block_tokens}, {pairs.shape[0]:,} blocks x {cache.shape.num_layers} layers"
            probe = Probe(shape, lambda c=cache, p=pairs, n=n: copy_blocks(c, p, n), work)  # type: ignore[misc]
            entries.append(Entry("copy on write", "GB/s", probe, n, limit, COPY_TARGET if block_tokens > 1 else None))
    return entries


def copied_bytes(cache: Any, pairs: Any) -> int:
    return int(cache.data.nbytes // cache.shape.num_blocks * pairs.shape[0])


def _random_pairs(num_blocks: int) -> Any:
    order = np.random.default_rng(6).permutation(num_blocks)
    return np.ascontiguousarray(order[: num_blocks // 2 * 2].reshape(-1, 2), np.int64)


def write_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """New tokens into slots one after the other (a prompt) and into random ones (decoding); bytes are those read."""
    sizes = memory.sizes
    entries = []
    for n in threads:
        limit = _copy_of_rows(sizes, n)
        for layout, kv_dtype, order in (
            ("NHD", "float32", "in order"),
            ("NHD", "float32", "random"),
            ("HND", "float32", "random"),
            ("NHD", "bf16", "in order"),
            ("NHD", "int8", "in order"),
        ):
            probe = _write_probe(memory, layout, kv_dtype, order, n)
            entries.append(Entry("KV write", "GB/s", probe, n, limit, WRITE_TARGET))
    for kv_dtype in ("float32", "bf16", "int8"):
        entries.append(Entry("gather to float32", "GB/s", _gather_probe(memory, kv_dtype), 1, _copy_of_rows(sizes, 1)))
    return entries


def _rows(sizes: Sizes) -> Any:
    rng = np.random.default_rng(7)
    return rng.standard_normal((sizes.written_tokens, sizes.kv_heads, sizes.head_dim), np.float32)


def _copy_of_rows(sizes: Sizes, threads: int) -> Probe:
    """memcpy of as many bytes as the keys and values have."""
    source = np.concatenate([_rows(sizes).reshape(-1)] * 2)
    target = np.zeros_like(source)
    return Probe("memcpy", lambda: limits.copy(target, source, threads), source.nbytes)


def _write_probe(memory: Memory, layout: str, kv_dtype: str, order: str, threads: int) -> Probe:
    cache = memory.cache(layout, kv_dtype, 16)
    k = _rows(memory.sizes)
    v = k.copy()
    total = cache.shape.num_blocks * 16
    slots = np.arange(len(k)) % total if order == "in order" else np.random.default_rng(8).permutation(total)[: len(k)]
    k, v = k[: slots.size], v[: slots.size]
    name = f"{layout} {kv_dtype}, {slots.size:,} tokens, slots {order}"
    return Probe(name, lambda: write(k, v, cache, 0, slots, threads), k.nbytes + v.nbytes)


def _gather_probe(memory: Memory, kv_dtype: str) -> Probe:
    cache = memory.cache("NHD", kv_dtype, 16)
    tokens = min(memory.sizes.written_tokens, cache.shape.num_blocks * 16)
    table = np.random.default_rng(9).permutation(cache.shape.num_blocks)[: -(-tokens // 16)].astype(np.int32)
    work = 2 * tokens * cache.shape.num_kv_heads * cache.shape.head_dim * 4
    return Probe(f"NHD {kv_dtype}, {tokens:,} tokens, blocks random", lambda: gather(cache, 0, table, tokens), work)
