"""Every variant of the attention kernels against float64, on this machine: small, and compiled unless jit is off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .decode import paged_decode
from .layout import HEAD_DIMS, KV_DTYPES, LAYOUTS, KvCache, KvShape
from .prefill import paged_prefill

BOUND = 2e-5
"""Largest error of an output that is a mean of values around 1; measured: below 5e-6."""
_LENGTHS = (1, 30, 130)
_CHUNK = 20


class AttentionCheck(NamedTuple):
    """What one variant gave."""

    variant: str
    """Kernel, KV type, layout, head size, query heads of a KV head, tokens of a block."""
    max_error: float
    """Against float64; not a number if the kernel gave one that is none"""
    ok: bool


def check_attention() -> Iterator[AttentionCheck]:
    """Decode and both prefills for every KV type, layout and head size; groups and block sizes vary along."""
    variants = [(dtype, layout, head_dim) for dtype in KV_DTYPES for layout in LAYOUTS for head_dim in HEAD_DIMS]
    for number, (dtype, layout, head_dim) in enumerate(variants):
        group, size = (1, 2, 3, 4, 5, 7, 8)[number % 7], (1, 16, 7, 256)[number % 4]
        blocks = [-(-length // size) for length in _LENGTHS]
        cache = KvShape(2, 1 + sum(blocks), 2, size, head_dim, layout, dtype).allocate()
        rng = np.random.default_rng(number)
        _fill(cache, rng)
        ids = iter(rng.permutation(sum(blocks)) + 1)
        tables = np.zeros((len(blocks), max(blocks)), np.int32)
        for table, count in zip(tables, blocks, strict=True):
            table[:count] = [next(ids) for _ in range(count)]
        for name, error in _errors(cache, tables, group, rng):
            variant = f"{name} {dtype} {layout} head {head_dim} group {group} block {size}"
            yield AttentionCheck(variant, error, bool(error < BOUND))


def _fill(cache: KvCache, rng: np.random.Generator) -> None:
    values = rng.standard_normal(cache.data.shape, np.float32)
    cache.scales[:] = rng.uniform(0.01, 0.03, cache.scales.shape)
    if cache.shape.kv_dtype == "bf16":
        cache.data[:] = values.view(np.uint32) >> 16
    else:
        cache.data[:] = np.clip(np.round(values * 40), -127, 127) if cache.shape.kv_dtype == "int8" else values


def _errors(cache: KvCache, tables: Any, group: int, rng: np.random.Generator) -> Iterator[tuple[str, float]]:
    """Name of a kernel and its largest error."""
    lengths = np.array(_LENGTHS, np.int64)
    shape = (cache.shape.num_kv_heads * group, cache.shape.head_dim)
    q = rng.standard_normal((len(lengths), *shape), np.float32)
    out = np.full_like(q, np.nan)
    paged_decode(q, cache, 1, tables, lengths, out)
    yield "decode", _largest_error(q, cache, tables, np.arange(len(lengths)), lengths, out)

    counts = np.minimum(lengths, _CHUNK)
    starts = np.concatenate([[0], np.cumsum(counts)])
    q = rng.standard_normal((int(starts[-1]), *shape), np.float32)
    rows = np.repeat(np.arange(len(lengths)), counts)
    upto = np.arange(len(q)) - np.repeat(starts[:-1], counts) + np.repeat(lengths - counts, counts) + 1
    for name, exact in (("exact prefill", True), ("tiled prefill", False)):
        out = np.full_like(q, np.nan)
        paged_prefill(q, cache, 1, tables, starts, lengths - counts, out, exact=exact)
        yield name, _largest_error(q, cache, tables, rows, upto, out)


def _largest_error(q: Any, cache: KvCache, tables: Any, rows: Any, lengths: Any, out: Any) -> float:
    kv = [_as_float64(cache, table) for table in tables]
    group = q.shape[1] // cache.shape.num_kv_heads
    errors = []
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        keys, values = (np.repeat(part[:length], group, axis=1) for part in kv[row])
        scores = np.einsum("hd,thd->ht", q[i].astype(np.float64), keys) / np.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        errors.append(np.abs(out[i] - np.einsum("ht,thd->hd", weights, values)).max())
    return float(np.max(errors))


def _as_float64(cache: KvCache, table: Any) -> Any:
    """(2, tokens, KV heads, head_dim) of layer 1."""
    stored = cache.data[1][table]
    if cache.shape.kv_dtype == "bf16":
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    part = stored.astype(np.float64)
    if cache.shape.layout == "NHD":
        part = part.swapaxes(2, 3)
    if cache.shape.kv_dtype == "int8":
        part *= cache.scales[1][table][..., None]
    blocks, sides, heads, size, head_dim = part.shape
    return part.transpose(1, 0, 3, 2, 4).reshape(sides, blocks * size, heads, head_dim)
