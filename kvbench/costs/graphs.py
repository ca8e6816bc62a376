"""Sizes at which engines capture graphs. A step that a graph covers pays for the graph's size.

vllm         1, 2, 4, every 8th below 256, every 16th from there, up to min(2 x max_num_seqs, 512) and the token
             budget; by default whole steps of decodes and, in pieces, mixed steps (vllm/config/vllm.py, compilation.py)
vllm-ascend  the same sizes without the doubling (rules of vllm-ascend, August 2026)
sglang       1, 2, 4, 8, 12, every 8th to 256, every 16th to 512, every 32nd, up to a maximum by memory and tp;
             steps of decodes only (python/sglang/srt/server_args.py)
"""

from __future__ import annotations

from .devices import GIB
from .tables import Graphs

_SGLANG_MOST = ((20, 8, 8), (35, 24, 80), (60, 32, 160), (160, 256, 512))
"""Device memory below (GiB), largest batch at tp < 4 and from there on; 512 for more memory."""


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
