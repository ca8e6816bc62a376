"""The proof by tokens: what a request is answered never depends on the cache, the schedule or the memory.

One workload runs on the measured clock under many variations. The tokens of every request, sampled from real logits
that were computed through real block tables, must be those of a plain run: no cache, ample memory, whole prompts, no
overlap. In exact numerics logits are the same bits, so any difference is a fault; in fast numerics the last digits may
differ, and requests that diverge are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..bench.configure import Configured, configure
from ..bench.measured import load_model, paged_model
from ..bench.step_times import step_costs
from ..bench.system import System, build_system
from ..core.config import Config
from ..core.errors import KvbenchError
from ..core.requests import Requests
from ..measured.run import MeasuredRun
from ..measured.worker import PLANTED, Device
from ..offline.warm import prepared
from ..report.tokens_table import Outcome
from ..workload.build import build_workload

SCENARIO = "same-tokens"
KV_DTYPES = ("float32", "bf16", "int8", "int4")
PLANTS = (*PLANTED, "no_fence", "keep_unwritten")
"""Faults that can be planted; each has to make some variation fail."""

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
    """A way to run the workload. group: those that are compared; changes: keys over the scenario's."""

    name: str
    changes: tuple[str, ...]
    group: str = "mixed"


def variations(everything: bool) -> list[Variation]:
    """Each factor by itself and a spread of their combinations; everything: the whole product."""
    found = list(_product())
    if not everything:
        found = found[:: max(len(found) // 24, 1)]
    return [*found, *_forks(), *_others()]


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


BASE = Variation("vllm none block 16 ample whole serial", ("preset=vllm", "cache.kind=none", "cache.blocks=1250"))


class TokenProof:
    """Runs variations of one KV type with one model; compares each with the plain run of its group.

    device_of   makes a device for a system; without it, the model of the configuration with memory of its own
    """

    def __init__(
        self,
        kv_dtype: str,
        model: str = "nano",
        numerics: str = "exact",
        plant: str = "",
        device_of: Callable[[System], Device] | None = None,
    ) -> None:
        self._given = (f"measured.kv_dtype={kv_dtype}", f"measured.model={model}", f"measured.numerics={numerics}")
        self._kv_dtype, self._plant = kv_dtype, plant
        config = self._configured(BASE).config
        self._requests = {"mixed": build_workload(build_system(config).config.tree())[0]}
        self._requests["urgent"] = _urgent(self._requests["mixed"])
        self._device_of = device_of or _devices(config)
        self._plain = {"mixed": self._hashes(BASE, "")[0]}

    @property
    def plain(self) -> list[str]:
        """Hash of every sequence's tokens in the plain run."""
        return self._plain["mixed"]

    def run(self, variation: Variation) -> Outcome:
        try:
            hashes, run = self._hashes(variation, self._plant)
        except KvbenchError as error:
            return Outcome(variation.name, self._kv_dtype, 0, 0, -1, 0, 0.0, 0, 0, 0, str(error))
        plain = self._plain.setdefault(variation.group, hashes)
        differ = [i for i, (a, b) in enumerate(zip(plain, hashes, strict=True)) if a != b]
        c = run.counters()
        return Outcome(
            name=variation.name,
            kv_dtype=self._kv_dtype,
            sequences=len(hashes),
            equal=len(hashes) - len(differ),
            first=differ[0] if differ else -1,
            steps=c.num_steps,
            hit_rate=c.matched_tokens / max(c.admitted_prompt_tokens, 1),
            preemptions=c.preemptions,
            evicted=c.evicted_blocks,
            copied=c.copied_blocks,
        )

    def _configured(self, variation: Variation) -> Configured:
        changes = [("verify tokens", text) for text in ("clock=measured", *self._given, *variation.changes)]
        return configure(SCENARIO, changes=changes)

    def _hashes(self, variation: Variation, plant: str) -> tuple[list[str], MeasuredRun]:
        system = _planted(build_system(self._configured(variation).config), plant)
        config, settings = system.config, system.settings
        costs = step_costs(system)
        device = self._device_of(system)
        requests = self._requests[variation.group]
        planted = plant if plant in PLANTED else ""
        run = prepared(MeasuredRun(requests, settings, costs.tables, device, config["measured.temperature"], planted))
        run.run()
        return run.digests(), run


def _devices(config: Config) -> Callable[[System], Device]:
    model = load_model(config)
    return lambda system: paged_model(system.config, system.settings, model)


def _planted(system: System, plant: str) -> System:
    settings = system.settings
    if plant == "no_fence" and settings.backup_ns_per_block:
        settings = replace(settings, faults=("no_fence",))
    if plant == "keep_unwritten":
        settings = replace(settings, cache=replace(settings.cache, unregister_unwritten=False))
    return replace(system, settings=settings)


def _urgent(like: Requests) -> Requests:
    """A long prompt, and twelve urgent short ones that come after it has begun."""
    n = 13
    first = np.arange(n) == 0
    prompt = np.where(first, 480, 5 + np.arange(n) % 4)
    zero, none = np.zeros(n, np.int64), np.full(n, -1, np.int64)
    output = np.where(first, 4, 13)
    return replace(
        like,
        arrival_ns=np.where(first, 0, 1),
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
        priority=np.where(first, 9, 0),
        phase=zero,
        cancel_ns=none,
        output_stream=np.arange(n) + 1 + n,
        output_start=zero,
        segment_offset=np.arange(n + 1),
        segment_stream=np.arange(n) + 1,
        segment_start=zero,
        segment_length=prompt,
        token_ids=np.zeros(0, np.int64),
        tenants=("default",),
        namespaces=("",),
        phases=("main",),
        notes=(),
    )


def prove(
    kv_dtypes: Sequence[str],
    chosen: Sequence[Variation],
    model: str = "nano",
    numerics: str = "exact",
    plant: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[Outcome], dict[str, int]]:
    """Run every variation under every KV type.

    returns  outcomes, and for each type how many sequences of the plain run say something else than under float32
    """
    outcomes: list[Outcome] = []
    plain: dict[str, list[str]] = {}
    for kv_dtype in kv_dtypes:
        proof = TokenProof(kv_dtype, model, numerics, plant)
        plain[kv_dtype] = proof.plain
        for variation in chosen:
            outcomes.append(proof.run(variation))
            if progress is not None:
                progress(len(outcomes), len(kv_dtypes) * len(chosen))
    reference = plain.get("float32", plain[kv_dtypes[0]])
    return outcomes, {kind: sum(a != b for a, b in zip(reference, said, strict=True)) for kind, said in plain.items()}
