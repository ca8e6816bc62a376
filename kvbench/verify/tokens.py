"""The proof by tokens: what a request is answered never depends on the cache, the schedule or the memory.

One workload runs on the measured clock under many variations. The tokens of every request, sampled from real logits
that were computed through real block tables, must be those of a plain run: no cache, ample memory, whole prompts, no
overlap. In exact numerics logits are the same bits, so any difference is a fault; in fast numerics the last digits may
differ, and requests that diverge are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ..bench.configure import Configured, configure
from ..bench.measured import load_model, paged_model
from ..bench.pair_engines import pair_fleet
from ..bench.step_times import step_costs
from ..bench.system import System, build_system
from ..core.config import Config
from ..core.errors import KvbenchError
from ..engine.settings import EngineSettings
from ..measured.run import MeasuredRun
from ..measured.worker import PLANTED, Device
from ..offline.warm import prepared
from ..report.tokens_table import Outcome
from ..workload.build import build_workload
from .variations import BASE, Variation, burst_requests, urgent_requests, visiting_requests

SCENARIO = "same-tokens"
KV_DTYPES = ("float32", "bf16", "int8", "int4")
PLANTS = (*PLANTED, "no_fence", "keep_unwritten")
"""Faults that can be planted; each has to make some variation fail."""


class TokenProof:
    """Runs variations of one KV type with one model; compares each with the plain run of its group.

    device_of   makes a device for an engine; without it, the model of the configuration with memory of its own
    """

    def __init__(
        self,
        kv_dtype: str,
        model: str = "nano",
        numerics: str = "exact",
        plant: str = "",
        device_of: Callable[[EngineSettings], Device] | None = None,
    ) -> None:
        self._given = (f"measured.kv_dtype={kv_dtype}", f"measured.model={model}", f"measured.numerics={numerics}")
        self._kv_dtype, self._plant = kv_dtype, plant
        config = self._configured(BASE).config
        self._requests = {"mixed": build_workload(build_system(config).config.tree())[0]}
        self._requests["urgent"] = urgent_requests(self._requests["mixed"])
        self._requests["visits"] = visiting_requests(self._requests["mixed"])
        self._requests["burst"] = burst_requests(self._requests["mixed"])
        self._device_of = device_of or _devices(config)
        self._plain = {"mixed": self._hashes(BASE, "")}

    @property
    def plain(self) -> list[str]:
        """Hash of every sequence's tokens in the plain run."""
        return self._plain["mixed"][0]

    def run(self, variation: Variation) -> Outcome:
        try:
            hashes, run = self._hashes(variation, self._plant)
        except KvbenchError as error:
            return Outcome(variation.name, self._kv_dtype, 0, 0, -1, 0, 0.0, 0, 0, 0, 0, str(error))
        if variation.group not in self._plain:
            self._plain[variation.group] = self._hashes(replace(BASE, group=variation.group), "")
        plain, whole = self._plain[variation.group]
        if variation.loses:
            said = run.journal().output_tokens.tolist()
            plain = [whole.texts.digest(seq, n) for seq, n in enumerate(said)]
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
            evicted=int(c.evicted_blocks),
            copied=c.copied_blocks,
            moved=sum(run.moves.moved_bytes.values()) // run.device.block_bytes,
        )

    def _configured(self, variation: Variation) -> Configured:
        changes = [("verify tokens", text) for text in ("clock=measured", *self._given, *variation.changes)]
        return configure(SCENARIO, changes=changes)

    def _hashes(self, variation: Variation, plant: str) -> tuple[list[str], MeasuredRun]:
        system = _planted(build_system(self._configured(variation).config), plant)
        config, settings = system.config, system.settings
        costs = step_costs(system)
        requests = self._requests[variation.group]
        fleet = pair_fleet(system)
        engines = (settings,) if fleet is None else fleet.settings
        run = prepared(
            MeasuredRun(
                requests,
                engines[0],
                costs.tables,
                [self._device_of(one) for one in engines],
                config["measured.temperature"],
                plant if plant in PLANTED else "",
                fleet=fleet,
            )
        )
        run.run()
        return run.digests(), run


def _devices(config: Config) -> Callable[[EngineSettings], Device]:
    model = load_model(config)
    return lambda settings: paged_model(config, settings, model)


def _planted(system: System, plant: str) -> System:
    settings = system.settings
    if plant == "no_fence" and settings.backup_ns_per_block:
        settings = replace(settings, faults=("no_fence",))
    if plant == "keep_unwritten":
        settings = replace(settings, cache=replace(settings.cache, unregister_unwritten=False))
    return replace(system, settings=settings)


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
