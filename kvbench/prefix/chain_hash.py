"""The name of a prefix: a chain hash over its blocks, begun by its namespace. 63 bits, never 0."""

from __future__ import annotations

import numpy as np

from ..core.jit import inline


@inline
def chain(parent, key):
    """Hash of a block from its predecessor's hash and its own key; never 0."""
    # Overflow of int64 is undefined in compiled code; mix in uint64 only.
    turned = (np.uint64(parent) << np.uint64(23)) | (np.uint64(parent) >> np.uint64(41))  # a, b is not b, a
    x = (turned ^ np.uint64(key)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(0xA0761D6478BD642F)
    x ^= x >> np.uint64(32)
    x *= np.uint64(0xD6E8FEB86659FD93)
    x ^= x >> np.uint64(29)
    return np.int64(x | np.uint64(1))


@inline
def root_hash(namespace):
    return chain(np.int64(0x5851F42D4C957F2D), namespace + 1)
