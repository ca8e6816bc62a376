"""Causal attention of prompt positions over a paged cache, each taken as a row of decode."""

from __future__ import annotations

from typing import Any

import numpy as np

from .decode import paged_decode
from .layout import KvCache


def paged_prefill(
    q: Any, cache: KvCache, layer: int, tables: Any, row_starts: Any, contexts: Any, out: Any, *,
    window: int = 0, exact: bool = False, threads: int = 1,
) -> None:  # fmt: skip
    """q, out (T, Hq, D) float32; tables (R, m) int32; row_starts (R + 1,), contexts (R,) int64."""
    counts = np.diff(row_starts)
    row = np.repeat(np.arange(len(contexts)), counts)
    lengths = np.arange(len(q)) - row_starts[row] + contexts[row] + 1
    paged_decode(q, cache, layer, np.ascontiguousarray(tables[row]), lengths, out, window=window, threads=threads)
