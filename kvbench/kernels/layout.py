"""The memory of a paged KV cache: shapes, types, how many bytes, where a slot lies.

A *slot* is the place of one token: block * block_tokens + offset, int64. Block ids in tables are int32. Id 0 is never
handed out by a block pool, but its memory exists, so that an id is an index.

NHD puts the tokens of a block outside its heads, HND inside. Both keep one head's vector of one token contiguous, and
both are addressed by the same four strides (`KvCache.strides`), so kernels do not ask which it is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from numbers import Integral
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .aligned import aligned_zeros
from .packed import row_bytes

LAYOUTS = ("NHD", "HND")
KV_DTYPES = {"float32": np.float32, "bf16": np.uint16, "int8": np.int8, "int4": np.uint8}
"""Name of a KV type -> what it is stored as: bf16 as the upper 16 bits of a float32, int4 as bytes, see `packed`."""

HEAD_DIMS = (64, 80, 96, 128, 256)
MOST_BLOCK_TOKENS = 256


@dataclass(frozen=True)
class KvShape:
    """Sizes of a paged KV cache. Raises UsageError on sizes that no kernel takes."""

    num_layers: int
    num_blocks: int
    """Blocks with an id, 0 included."""
    num_kv_heads: int
    block_tokens: int
    head_dim: int
    layout: str = "NHD"
    kv_dtype: str = "float32"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.startswith(("num_", "block_")) and (not isinstance(value, Integral) or value < 1):
                raise UsageError(f"KV cache: {field.name} = {value!r}; it must be a whole number, 1 or more")
        if self.num_blocks > 2**31:
            raise UsageError(f"KV cache: num_blocks = {self.num_blocks}; block ids have 31 bits; take larger blocks")
        if self.block_tokens > MOST_BLOCK_TOKENS:
            raise UsageError(f"KV cache: block_tokens = {self.block_tokens}; it must be 1 to {MOST_BLOCK_TOKENS}")
        if self.head_dim not in HEAD_DIMS:
            raise UsageError(
                f"KV cache: head_dim = {self.head_dim}; it must be one of {', '.join(map(str, HEAD_DIMS))}"
            )
        if self.layout not in LAYOUTS:
            raise UsageError(f"KV cache: layout = {self.layout!r}; it must be one of {', '.join(LAYOUTS)}")
        if self.kv_dtype not in KV_DTYPES:
            raise UsageError(f"KV cache: kv_dtype = {self.kv_dtype!r}; it must be one of {', '.join(KV_DTYPES)}")

    @property
    def data_shape(self) -> tuple[int, ...]:
        """Axes: layer, block, K = 0 or V = 1, then token and head in the order of the layout, then `row`."""
        inner = (self.block_tokens, self.num_kv_heads)
        if self.layout == "HND":
            inner = (self.num_kv_heads, self.block_tokens)
        return (self.num_layers, self.num_blocks, 2, *inner, self.row)

    @property
    def row(self) -> int:
        """Elements of data that hold one head's vector of one token: its channels, or bytes of int4 with its scales."""
        return row_bytes(self.head_dim) if self.kv_dtype == "int4" else self.head_dim

    @property
    def scales_shape(self) -> tuple[int, ...]:
        """Axes of int8: layer, block, K or V, head, token. Other types have no scales, and one dummy a layer."""
        if self.kv_dtype != "int8":
            return (self.num_layers, 1, 1, 1, 1)
        return (self.num_layers, self.num_blocks, 2, self.num_kv_heads, self.block_tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of data and scales."""
        return prod(self.data_shape) * np.dtype(KV_DTYPES[self.kv_dtype]).itemsize + prod(self.scales_shape) * 4

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """Elements of data from one block, K or V, head, token to the next."""
        row = self.row
        side = row * self.block_tokens * self.num_kv_heads
        if self.layout == "NHD":
            return 2 * side, side, row, row * self.num_kv_heads
        return 2 * side, side, row * self.block_tokens, row

    def allocate(self) -> KvCache:
        """The memory, zeroed; pages that are never written cost nothing."""
        data = aligned_zeros(self.data_shape, KV_DTYPES[self.kv_dtype])
        return KvCache(self, data, aligned_zeros(self.scales_shape, np.float32))


@dataclass(frozen=True, eq=False)
class KvCache:
    """A shape and its memory; both arrays are C-contiguous and written in place."""

    shape: KvShape
    data: np.ndarray[Any, Any]
    """`shape.data_shape`; float32, uint16 (bf16 bits), int8 or uint8 (int4)."""
    scales: np.ndarray[Any, Any]
    """`shape.scales_shape`, float32: an int8 element stands for itself times the scale of its token and head."""

    def __post_init__(self) -> None:
        wanted = np.dtype(KV_DTYPES[self.shape.kv_dtype])
        for name, array, shape, dtype in (
            ("data", self.data, self.shape.data_shape, wanted),
            ("scales", self.scales, self.shape.scales_shape, np.dtype(np.float32)),
        ):
            if array.shape != shape or array.dtype != dtype or not array.flags.c_contiguous:
                raise UsageError(
                    f"KV cache: {name} is {array.dtype} {array.shape}; it must be {dtype} {shape}, C-contiguous"
                )
