"""Experiments on kernels alone: block size, paged or contiguous, layout, KV type. Each is one table and one picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..bench.machine import load_average
from ..core.errors import UsageError
from ..kernels.decode import paged_decode
from ..kernels.kv_write import write
from ..kernels.layout import KV_DTYPES, LAYOUTS, KvCache, KvShape
from ..kernels.quantise import loss
from ..kernels.threads import check_threads
from ..report.experiment_table import Experiment
from ..report.kernels_table import share, short
from .answers import divergences
from .attention import decode_probe, prefill_probe, token_bytes
from .bounds import bounds
from .check import exact_attention, slots_of
from .copies import read_probe, write_probe
from .doubts import doubts
from .memory import Memory, shuffled_tables
from .peer import torch_decode
from .probes import Probe, Progress, Timing, time_rounds
from .sizes import Sizes
from .streams import streams

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

Measure = Callable[[Sequence[Probe]], dict[Probe, Timing]]


def run_experiment(name: str, threads: int, sizes: Sizes, progress: Progress) -> Experiment:
    """One of EXPERIMENTS. UsageError: another name, threads."""
    if name not in EXPERIMENTS:
        raise UsageError(f"--experiment {name}: take one of {', '.join(EXPERIMENTS)}")
    counts = sorted({1, check_threads(threads)})
    load = load_average()
    spreads: dict[str, float] = {}

    def measure(probes: Sequence[Probe]) -> dict[Probe, Timing]:
        timings = time_rounds(list(dict.fromkeys(probes)), 3 * sizes.seconds, progress)
        spreads.update({f"{probe.name} ({i})": timing.spread for i, (probe, timing) in enumerate(timings.items())})
        return timings

    found = EXPERIMENTS[name](Memory(sizes), counts, measure)
    return replace(found, warnings=doubts(spreads, load, sizes))


def _block_size(memory: Memory, threads: Sequence[int], measure: Measure) -> Experiment:
    """What small blocks cost in time, and large ones in slots that stay empty behind the last token."""
    sample = memory.cache("NHD", "bf16", max(BLOCK_SIZES))
    lengths = _ragged_lengths(memory, sample)
    cells: dict[tuple[int, int], Probe] = {}
    waste = []
    for block_tokens in BLOCK_SIZES:
        cache = memory.cache("NHD", "bf16", block_tokens)
        tables = _ragged_tables(cache, lengths)
        waste.append(1 - lengths.sum() / (-(-lengths // block_tokens) * block_tokens).sum())
        for n in threads:
            cells[block_tokens, n] = decode_probe(memory, cache, tables, n, lengths)
    reads = {n: read_probe(memory, n) for n in threads}
    timings = measure([*cells.values(), *reads.values()])
    rows = []
    for block_tokens, empty in zip(BLOCK_SIZES, waste, strict=True):
        found = {n: timings[cells[block_tokens, n]] for n in threads}
        rows.append([str(block_tokens), *_time_cells(found, timings, reads), f"{100 * empty:.2f} %"])
    lines = [(f"time, {n} thr.", _over_best([timings[cells[b, n]].seconds for b in BLOCK_SIZES])) for n in threads]
    return Experiment(
        name="block size: kernel time and tail waste",
        held=f"Paged decode, NHD bf16, {len(lengths)} sequences of 1 to {lengths.max():,} tokens (mean "
        f"{lengths.mean():,.0f}), blocks in random order. Empty: slots of last blocks that hold no token.",
        header=["block tokens", *_time_header(threads), "empty slots"],
        rows=rows,
        x_label="tokens per block",
        x=BLOCK_SIZES,
        y_label="% over the least",
        lines=[*lines, ("slots", [float(100 * (1 / (1 - empty) - 1)) for empty in waste])],
    )


def _ragged_lengths(memory: Memory, cache: KvCache) -> Any:
    """Lengths from 1 to half of the longest context, as many as fit into the cache's blocks."""
    drawn = np.random.default_rng(11).integers(1, memory.sizes.context // 2 + 1, 1 << 12)
    used = np.cumsum(-(-drawn // cache.shape.block_tokens))
    return drawn[: max(int(np.searchsorted(used, cache.shape.num_blocks - 1)), 1)].astype(np.int64)


def _ragged_tables(cache: KvCache, lengths: Any) -> Any:
    """(sequences, most blocks) int32 of random blocks; places behind a sequence's last block are 0."""
    needed = -(-lengths // cache.shape.block_tokens)
    order = np.random.default_rng(12).permutation(cache.shape.num_blocks).astype(np.int32)
    tables = np.zeros((len(lengths), int(needed.max())), np.int32)
    tables[np.arange(tables.shape[1]) < needed[:, None]] = order[: needed.sum()]
    return tables


def _over_best(seconds: Sequence[float]) -> list[float]:
    return [100 * (s / min(seconds) - 1) for s in seconds]


def _time_header(threads: Sequence[int]) -> list[str]:
    return [text for n in threads for text in (f"ms, {n} thr.", "of read")]


def _time_cells(found: Mapping[int, Timing], timings: Mapping[Probe, Timing], reads: Mapping[int, Probe]) -> list[str]:
    cells = []
    for n, timing in found.items():
        cells += [short(timing.seconds * 1e3), share(timing.rate / timings[reads[n]].rate)]
    return cells


def _paged_contiguous(memory: Memory, threads: Sequence[int], measure: Measure) -> Experiment:
    """What the block table costs: the same kernel on blocks in random order and in memory's order, and torch."""
    blocks = (1, 16, 256)
    cells: dict[tuple[str, int], list[Probe]] = {}
    for n in threads:
        for order in ("random", "in memory's order"):
            cells[order, n] = []
            for block_tokens in blocks:
                cache = memory.cache("NHD", "bf16", block_tokens)
                tables = shuffled_tables(cache, memory.sizes.context)
                ordered = np.arange(tables.size, dtype=np.int32).reshape(tables.shape)
                cells[order, n].append(decode_probe(memory, cache, tables if order == "random" else ordered, n))
    reads = {n: read_probe(memory, n) for n in threads}
    peers = {n: peer for n in threads if (peer := torch_decode(memory, "bf16", n)) is not None}
    timings = measure([*(p for probes in cells.values() for p in probes), *reads.values(), *peers.values()])
    rows = []
    for (order, n), probes in cells.items():
        for block_tokens, probe in zip(blocks, probes, strict=True):
            timing = timings[probe]
            figures = [
                short(timing.seconds * 1e3),
                short(timing.rate / 1e9),
                share(timing.rate / timings[reads[n]].rate),
            ]
            rows.append([f"paged, blocks {order}", str(block_tokens), str(n), *figures])
    work = next(iter(cells.values()))[0].work
    for n, peer in peers.items():
        rate = work / timings[peer].seconds
        figures = [short(timings[peer].seconds * 1e3), short(rate / 1e9), share(rate / timings[reads[n]].rate)]
        rows.append(["torch, contiguous KV", "-", str(n), *figures])
    return Experiment(
        name="paged and contiguous KV",
        held=f"Decode, NHD bf16, {next(iter(cells.values()))[0].name.rpartition(', ')[2]} tokens. torch: "
        "scaled_dot_product_attention with the query heads of a KV head folded, where it is installed.",
        header=["KV", "block tokens", "thr.", "ms", "GB/s", "of read"],
        rows=rows,
        x_label="tokens per block",
        x=blocks,
        y_label="GB/s",
        lines=[
            *((f"{order}, {n} thr.", [timings[p].rate / 1e9 for p in probes]) for (order, n), probes in cells.items()),
            *((f"torch, {n} thr.", [work / timings[p].seconds / 1e9] * len(blocks)) for n, p in peers.items()),
        ],
    )


def _layout(memory: Memory, threads: Sequence[int], measure: Measure) -> Experiment:
    """Tokens outside the heads of a block (NHD) or inside (HND)."""
    cells: dict[tuple[str, int], dict[str, Probe]] = {}
    for n in threads:
        for layout in LAYOUTS:
            for kv_dtype in KV_DTYPES:
                cache = memory.cache(layout, kv_dtype, 16)
                tables = shuffled_tables(cache, memory.sizes.context)
                cells.setdefault((f"decode {kv_dtype}", n), {})[layout] = decode_probe(memory, cache, tables, n)
            new, context = memory.sizes.prefill[1]
            probe = prefill_probe(memory, new, context, n, layout=layout)
            cells.setdefault((f"prefill float32, {new} at {context}", n), {})[layout] = probe
            for order in ("in order", "random"):
                probe = write_probe(memory, layout, "float32", order, n)
                cells.setdefault((f"write float32, slots {order}", n), {})[layout] = probe
    timings = measure([probe for pair in cells.values() for probe in pair.values()])
    ms = {key: [timings[pair[layout]].seconds * 1e3 for layout in LAYOUTS] for key, pair in cells.items()}
    return Experiment(
        name="layout of a block",
        held=f"Blocks of 16 tokens in random order, {memory.sizes.kv_heads} KV heads of {memory.sizes.head_dim}; the "
        "same bytes in both layouts.",
        header=["kernel", "thr.", *(f"{layout} ms" for layout in LAYOUTS), "HND / NHD"],
        rows=[[name, str(n), *map(short, pair), f"{pair[1] / pair[0]:.2f}"] for (name, n), pair in ms.items()],
        x_label=f"kernel, {threads[-1]} threads",
        x=[name.replace(" float32, ", "\n") for name, n in ms if n == threads[-1]],
        y_label="ms",
        lines=[
            (layout, [pair[i] for (_, n), pair in ms.items() if n == threads[-1]]) for i, layout in enumerate(LAYOUTS)
        ],
    )


def _kv_type(memory: Memory, threads: Sequence[int], measure: Measure) -> Experiment:
    """What fewer bits save in time, and what they cost in error: of the values, and of what attention makes of them."""
    full = memory.cache("NHD", "float32", 16)
    tables = shuffled_tables(full, memory.sizes.context)
    caches = {kv_dtype: memory.cache("NHD", kv_dtype, 16) for kv_dtype in KV_DTYPES}
    cells = {(d, n): decode_probe(memory, cache, tables, n) for d, cache in caches.items() for n in threads}
    timings = measure(list(cells.values()))
    tokens = len(tables) * min(memory.sizes.context, tables.shape[1] * 16)
    changed = divergences(caches, memory.sizes)
    rows, speeds = [], []
    for kv_dtype, cache in caches.items():
        seconds = [timings[cells[kv_dtype, n]].seconds for n in threads]
        plain, outliers = (_attention_error(kv_dtype, factor) for factor in (1.0, OUTLIER))
        lost = loss(_values(1.0), kv_dtype)
        figures = [f"{x:.1e}" for x in (lost.relative_rms, lost.relative_greatest, plain, outliers)]
        figures.append(share(changed[kv_dtype].kept))
        rows.append([kv_dtype, str(token_bytes(cache)), *(short(tokens / s / 1e6) for s in seconds), *figures])
        speeds.append([tokens / s / 1e6 for s in seconds])
    return Experiment(
        name="KV type: speed and error",
        held=f"Decode, NHD, blocks of 16, {len(tables)} sequences of {memory.sizes.context:,} tokens, the same for all "
        "types. Errors are relative to the RMS of what float32 KV gives; values are normal, once with two channels of "
        f"the keys {OUTLIER:.0f} times as large. Answers: share of their tokens before the first that is not that of "
        "bf16, greedy, of a small model with random weights (many near ties: a trained one holds longer).",
        header=[
            "type",
            "B/token",
            *(f"Mtok/s, {n} thr." for n in threads),
            "KV rms",
            "KV most",
            "out rms",
            "outliers",
            "answers",
        ],
        rows=rows,
        x_label="KV type",
        x=list(caches),
        y_label="million cached tokens read per second",
        lines=[(f"{n} threads" if n > 1 else "1 thread", [s[i] for s in speeds]) for i, n in enumerate(threads)],
    )


OUTLIER = 8.0
_KV_ERRORS = ("KV rms", "KV most", "out rms", "outliers", "answers")
_LENGTH, _HEADS, _DIM = 512, 4, 64


def _values(factor: float) -> Any:
    """(2, tokens, heads, dim) float32 keys and values; two channels of the keys are `factor` times as large."""
    kv = np.random.default_rng(13).standard_normal((2, _LENGTH, _HEADS, _DIM), np.float32)
    kv[0, :, :, :2] *= np.float32(factor)
    return kv


def _attention_error(kv_dtype: str, factor: float) -> float:
    """RMS of the difference to float64 attention on the float32 values, over its RMS."""
    k, v = _values(factor)
    shape = KvShape(1, _LENGTH // 16, _HEADS, 16, _DIM, "NHD", kv_dtype)
    cache, table = shape.allocate(), np.arange(_LENGTH // 16, dtype=np.int32)
    write(k, v, cache, 0, slots_of(table, _LENGTH, 16))
    q = np.random.default_rng(14).standard_normal((16, 4 * _HEADS, _DIM), np.float32)
    tables = np.ascontiguousarray(np.broadcast_to(table, (len(q), table.size)))
    out = np.empty_like(q)
    paged_decode(q, cache, 0, tables, np.full(len(q), _LENGTH), out)
    wanted = np.concatenate([exact_attention(row[None], k, v, _LENGTH - 1) for row in q])
    return float(np.sqrt(np.mean((out - wanted) ** 2) / np.mean(wanted**2)))


EXPERIMENTS: dict[str, Callable[[Memory, Sequence[int], Measure], Experiment]] = {
    "block-size": _block_size,
    "paged-contiguous": _paged_contiguous,
    "layout": _layout,
    "kv-type": _kv_type,
    "streams": streams,
    "bounds": bounds,
}
