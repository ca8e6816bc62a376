"""The same work by torch on the CPU, where it is installed: attention over KV that is contiguous already.

Query heads that share a KV head are folded into the query length, which is several times faster than torch's own
grouped attention: the fair comparison.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .memory import Memory
from .probes import Probe

NAME = "torch"


def _torch() -> Any:
    try:
        return import_module("torch")
    except ImportError:
        return None


def torch_decode(memory: Memory, kv_dtype: str, threads: int) -> Probe | None:
    """As many sequences of the same context as the paged kernel has; None without torch, or for integers."""
    torch = _torch()
    if torch is None or kv_dtype in ("int8", "int4"):
        return None
    sizes = memory.sizes
    dtype = torch.float32 if kv_dtype == "float32" else torch.bfloat16
    rows = sizes.context * sizes.kv_heads * sizes.head_dim
    sequences = max(memory.words.nbytes // (2 * rows * dtype.itemsize), 1)
    k, v = torch.randn(2, sequences, sizes.kv_heads, sizes.context, sizes.head_dim).to(dtype)
    q = torch.randn(sequences, sizes.kv_heads, sizes.heads // sizes.kv_heads, sizes.head_dim).to(dtype)
    return Probe(NAME, lambda: _attend(torch, threads, q, k, v, None), 1.0)


def torch_prefill(memory: Memory, new: int, context: int, threads: int) -> Probe | None:
    """`new` tokens of one sequence behind `context`, float32; None without torch."""
    torch = _torch()
    if torch is None:
        return None
    sizes = memory.sizes
    group = sizes.heads // sizes.kv_heads
    k, v = torch.randn(2, 1, sizes.kv_heads, context + new, sizes.head_dim)
    q = torch.randn(1, sizes.kv_heads, group * new, sizes.head_dim)
    mask = torch.ones(new, context + new, dtype=torch.bool).tril(context).repeat(group, 1)
    return Probe(NAME, lambda: _attend(torch, threads, q, k, v, mask), 1.0)


def _attend(torch: Any, threads: int, q: Any, k: Any, v: Any, mask: Any) -> None:
    torch.set_num_threads(threads)
    with torch.inference_mode():
        torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
