"""The ways to run a workload for the proof by tokens, and its workloads beside that of the scenario."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..core.requests import I64, Requests

_AMPLE_TOKENS = 20_000
_CHUNK = {
    "vllm": ("scheduler.max_num_batched_tokens=48", "scheduler.max_num_seqs=32"),
    "sglang": ("scheduler.chunked_prefill_size=64",),
}
_WHOLE = {
    "vllm": ("scheduler.max_num_batched_tokens=4096",),
    "sglang": ("scheduler.enable_chunked_prefill=false", "scheduler.max_prefill_tokens=4096"),
}


@dataclass(frozen=True)
class Variation:
    """A way to run the workload. group: those that are compared; changes: keys over the scenario's.

    loses   sequences may fail: what they have said until then counts
    """

    name: str
    changes: tuple[str, ...]
    group: str = "mixed"
    loses: bool = False


def variations(everything: bool) -> list[Variation]:
    """Each factor by itself and a spread of their combinations; everything: the whole product."""
    found = list(_product())
    if not everything:
        found = found[:: max(len(found) // 24, 1)]
    tiers = list(_tiers())[:: 1 if everything else 5]  # 5: every block size, policy and depth is among them
    return [*found, *_forks(), *_others(), *tiers, *_pairs()]


def _product() -> Iterator[Variation]:
    """Presets, caches, block sizes, memory, chunks, overlap."""
    systems = (("vllm", "hash"), ("sglang", "radix"), ("vllm", "radix"), ("vllm", "none"), ("sglang", "none"))
    ways = product((16, 1, 64, 4), ("tight", "ample"), ("chunked", "whole"), ("serial", "overlap"))
    for (block, memory, chunks, overlap), (preset, cache) in product(ways, systems):
        name = f"{preset} {cache} block {block} {memory} {chunks} {overlap}"
        yield Variation(
            name,
            (
                f"preset={preset}",
                f"cache.kind={cache}",
                f"block_tokens={block}",
                f"cache.blocks={_blocks(memory, block)}",
                f"overlap={str(overlap == 'overlap').lower()}",
                *(_CHUNK if chunks == "chunked" else _WHOLE)[preset],
            ),
        )


def _blocks(memory: str, block: int) -> int:
    """tight: little more than the longest request needs, with the block and the token that SGLang wants besides."""
    return _AMPLE_TOKENS // block if memory == "ample" else 464 // block + 2


def _forks() -> Iterator[Variation]:
    """Samples and turns that share tables and copy blocks, against samples that compute everything themselves."""
    for cache, block, memory in product(("none", "hash"), (16, 4), ("ample", "tight")):
        yield Variation(
            f"vllm {cache} block {block} {memory} forks shared",
            (
                "preset=vllm",
                f"cache.kind={cache}",
                "cache.copy_on_write=true",
                f"block_tokens={block}",
                f"cache.blocks={_blocks(memory, block)}",
                *_CHUNK["vllm"],
            ),
        )


def _others() -> Iterator[Variation]:
    """Copies to the host beside the steps; urgent requests that take the memory of what has just been planned."""
    for preset, cache in (("vllm", "hash"), ("sglang", "radix")):
        yield Variation(
            f"{preset} {cache} block 16 tight backup",
            (
                f"preset={preset}",
                f"cache.kind={cache}",
                "overlap=false",
                "cache.backup=true",
                "cache.blocks=40",
                *_CHUNK[preset],
            ),
        )
    urgent = (
        "preset=vllm-0.19",
        "block_tokens=4",
        "scheduler.policy=priority",
        "scheduler.max_num_batched_tokens=256",
        "scheduler.long_prefill_token_threshold=32",
        "scheduler.reserve_full_isl=false",
    )
    yield Variation("vllm none block 4 ample urgent", (*urgent, "cache.kind=none", "cache.blocks=5000"), "urgent")
    yield Variation("vllm hash block 4 tight urgent", (*urgent, "cache.kind=hash", "cache.blocks=149"), "urgent")


def _tiers() -> Iterator[Variation]:
    """Host memory, and files behind it, under every write policy; each tier too small for what it is offered."""
    systems = (("vllm", "hash"), ("sglang", "radix"), ("vllm", "radix"))
    ways = product((16, 1, 64), ("through", "selective", "back"), ("host", "files"), ("serial", "overlap"))
    for (block, write, tiers, overlap), (preset, cache) in product(ways, systems):
        storage = (
            f"tiers.storage.blocks={900 // block}",
            f"tiers.storage.min_prefetch_tokens={block}",
            "tiers.storage.stop=wait_complete",
        )
        yield Variation(
            f"{preset} {cache} block {block} {tiers} {write} {overlap}",
            (
                f"preset={preset}",
                f"cache.kind={cache}",
                f"block_tokens={block}",
                f"cache.blocks={256 // block + 2}",
                f"overlap={str(overlap == 'overlap').lower()}",
                "check=true",
                f"tiers.host.blocks={384 // block}",
                f"tiers.host.write={_WRITES[write]}",
                *(storage if tiers == "files" else ()),
                *_CHUNK[preset],
            ),
            "visits",
        )


def _pairs() -> Iterator[Variation]:
    """Prefill and decode on engines of their own: protocols, grains, hits on either side, what fails or is repeated."""

    def pull(what: str, *changes: str, block: int = 16, group: str = "mixed", decode: str = "1") -> Variation:
        own = ("preset=vllm", "cache.kind=hash", "pd.prefill=1", f"pd.decode={decode}", f"block_tokens={block}")
        fits = (f"cache.blocks={464 // block + 2}", "check=true", *_CHUNK["vllm"])
        return Variation(f"vllm pull block {block} {what}", (*own, *fits, *changes), group)

    def push(what: str, *changes: str, block: int = 16, group: str = "mixed", decode: str = "1") -> Variation:
        own = ("preset=sglang", "cache.kind=radix", "pd.prefill=1", f"pd.decode={decode}", f"block_tokens={block}")
        fits = (f"cache.blocks={640 // block}", "pd.reserved_decode_tokens=16", "check=true", *_CHUNK["sglang"])
        return Variation(f"sglang push block {block} {what}", (*own, *fits, *changes), group)

    for block in (16, 1, 64):
        yield pull("whole", block=block)
        yield push("chunk", "pd.transfer=chunk", block=block)
    yield push("whole", "pd.transfer=whole")
    yield push("layer", "pd.transfer=layer")
    for side in (pull, push):
        yield side("first token sent", "pd.first_token=prefill")
    yield push("retracted", "cache.blocks=34", "pd.reserved_decode_tokens=0")
    yield push("hits", "cache.blocks=60", decode="{engines=1,cache={kind='radix'}}", group="visits")
    yield pull("hits", "cache.blocks=60", group="visits")
    down = "pd.fault=[{kind='link-down',at_s=0.0,for_s=1500.0},{kind='link-down',at_s=4000.0,for_s=500.0}]"
    yield pull("failed", "pd.failure=recompute", down, group="visits")
    yield replace(push("failed", down, group="visits"), loses=True)
    dies = (
        "fleet.event=[{at_s=0.05,engine=1,kind='restart',down_s=0.02},{at_s=0.1,engine=0,kind='restart',down_s=0.02}]",
        "fleet.on_loss=retry",
    )
    for side in (pull, push):
        yield replace(side("repeated", *dies, decode="2", group="burst"), loses=True)


_WRITES = {"through": "write_through", "selective": "write_through_selective", "back": "write_back"}

BASE = Variation("vllm none block 16 ample whole serial", ("preset=vllm", "cache.kind=none", "cache.blocks=1250"))


def urgent_requests(like: Requests) -> Requests:
    """A long prompt, and twelve urgent short ones that come after it has begun."""
    first = np.arange(13) == 0
    prompt = np.where(first, 480, 5 + np.arange(13) % 4)
    return replace(
        _requests(like, np.where(first, 0, 1), prompt, np.where(first, 4, 13), np.arange(13) + 1),
        priority=np.where(first, 9, 0),
    )


def visiting_requests(like: Requests) -> Requests:
    """Seven documents that are asked for again, sooner or later and with more behind them; two at a time, far apart."""
    document = np.array([0, 1, 2, 0, 3, 1, 4, 5, 0, 2, 6, 3, 1, 5, 4, 2, 6, 0, 3, 5])
    visit = np.array([np.count_nonzero(document[:i] == one) for i, one in enumerate(document)])
    prompt = 90 + 13 * document + 11 * visit
    arrival = np.arange(document.size) // 2 * 10**12
    return _requests(like, arrival, prompt, 4 + document % 3, 1 + document)


def burst_requests(like: Requests) -> Requests:
    """The same, all at once: whatever becomes of one of them, no other one quotes it."""
    visits = visiting_requests(like)
    return replace(visits, arrival_ns=visits.arrival_ns * 0)


def _requests(like: Requests, arrival: I64, prompt: I64, output: I64, stream: I64) -> Requests:
    """Those that say nothing else. stream: of the prompt's tokens."""
    n = prompt.size
    zero, none = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    return replace(
        like,
        arrival_ns=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output,
        samples=zero + 1,
        session_id=none,
        turn=zero,
        after=none,
        think_ns=zero,
        tenant=zero,
        namespace=zero,
        priority=zero,
        phase=zero,
        cancel_ns=none,
        output_stream=np.arange(n) + 1000,
        output_start=zero,
        segment_offset=np.arange(n + 1),
        segment_stream=stream,
        segment_start=zero,
        segment_length=prompt,
        token_ids=np.zeros(0, np.int64),
        tenants=("default",),
        namespaces=("",),
        phases=("main",),
        notes=(),
    )
