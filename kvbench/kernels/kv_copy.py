"""Whole blocks of a paged cache to others, of its own (copy on write) or of another memory, in all layers at once.

Copies are done in order, so one may read what an earlier one wrote. Threads share the layers, whose copies do not
touch each other.
"""

from __future__ import annotations

from dataclasses import replace
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
    return copy_between(cache, cache, pairs, threads)


def copy_between(source: KvCache, target: KvCache, pairs: Any, threads: int = 1) -> int:
    """The same from one cache to another, which differ in their number of blocks alone."""
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype != np.int64 or not pairs.flags.c_contiguous:
        raise UsageError(f"copy of blocks: pairs are {pairs.dtype} {pairs.shape}; they must be int64 (n, 2)")
    shape = target.shape
    if replace(source.shape, num_blocks=shape.num_blocks) != shape:
        raise UsageError(f"copy of blocks: a block of {source.shape} is none of {shape}")
    check_ids("copy of blocks: block", pairs[:, 0], source.shape.num_blocks)
    check_ids("copy of blocks: block", pairs[:, 1], shape.num_blocks)
    origins, targets = _rows(source), _rows(target)
    written = sum(rows.shape[1] for rows in targets) * shape.num_layers * pairs.shape[0]
    past_caches = written >= STREAM_FROM
    for origin, rows in zip(origins, targets, strict=True):
        copy_layers(origin, rows, pairs, shape.num_layers, past_caches, threads)
    return int(written)


def _rows(cache: KvCache) -> list[Any]:
    """(layers * blocks, bytes) uint8 of the data, and of scales where there are any."""
    shape = cache.shape
    arrays = (cache.data, cache.scales) if shape.kv_dtype == "int8" else (cache.data,)
    return [array.reshape(shape.num_layers * shape.num_blocks, -1).view(np.uint8) for array in arrays]


def copy_layers(source: Any, target: Any, pairs: Any, num_layers: int, past_caches: bool, threads: int) -> None:
    """source, target (layers * blocks, bytes) uint8; pairs as checked by `copy_between`."""
    run = _stream_layers if past_caches else _copy_layers
    share(num_layers, threads, lambda first, stop: run(source, target, pairs, num_layers, first, stop))


@entry
def _copy_layers(source, target, pairs, num_layers, first, stop):
    origins, targets = source.shape[0] // num_layers, target.shape[0] // num_layers
    for layer in range(first, stop):
        for i in range(pairs.shape[0]):
            copy_row(source, layer * origins + pairs[i, 0], target, layer * targets + pairs[i, 1])


@entry
def _stream_layers(source, target, pairs, num_layers, first, stop):
    origins, targets = source.shape[0] // num_layers, target.shape[0] // num_layers
    for layer in range(first, stop):
        for i in range(pairs.shape[0]):
            stream_row(source, layer * origins + pairs[i, 0], target, layer * targets + pairs[i, 1])
    finish()
