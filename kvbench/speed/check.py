"""`kvbench kernels --check`: every variant of every kernel is compiled and compared with float64, on small shapes.

Attention is compared with a plain float64 computation on the values that the cache holds, so the error of the KV type
is not in it. Writing, gathering and copying have to give the same bits as NumPy.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..kernels.decode import paged_decode
from ..kernels.kv_copy import copy_blocks
from ..kernels.kv_write import gather, write
from ..kernels.layout import HEAD_DIMS, KV_DTYPES, LAYOUTS, KvCache, KvShape
from ..kernels.prefill import paged_prefill
from ..kernels.quantise import through
from ..report.checks_table import CheckRow
from .probes import Progress

KV_HEADS = 2
GROUPS, BLOCK_TOKENS = (1, 2, 3, 4, 5, 7, 8), (1, 16, 7, 48, 256)
"""Vary along with the variants; their numbers share no factor with those of types and layouts, so all of them meet."""

LENGTHS = (1, 16, 139)
BOUND = 2e-5
"""Largest difference of an output whose values are about 1: a few hundred float32 sums."""

WINDOW = 7
NEW_TOKENS = (1, 1, 100)
PREFILLS = (("prefill", 0, False), ("prefill, window", WINDOW, False), ("prefill, exact", 0, True))
"""Name, window, exact numerics."""

Checked = tuple[str, float, float]
"""Kernel, largest difference, bound."""


def check_kernels(progress: Progress) -> list[CheckRow]:
    """A row for every kernel of every head size, type and layout; none is left out."""
    variants = list(itertools.product(HEAD_DIMS, KV_DTYPES, LAYOUTS))
    rows = []
    for i, (head_dim, kv_dtype, layout) in enumerate(variants):
        block_tokens, group = BLOCK_TOKENS[i % len(BLOCK_TOKENS)], GROUPS[i % len(GROUPS)]
        num_blocks = 1 + len(LENGTHS) * -(-max(LENGTHS) // block_tokens)
        shape = KvShape(2, num_blocks, KV_HEADS, block_tokens, head_dim, layout, kv_dtype)
        for check in (_check_memory, _check_decode, _check_prefill):
            begin = time.perf_counter()
            found = list(check(_Case(shape, group, seed=i)))
            seconds = (time.perf_counter() - begin) / len(found)
            rows += [CheckRow(name, head_dim, kv_dtype, layout, error, bound, seconds) for name, error, bound in found]
        progress(i + 1, len(variants))
    return rows


class _Case:
    """A cache that is NaN (of int8 127) wherever nothing was written, with sequences in blocks of random order."""

    def __init__(self, shape: KvShape, group: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.cache = poisoned(shape)
        self.heads = shape.num_kv_heads * group
        most = -(-max(LENGTHS) // shape.block_tokens)
        ids = 1 + self.rng.permutation(shape.num_blocks - 1)[: most * len(LENGTHS)]
        self.tables = ids.reshape(len(LENGTHS), most).astype(np.int32)
        self.k: list[Any] = []
        self.v: list[Any] = []
        for table, length in zip(self.tables, LENGTHS, strict=True):
            for kept in (self.k, self.v):
                kept.append(self.rng.standard_normal((length, shape.num_kv_heads, shape.head_dim), np.float32))
            write(self.k[-1], self.v[-1], self.cache, 1, slots_of(table, length, shape.block_tokens))

    def held(self, x: Any) -> Any:
        return through(x, self.cache.shape.kv_dtype)


def poisoned(shape: KvShape) -> KvCache:
    """A cache in which reading what was not written shows."""
    cache = shape.allocate()
    cache.data.fill({"float32": np.nan, "bf16": 0x7FC0, "int8": 127, "int4": 0xFF}[shape.kv_dtype])
    cache.scales.fill(np.nan)
    return cache


def slots_of(table: Any, length: int, block_tokens: int) -> Any:
    """(length,) int64: where the tokens of a sequence lie."""
    positions = np.arange(length)
    return table[positions // block_tokens].astype(np.int64) * block_tokens + positions % block_tokens


def exact_attention(q: Any, k: Any, v: Any, context: int, window: int = 0) -> Any:
    """float64 attention of rows at positions context, context + 1, ...: each sees itself and what is before it.

    q        (rows, heads, head_dim); k, v (tokens, kv_heads, head_dim)
    window   how many tokens a row sees at most, itself included; 0 is all
    """
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x.astype(np.float64), group, axis=1) for x in (k, v))
    scores = np.einsum("rhd,thd->rht", q.astype(np.float64), k) / np.sqrt(q.shape[2])
    distance = context + np.arange(len(q))[:, None] - np.arange(len(k))[None, :]
    seen = (distance >= 0) & ((distance < window) | (window == 0))
    scores = np.where(seen[:, None, :], scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    return np.einsum("rht,thd->rhd", weights / weights.sum(axis=2, keepdims=True), v)


def _check_memory(case: _Case) -> Iterator[Checked]:
    cache = case.cache
    wrong = 0
    for table, k, v in zip(case.tables, case.k, case.v, strict=True):
        for found, given in zip(gather(cache, 1, table, len(k)), (k, v), strict=True):
            wrong += int(np.sum(found != case.held(given)))
    yield "write, gather", float(wrong), 0.0
    before = (cache.data.copy(), cache.scales.copy())
    first, second, third = case.tables[:, 0].tolist()
    pairs = np.array([(second, third), (third, 0), (second, second), (first, second)])
    copy_blocks(cache, pairs)
    for array in before if cache.shape.kv_dtype == "int8" else before[:1]:
        for source, target in pairs:
            array[:, target] = array[:, source]
    same = np.array_equal(cache.data, before[0], equal_nan=cache.data.dtype == np.float32)
    yield "copy", float(not (same and np.array_equal(cache.scales, before[1], equal_nan=True))), 0.0


def _check_decode(case: _Case) -> Iterator[Checked]:
    q = case.rng.standard_normal((len(LENGTHS), case.heads, case.cache.shape.head_dim), np.float32)
    lengths = np.array(LENGTHS)
    for name, window in (("decode", 0), ("decode, window", WINDOW)):
        out = np.full_like(q, np.nan)
        paged_decode(q, case.cache, 1, case.tables, lengths, out, window=window)
        yield name, max(_error(case, i, q[i : i + 1], out[i : i + 1], window) for i in range(len(LENGTHS))), BOUND


def _check_prefill(case: _Case) -> Iterator[Checked]:
    """Every sequence's last tokens as one batch: all of the first, one of the second, most of the third."""
    counts = [min(n, length) for n, length in zip(NEW_TOKENS, LENGTHS, strict=True)]
    starts = np.concatenate([[0], np.cumsum(counts)])
    contexts = np.array(LENGTHS) - counts
    q = case.rng.standard_normal((starts[-1], case.heads, case.cache.shape.head_dim), np.float32)
    for name, window, exact in PREFILLS:
        out = np.full_like(q, np.nan)
        paged_prefill(q, case.cache, 1, case.tables, starts, contexts, out, window=window, exact=exact)
        parts = [slice(a, b) for a, b in itertools.pairwise(starts)]
        yield name, max(_error(case, i, q[rows], out[rows], window) for i, rows in enumerate(parts)), BOUND


def _error(case: _Case, sequence: int, q: Any, out: Any, window: int) -> float:
    """Largest difference of the outputs of a sequence's last rows; infinite where one is no number."""
    k, v = case.held(case.k[sequence]), case.held(case.v[sequence])
    difference = np.abs(out - exact_attention(q, k, v, len(k) - len(q), window))
    return float(np.where(np.isnan(difference), np.inf, difference).max())
