"""Prefill attention: chunks of prompts, causal over what is cached and the chunk itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from .aligned import aligned_zeros
from .decode import attend_rows, check_array, check_call, geometry_of
from .layout import KvCache
from .threads import share_out
from .tiled_attention import attend_chunks, plan_chunks, scratch_floats, tokens_at_once

_EXACT_ROWS = 64
"""Rows of one call of the decode kernel: bounds its memory for outputs of splits."""


def paged_prefill(
    q: Any, cache: KvCache, layer: int, tables: Any, row_starts: Any, contexts: Any, out: Any, *, window: int = 0,
    exact: bool = False, threads: int = 1,
) -> None:  # fmt: skip
    """Attention of token i of a chunk over positions 0 to context + i, whose K and V are all in the cache.

    q, out      (rows, query heads, head_dim) float32, C-contiguous: the chunks of all sequences behind each other
    tables      (sequences, blocks) int32
    row_starts  (sequences + 1,) int64: where the rows of a sequence begin, from 0 to the number of rows
    contexts    (sequences,) int64: tokens that were cached before the chunk
    window      attend to the last so many tokens only, the own included; 0 is all
    exact       the decode kernel for every position: the bits are those of `paged_decode`, however a prompt is cut into
                chunks. Else products of tiles, faster and within 1e-4 of it, whose bits depend on the chunk
    raises      UsageError for shapes, types, block ids and lengths that do not fit
    """
    check_call(q, cache, layer, tables, out, window, threads)
    check_array("contexts", contexts, (len(tables),), np.int64)
    check_array("row_starts", row_starts, (len(tables) + 1,), np.int64)
    counts = np.diff(row_starts)
    if row_starts[0] != 0 or row_starts[-1] != len(q) or (counts < 0).any():
        raise UsageError(f"attention: row_starts must rise from 0 to the {len(q)} rows of q; give where chunks begin")
    if (contexts < 0).any():
        raise UsageError("attention: contexts has a number below 0; give how many tokens were cached before")
    if exact:
        row_tables = np.repeat(np.arange(len(tables)), counts)
        lengths = np.arange(len(q)) - np.repeat(row_starts[:-1] - contexts, counts) + 1
        for first in range(0, len(q), _EXACT_ROWS):
            part = slice(first, first + _EXACT_ROWS)
            attend_rows(q[part], cache, layer, tables, row_tables[part], lengths[part], out[part], window, threads)
    elif len(q):
        _attend_tiled(q, cache, layer, tables, row_starts, contexts, out, window, threads)


def _attend_tiled(
    q: Any, cache: KvCache, layer: int, tables: Any, row_starts: Any, contexts: Any, out: Any, window: int, threads: int
) -> None:
    shape, geometry = cache.shape, geometry_of(cache, layer, q.shape[1])
    at_once = tokens_at_once(geometry.group)
    items = np.empty(((len(q) // at_once + len(tables)) * shape.num_kv_heads, 6), np.int64)
    count = plan_chunks(
        tables, row_starts, contexts, shape.block_tokens, shape.num_blocks, shape.num_kv_heads, geometry.group, window,
        items,
    )  # fmt: skip
    if count < 0:
        row, counts = -1 - count, np.diff(row_starts)
        raise UsageError(
            f"attention: sequence {row}: context {contexts[row]} + {counts[row]} tokens do not fit its "
            f"{tables.shape[1]} blocks of {shape.block_tokens}, or a block id is not in 0 to {shape.num_blocks - 1}"
        )
    floats = aligned_zeros((threads, scratch_floats(geometry)), np.float32)

    def share(number: int, first: int, last: int) -> None:
        attend_chunks(q, cache.data, cache.scales, tables, items, first, last, geometry, window, floats[number], out)

    share_out(share, [0, count] if threads == 1 else _cuts(items[:count], threads))


def _cuts(items: Any, threads: int) -> list[int]:
    """Where shares of about as much work begin, and the end."""
    work = np.cumsum(items[:, 2] * (items[:, 3] + items[:, 2] - items[:, 5]))
    inner = np.searchsorted(work, [int(work[-1]) * i // threads for i in range(1, threads)])
    return [0, *(int(cut) for cut in inner), len(items)]
