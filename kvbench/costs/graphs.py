"""Sizes at which engines capture graphs. A step that a graph covers pays for the graph's size.

vllm         1, 2, 4, every 8th below 256, every 16th from there, up to min(2 x max_num_seqs, 512) and the token
             budget; by default whole steps of decodes and, in pieces, mixed steps (vllm/config/vllm.py, compilation.py)
vllm-ascend  the same sizes without the doubling (rules of vllm-ascend, August 2026)
sglang       1, 2, 4, 8, 12, every 8th to 256, every 16th to 512, every 32nd, up to a maximum by memory and tp;
             steps of decodes only (python/sglang/srt/server_args.py)

Launches, where a mode is named: a step whose kernels are all launched one by one takes kernels x eager_us at least, one
captured in pieces a replay per layer and the kernels of attention between them, one captured whole a single replay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .devices import GIB, MIB
from .graph_keys import GraphSettings


@dataclass(frozen=True)
class Graphs:
    """What the captured graphs of an engine pad steps to; no sizes: nothing is captured."""

    sizes: tuple[int, ...] = ()
    """Ascending."""
    mixed: bool = False
    """Steps with a prefill chunk are padded too (vLLM's piecewise graphs)."""
    named: bool = False
    """Their launches have the floors below, in place of what the step times hold."""
    decode_floor_ns: float = 0.0
    mixed_floor_ns: float = 0.0
    eager_floor_ns: float = 0.0


NO_GRAPHS = Graphs()

_SGLANG_MOST = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))
"""Device memory below (GiB), largest batch at tp < 4 and from there on; 512 for more memory."""


_ATTENTION_KERNELS = 3
"""Of a layer between two pieces: the KV write, attention, its reduction."""


def chosen_graphs(settings: GraphSettings, own: Graphs, default: Graphs, layers: int, kernels: int) -> Graphs:
    """The graphs of a mode that is named, with the least time that its launches take; else the engine's own.

    own       what the engine captures by its rule; default: of an engine whose rule is none
    kernels   of a step
    """
    sizes = settings.sizes or own.sizes or default.sizes
    if settings.mode == "auto":
        return replace(own, sizes=settings.sizes or own.sizes)
    eager = kernels * settings.eager_us * 1e3
    pieces = (layers + 1) * settings.replay_us * 1e3 + layers * _ATTENTION_KERNELS * settings.eager_us * 1e3
    whole = settings.replay_us * 1e3
    mixed = settings.mode in ("piecewise", "full-and-piecewise")
    return Graphs(
        () if settings.mode == "none" else sizes,
        mixed,
        named=True,
        decode_floor_ns={"none": eager, "piecewise": pieces}.get(settings.mode, whole),
        mixed_floor_ns=pieces if mixed else eager,
        eager_floor_ns=eager,
    )


def graph_bytes(settings: GraphSettings, graphs: Graphs, own: Graphs) -> int:
    """Memory of the captured graphs beyond that of the engine's own, which is in the reserve; may be below 0."""
    kinds = 2 if settings.mode == "full-and-piecewise" or (settings.mode == "auto" and own.mixed) else 1
    own_kinds = 2 if own.mixed else 1
    return int((kinds * len(graphs.sizes) - own_kinds * len(own.sizes)) * settings.mib_per_size * MIB)


def captured_graphs(rule: str, max_seqs: int, max_tokens: int, memory_bytes: int, tp: int) -> Graphs:
    """What an engine of this rule captures. max_seqs, max_tokens: of a step."""
    if rule == "vllm":
        return Graphs(_vllm_sizes(min(2 * max_seqs, 512, max_tokens)), mixed=True)
    if rule == "vllm-ascend":
        return Graphs(_vllm_sizes(min(max_seqs, 512, max_tokens)), mixed=True)
    if rule == "sglang":
        return Graphs(_sglang_sizes(_sglang_most(memory_bytes, tp)))
    return Graphs()


def _vllm_sizes(most: int) -> tuple[int, ...]:
    sizes = (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16))
    return tuple(size for size in sizes if size <= most)


def _sglang_sizes(most: int) -> tuple[int, ...]:
    sizes = (1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, most + 1, 32))
    return tuple(size for size in sizes if size <= most)


def _sglang_most(memory_bytes: int, tp: int) -> int:
    for below, few, many in _SGLANG_MOST:
        if memory_bytes < below * GIB:
            return few if tp < 4 else many
    return 512
