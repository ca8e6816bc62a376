"""Faults that people reported of real engines, as scenarios: the right engine passes every check, the broken one fails.

    FAULTS    a scenario of workloads/faults and the key that breaks its engine
    EFFECTS   what was reported as a figure, measured here: two variants and which figures have to rise or fall

The checks know nothing of the faults. Each run gets all of them: the partition of blocks after every step, a shadow of
what lies in every block, the sums of counters and rows, and the tree's count of insertions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..bench.configure import Configured, configure
from ..bench.experts import expert_report, rank_simulation
from ..bench.fleet_engines import fleet_of
from ..bench.run import run
from ..bench.scenarios import scenario_folder
from ..bench.step_times import step_costs
from ..bench.system import build_system
from ..cluster.lockstep_simulation import LockstepSimulation
from ..cluster.simulation import Simulation
from ..core.errors import KvbenchError
from ..engine.integrity import check_integrity
from ..engine.observe import fields_of
from ..engine.probe import drain_copies
from ..metrics.latency import Summary
from ..offline.warm import prepared
from ..prefix.leaf_heap import HITS, LENGTH
from ..scheduler.state_columns import NO_FAULT
from ..workload.build import build_workload
from .shadow import Shadow
from .sums import missing_sum

Progress = Callable[[int, int], None]

RISES, FALLS = "rises", "falls"


@dataclass(frozen=True)
class Fault:
    """name: of the scenario. source: who reported it. broken: the assignment that breaks the engine."""

    name: str
    source: str
    broken: str


@dataclass(frozen=True)
class Effect:
    """Two variants of a scenario, each one or more assignments. expected: (figure, RISES or FALLS) from the first to
    the second."""

    name: str
    source: str
    first: str
    second: str
    expected: tuple[tuple[str, str], ...]


FAULTS = (
    Fault("recomputed-hits", "vLLM #25780", "faults.count_recomputed_hits=true"),
    Fault("refused-hits", "vLLM #43736", "faults.count_refused_hits=true"),
    Fault("unwritten-hit", "vLLM #43569", "cache.unregister_unwritten=false"),
    Fault("same-step-hit", "vLLM #29387", "cache.hit_same_step=true"),
    Fault("cancel-leak", "SGLang #30053, #15439", "faults.leak_on_cancel=true"),
    Fault("retract-pages", "SGLang #4977", "faults.retract_tokens_for_blocks=true"),
    Fault("reuse-under-copy", "SGLang #18803, #24527", "faults.no_fence=true"),
    Fault("tier-load-unheld", "SGLang, HiCache", "faults.load_unheld=true"),
    Fault("tier-write-back-unheld", "SGLang, HiCache", "faults.write_back_unheld=true"),
    Fault("tier-namespace", "SGLang, HiCache: page hashes", "faults.tiers_ignore_namespace=true"),
    Fault("tier-parent", "a prefetch under a parent that is not there", "faults.copy_without_parent=true"),
    Fault("tier-backup-failed", "a failed copy taken as done", "faults.failed_copy_is_done=true"),
    Fault("tier-store-miss", "a miss after host memory was taken", "faults.miss_keeps_memory=true"),
    Fault("tier-short-host", "SGLang, HiCache: short of host pages", "faults.short_prefetch_keeps_key=true"),
    Fault("tier-cancel", "a cancel while KV is loaded", "faults.cancelled_load_frees_twice=true"),
    Fault("overlap-slot", "sglang-jax #982", "faults.free_overlap_slot_twice=true"),
    Fault("push-while-written", "SGLang, pages freed on abort", "faults.free_while_written=true"),
    Fault("lease-during-read", "vLLM, NIXL connector", "faults.lease_over_reads=true"),
    Fault("router-late", "vLLM, NIXL connector, a hand-off after the lease", "faults.lease_over_reads=true"),
    Fault("slru-never-rises", "SGLang, slru", "faults.insertions_never_repeat=true"),
    Fault("eplb-half-switched", "a step between two versions", "eplb.fault=half_switched"),
    Fault("eplb-replicas-differ", "vLLM #32962", "eplb.fault=replicas_differ"),
    Fault("eplb-worker-dies", "a worker that ends", "eplb.fault=worker_dies"),
    Fault("eplb-cancelled", "a move that is cancelled", "eplb.fault=cancelled"),
)

EFFECTS = (
    Effect("long-scan", "SGLang #18843", "cache.eviction=lru", "cache.eviction=slru", (("hit_rate", RISES),)),
    Effect(
        "bootstrap-memory",
        "SGLang, a bootstrap time-out that counts the wait for memory",
        "pd.bootstrap_until=memory",
        "pd.bootstrap_until=connection",
        (("finished", RISES),),
    ),
    Effect(
        "watermark",
        "vLLM #44594",
        "scheduler.watermark=0.0",
        "scheduler.watermark=0.05",
        (("preemptions", FALLS), ("itl p99", FALLS), ("ttft p50", RISES)),
    ),
    Effect(
        "warm-seed",
        "vLLM #54227",
        "cache.state=cold",
        "cache.state=warm",
        (("request_throughput", RISES), ("ttft p50", FALLS)),
    ),
    Effect("eplb-replica-memory", "redundant experts", "eplb.redundant=0", "eplb.redundant=64", (("blocks", FALLS),)),
    Effect(
        "eplb-balanced-slower",
        "SGLang #7879",
        "eplb.mode=off",
        "eplb.mode=dynamic-sync",
        (("tpot mean", RISES), ("e2el p50", RISES)),
    ),
    Effect(
        "router-first-message",
        "a key of the first message alone",
        "router.prefix_tokens=256",
        "router.prefix_tokens=1024",
        (("hit_rate", RISES), ("ttft p99", FALLS)),
    ),
    Effect(
        "router-long-prompts",
        "load counted in requests",
        "router.load_by=requests",
        "router.load_by=queued-tokens",
        (("ttft p99", FALLS),),
    ),
    Effect(
        "router-hot-prefix",
        "affinity without a bound",
        "router.balance_abs=1e9",
        "router.balance_abs=8",
        (("ttft p99", FALLS), ("request_throughput", RISES)),
    ),
    Effect(
        "router-restart",
        "belief after a restart",
        "router.hears_loss=false",
        "router.hears_loss=true",
        (("hit_rate", RISES), ("predicted_error", FALLS)),
    ),
    Effect(
        "router-scale-out",
        "sessions stay after scale-out",
        "router.policy=session router.assign=sticky",
        "router.policy=predicted-ttft",
        (("load_cv", FALLS), ("ttft p99", FALLS)),
    ),
    Effect(
        "tier-store-outage",
        "a store that is gone for a while",
        "links.storage.out_at_s=0.2",
        "links.storage.out_at_s=-1",
        (("hit_rate", RISES), ("storage_written_blocks", RISES)),
    ),
    Effect(
        "tier-prefetch-start",
        "SGLang, HiCache: a prefetch from a wrong start",
        "faults.prefetch_from_wrong_start=true",
        "faults.prefetch_from_wrong_start=false",
        (("prefetch_asked", RISES), ("hit_rate_storage", RISES)),
    ),
    Effect(
        "tier-persisted-in-part",
        "a first-seen prefix persisted in part",
        "faults.prefix_persisted_in_part=true",
        "faults.prefix_persisted_in_part=false",
        (("hit_rate_host", RISES), ("host_written_blocks", RISES)),
    ),
    Effect("router-two", "own counts alone", "router.load=own", "router.load=reported", (("ttft p99", FALLS),)),
)


@dataclass(frozen=True)
class FaultVerdict:
    """right, broken: the first complaint about each variant, "" if there was none."""

    fault: Fault
    right: str
    broken: str

    @property
    def passed(self) -> bool:
        return not self.right and bool(self.broken)


@dataclass(frozen=True)
class Figure:
    """One figure of an effect under both variants."""

    effect: Effect
    name: str
    direction: str
    first: float
    second: float

    @property
    def passed(self) -> bool:
        return self.second > self.first if self.direction == RISES else self.second < self.first


def verify_faults(progress: Progress = lambda done, total: None) -> tuple[list[FaultVerdict], list[Figure]]:
    """Run every scenario in both variants. UsageError: a scenario file is missing or wrong."""
    total = len(FAULTS) + len(EFFECTS)
    verdicts: list[FaultVerdict] = []
    for fault in FAULTS:
        progress(len(verdicts), total)
        right = first_complaint(_configured(fault.name))
        verdicts.append(FaultVerdict(fault, right, first_complaint(_configured(fault.name, fault.broken))))
    figures: list[Figure] = []
    for number, effect in enumerate(EFFECTS):
        progress(len(FAULTS) + number, total)
        figures += measure(effect)
    progress(total, total)
    return verdicts, figures


def _configured(name: str, *changes: str) -> Configured:
    path = scenario_folder() / "faults" / f"{name}.toml"
    return configure(str(path), changes=[(f"fault {name}", change) for change in changes])


# ---------------------------------------------------------------- one engine under every check


def first_complaint(configured: Configured) -> str:
    """Run an engine to its end or to the first thing that is wrong with it."""
    system = build_system(configured.config, record_steps=True)
    requests, _ = build_workload(system.config.tree())
    if system.config["dp"] > 1:
        return _ranks_complaint(rank_simulation(system, requests, step_costs(system)))
    fleet = fleet_of(system, requests)
    if fleet is not None:
        return _fleet_complaint(Simulation(requests, fleet.members[0].settings, fleet.members[0].tables, fleet))
    simulation = prepared(Simulation(requests, system.settings, step_costs(system).tables))
    # A model whose layers carry a state must not read in a step what that step writes; see cache.hit_same_step.
    shadow = (
        None
        if system.settings.tiers.on
        else Shadow(simulation, same_step=configured.given.get("cache", {}).get("hit_same_step") is None)
    )
    try:
        return _stepped(simulation, shadow) or missing_sum(simulation) or _uncounted(simulation)
    except KvbenchError as error:
        return str(error)


def _fleet_complaint(simulation: Simulation) -> str:
    """Of prefill and decode engines: each after every step (check = true), and what is on its way between them."""
    try:
        simulation.run()
    except KvbenchError as error:
        return str(error)
    return ""


def _ranks_complaint(simulation: LockstepSimulation) -> str:
    """Of ranks that step together: their engines after every step, waits that do not add up, stale maps."""
    try:
        while not simulation.advance(max_steps=1):
            for engine in simulation.engines:
                check_integrity(engine)
    except KvbenchError as error:
        return str(error)
    totals = simulation.barrier()
    if np.any(totals.wait_ns != totals.step_ns - totals.busy_ns):
        return "waits of the ranks are not what their steps leave of the instance's"
    return next(iter(expert_report(simulation).notes), "")


def _stepped(simulation: Simulation, shadow: Shadow | None) -> str:
    done, steps = False, 0
    while not done:
        done = simulation.advance(max_steps=1)
        if simulation.engine.fault != NO_FAULT:
            return simulation.fault()
        check_integrity(simulation.engine)
        if shadow is not None and simulation.engine.num_steps > steps:  # with tiers the engine's own looks on
            steps += 1
            wrong = shadow.step(steps)
            if wrong:
                return wrong
    drain_copies(simulation.engine)
    return ""


def _uncounted(simulation: Simulation) -> str:
    """Radix: prefixes that requests hit have been inserted again by them when they ended, and that counts."""
    if simulation.settings.cache.kind != "radix":
        return ""
    nodes = fields_of(fields_of(simulation.engine)["tree"])["nodes"]
    most = int(nodes[nodes[:, LENGTH] > 0, HITS].max(initial=0))
    hits = int(np.count_nonzero(simulation.journal().cached_tokens))
    return f"{hits} requests hit the tree, and no node counts more than {most} insertions" if hits and most < 2 else ""


# ---------------------------------------------------------------- effects


def measure(effect: Effect) -> list[Figure]:
    """The figures of an effect under both variants."""
    first, second = (_summary(effect.name, variant) for variant in (effect.first, effect.second))
    return [Figure(effect, name, to, _figure(first, name), _figure(second, name)) for name, to in effect.expected]


@cache
def _summary(name: str, variant: str) -> Summary:
    return run(_configured(name, *variant.split())).record.summary


def _figure(summary: Summary, name: str) -> float:
    metric, _, point = name.partition(" ")
    value = getattr(summary.latencies[metric], point) if point else summary[metric]
    if value is None:
        raise KvbenchError(f"the figure {name} is missing; the scenario is too small for it")
    return float(value)
