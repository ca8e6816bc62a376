"""Decode attention: what every sequence of a batch asks of its own cached tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import UsageError
from .layout import KvCache
from .split_attention import (
    SPLIT_TOKENS,
    Geometry,
    attend,
    combine,
    in_lanes,
    part_floats,
    plan,
    scratch_floats,
    scratch_integers,
)
from .threads import share_out
from .tiles import padded_group


def paged_decode(
    q: Any, cache: KvCache, layer: int, tables: Any, lengths: Any, out: Any, *, window: int = 0, threads: int = 1
) -> None:
    """out[b, h] = softmax(q[b, h] K / sqrt(head_dim)) V over the tokens 0 to lengths[b] of row b.

    q, out    (rows, query heads, head_dim) float32, C-contiguous; query heads are a multiple of the KV heads, and
              neighbours share one. out is written, zero for a row of length 0
    tables    (rows, blocks) int32: block ids of the tokens in order; what lies behind the length is not read
    lengths   (rows,) int64, the token that asks included
    window    attend to the last so many tokens only; 0 is all
    threads   shares of the work; the bits of a row depend on its own query, KV and length alone
    raises    UsageError for shapes, types, block ids and lengths that do not fit
    """
    check_call(q, cache, layer, tables, out, window, threads)
    check_array("lengths", lengths, (len(q),), np.int64)
    if len(tables) != len(q):
        raise UsageError(f"attention: {len(tables)} block tables for {len(q)} rows; give one a row")
    attend_rows(q, cache, layer, tables, np.arange(len(q)), lengths, out, window, threads)


def attend_rows(
    q: Any, cache: KvCache, layer: int, tables: Any, row_tables: Any, lengths: Any, out: Any, window: int, threads: int
) -> None:
    """`paged_decode` of checked arrays, where row r has the table row_tables[r] (int64)."""
    shape = cache.shape
    if len(q) == 0:
        return
    geometry = geometry_of(cache, layer, q.shape[1])
    most_splits = tables.shape[1] * shape.block_tokens // SPLIT_TOKENS + 1
    items = np.empty((len(q) * most_splits, 6), np.int64)
    count = plan(tables, lengths, row_tables, shape.block_tokens, shape.num_blocks, window, items)
    if count < 0:
        row = -1 - count
        raise UsageError(
            f"attention: row {row}: its length {lengths[row]} is below 0 or past its table of {tables.shape[1]} blocks "
            f"of {shape.block_tokens}, or a block id is not in 0 to {shape.num_blocks - 1}"
        )
    heads = shape.num_kv_heads * padded_group(geometry.group)
    number = int(items[count - 1, 5] + items[count - 1, 1]) if count else 0
    parts = np.empty(part_floats(geometry, number), np.float32)
    stats = np.empty((number, 2, in_lanes(heads)), np.float32)

    def share(_: int, first: int, last: int) -> None:
        floats = np.zeros(scratch_floats(geometry), np.float32)
        integers = np.zeros(scratch_integers(geometry), np.int64)
        attend(
            q, cache.data, cache.scales, tables, lengths, items, first, last, geometry, window, floats, integers, parts,
            stats,
        )  # fmt: skip

    share_out(share, [0, count] if threads == 1 else _cuts(items[:count], threads))
    combine(parts, stats, items, count, geometry, out)


def _cuts(items: Any, threads: int) -> list[int]:
    """Where shares of about as much work begin, and the end."""
    tokens = np.cumsum((items[:, 4] - items[:, 3]) * items[:, 1])
    total = int(tokens[-1]) if len(tokens) else 0
    inner = np.searchsorted(tokens, [total * i // threads for i in range(1, threads)])
    return [0, *(int(cut) for cut in inner), len(items)]


def geometry_of(cache: KvCache, layer: int, query_heads: int) -> Geometry:
    """Where things of one layer lie, for compiled code."""
    shape = cache.shape
    block, side, head, token = shape.strides
    return Geometry(
        layer=layer * shape.num_blocks * block,
        block=block,
        side=side,
        head=head,
        token=token,
        block_tokens=shape.block_tokens,
        kv_heads=shape.num_kv_heads,
        group=query_heads // shape.num_kv_heads,
        head_dim=shape.head_dim,
        scale_layer=layer * (cache.scales.size // shape.num_layers),
        scaled=int(shape.kv_dtype == "int8"),
    )


def check_call(q: Any, cache: KvCache, layer: int, tables: Any, out: Any, window: int, threads: int) -> None:
    """What all attention kernels ask of their arguments, before raw addresses are made of them."""
    shape = cache.shape
    if q.ndim != 3 or q.shape[2] != shape.head_dim or q.shape[1] == 0 or q.shape[1] % shape.num_kv_heads:
        raise UsageError(
            f"attention: q has shape {q.shape}; it must be (rows, a multiple of {shape.num_kv_heads} heads, "
            f"{shape.head_dim})"
        )
    check_array("q", q, q.shape, np.float32)
    check_array("out", out, q.shape, np.float32)
    if tables.ndim != 2:
        raise UsageError(f"attention: tables has shape {tables.shape}; it must be (rows, blocks)")
    check_array("tables", tables, tables.shape, np.int32)
    if not out.flags.writeable:
        raise UsageError("attention: out is read-only; give an array that can be written")
    if not 0 <= layer < shape.num_layers:
        raise UsageError(f"attention: layer {layer}; the cache has layers 0 to {shape.num_layers - 1}")
    if window < 0 or threads < 1:
        raise UsageError(f"attention: window {window}, threads {threads}; they must be 0 or more, and 1 or more")


def check_array(name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    """Exactly this shape and type, C-contiguous."""
    if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
        raise UsageError(
            f"attention: {name} is {array.dtype} {array.shape}; it must be {np.dtype(dtype)} {shape}, C-contiguous"
        )
