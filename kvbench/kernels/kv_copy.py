"""Copy on write: whole blocks of the paged cache to other blocks, in all layers at once.

Copies are done in order, so one may read what an earlier one wrote. Threads share the layers, whose copies do not
touch each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.jit import entry
from .kv_write import check_ids
from .layout import KvCache
from .stream import copy_row, finish, stream_row
from .threads import share

STREAM_FROM = 4 << 20
"""Bytes of a call from which it goes past the caches: smaller ones are read again soon, and the caches hold them."""


def copy_blocks(cache: KvCache, pairs: Any, threads: int = 1) -> int:
    """Copy blocks with their scales, in every layer, one pair after the other. Returns the bytes written.

    pairs    (n, 2) int64: source and target
    raises   UsageError on another shape or type, or a block that is not there; nothing is copied then
    """
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.int64 or not pairs.flags.c_contiguous:
        raise UsageError(f"copy of blocks: pairs are {pairs.dtype} {pairs.shape}; they must be int64 (n, 2)")
    shape = cache.shape
    check_ids("copy of blocks: block", pairs, shape.num_blocks)
    arrays = (cache.data, cache.scales) if shape.kv_dtype == "int8" else (cache.data,)
    blocks = [array.reshape(shape.num_layers * shape.num_blocks, -1).view(np.uint8) for array in arrays]
    written = sum(rows.shape[1] for rows in blocks) * shape.num_layers * pairs.shape[0]
    past_caches = written >= STREAM_FROM
    for rows in blocks:
        copy_layers(rows, pairs, shape.num_layers, past_caches, threads)
    return int(written)


def copy_layers(rows: Any, pairs: Any, num_layers: int, past_caches: bool, threads: int) -> None:
    """rows (layers * blocks, bytes) uint8; pairs as checked by `copy_blocks`."""
    num_blocks = rows.shape[0] // num_layers
    run = _stream_layers if past_caches else _copy_layers
    share(num_layers, threads, lambda first, stop: run(rows, pairs, num_blocks, first, stop))


@entry
def _copy_layers(rows, pairs, num_blocks, first, stop):
    for layer in range(first, stop):
        base = layer * num_blocks
        for i in range(pairs.shape[0]):
            copy_row(rows, base + pairs[i, 0], base + pairs[i, 1])


@entry
def _stream_layers(rows, pairs, num_blocks, first, stop):
    for layer in range(first, stop):
        base = layer * num_blocks
        for i in range(pairs.shape[0]):
            stream_row(rows, base + pairs[i, 0], base + pairs[i, 1])
    finish()
