"""What a layer does beside attention: linear layers, norms, gates; and choosing a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels import limits
from ..kernels.elementwise import rms_norm, swiglu
from ..kernels.linear import multiply, pack
from ..kernels.sampling import draw, greatest
from .copies import product_probe, read_probe
from .entries import Entry
from .memory import Memory
from .probes import Probe

DECODE_ROWS = 8
"""Rows up to which a linear layer is counted by the weights that it reads, and not by its operations."""


def dense_entries(memory: Memory, threads: Sequence[int]) -> list[Entry]:
    """Linear layers with one and with all threads, the rest with one: it runs on one."""
    sizes = memory.sizes
    width = sizes.heads * sizes.head_dim
    packed = pack(_random(width, width))
    entries = []
    for n in threads:
        read, sgemm = read_probe(memory, n), product_probe(sizes, n, n == max(threads))
        for rows in (1, DECODE_ROWS, sizes.dense_rows):
            x, y = _random(rows, width), np.empty((rows, width), np.float32)
            name = f"{rows:,} x {width:,} by {width:,}"
            run = lambda x=x, y=y, n=n: multiply(x, packed, y, n)  # noqa: E731
            if rows <= DECODE_ROWS:
                entries.append(Entry("linear, weights", "GB/s", Probe(name, run, packed.nbytes), n, read))
            else:
                entries.append(Entry("linear", "GFLOP/s", Probe(name, run, 2 * rows * width**2), n, sgemm))
    return sorted(entries, key=lambda entry: entry.group, reverse=True) + _rest(memory, width)


def _rest(memory: Memory, width: int) -> list[Entry]:
    sizes = memory.sizes
    x, out = _random(sizes.dense_rows, width), np.empty((sizes.dense_rows, width), np.float32)
    gate_up, weight = _random(sizes.dense_rows, 2 * width), np.ones(width, np.float32)
    logits, keys = _random(DECODE_ROWS, sizes.vocabulary), np.arange(DECODE_ROWS, dtype=np.uint64)
    shape, tokens = f"{sizes.dense_rows:,} x {width:,}", f"{DECODE_ROWS} x {sizes.vocabulary:,}"
    probes = (
        (Probe(f"RMS norm {shape}", lambda: rms_norm(x, weight, 1e-5, out), x.nbytes), _copy_of(x)),
        (Probe(f"SwiGLU {shape}", lambda: swiglu(gate_up, out), gate_up.nbytes), _copy_of(gate_up)),
        (Probe(f"argmax {tokens}", lambda: greatest(logits), logits.nbytes), _read_of(logits)),
        (Probe(f"sampling {tokens}", lambda: draw(logits, 1.0, keys), logits.nbytes), _read_of(logits)),
    )
    return [Entry("element by element", "GB/s", probe, 1, limit) for probe, limit in probes]


def _copy_of(x: Any) -> Probe:
    """memcpy of as much as one kernel is given: what fits into a cache is measured beside what does."""
    source = x.reshape(-1)
    target = np.zeros_like(source)
    return Probe("memcpy", lambda: limits.copy(target, source, 1), source.nbytes)


def _read_of(x: Any) -> Probe:
    words = x.reshape(-1).view(np.int64)
    return Probe("read", lambda: limits.read(words, 1), words.nbytes)


def _random(*shape: int) -> Any:
    return np.random.default_rng(15).standard_normal(shape, np.float32)
