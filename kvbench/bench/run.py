"""One run: configuration -> workload -> system -> result. The Python face of kvbench.

from kvbench.bench.configure import configure
from kvbench.bench.run import run
result = run(configure("chat", changes=[("code", "cache.blocks=20000")]))
result.record.summary.latencies["ttft"].p99
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from ..cluster.simulation import Simulation
from ..core.compile_watch import compile_watch
from ..core.journal import Counters, Journal
from ..core.requests import Requests
from ..costs.graph_keys import SyncSettings
from ..costs.step_times import Costs
from ..metrics.latency import Summary, summarise
from ..metrics.slo import Slo
from ..offline.bounds import run_bounds
from ..offline.warm import prepared
from ..report.record import MemoryLine, RunRecord
from ..report.run_json import run_document
from ..scheduler.presets import find_preset
from ..workload.build import Workload, build_workload
from ..workload.trace import TraceInfo
from .configure import Configured
from .cost_notes import kv_notes, sync_notes
from .fleet_engines import fleet_of, with_fleet
from .machine import cpu_name, git_commit, machine, versions
from .measured import cpu_memory_lines, details, measured_lines, measured_notes, measured_run
from .notes import beam_notes, excluded_notes, fault_notes, honest_notes, outside_notes, target_notes
from .refusals import clip_notes, failures, refusals
from .step_times import step_costs
from .system import System, build_system, parallelism
from .tiers import state_at_start, tier_notes

if TYPE_CHECKING:
    from ..measured.run import MeasuredRun

Progress = Callable[[int, int], None]
"""Called between slices with (sequences done, sequences)."""


@dataclass(frozen=True)
class Result:
    """All that one run left behind.

    record     what a report shows
    document   run.json
    warnings   one line each, for stderr
    """

    requests: Requests
    journal: Journal
    counters: Counters
    record: RunRecord
    document: dict[str, Any]
    warnings: tuple[str, ...]


@dataclass
class Stages:
    """Host seconds of each stage, in order."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - start, 6)


def run(
    configured: Configured,
    progress: Progress | None = None,
    record_steps: bool = False,
    workload: Workload | None = None,
) -> Result:
    """Run a configuration to its end, or until Ctrl-C: then the result holds what was done and says so.

    workload  that of the configuration, where it has been built already
    raises  UsageError: the configuration cannot run, the workload is wrong, every request was refused
    """
    stages = Stages()
    system = build_system(configured.config, record_steps)
    with stages.stage("workload"):
        requests, trace = workload or build_workload(system.config.tree())
        requests.check()
    with stages.stage("costs"):
        costs = step_costs(system)
    with stages.stage("build"):
        simulation = _simulation(system, requests, costs)
    with stages.stage("run"):
        complete = _finish(simulation, progress)
    with stages.stage("journal"):
        journal, counters = simulation.journal(), simulation.counters()
        simulation.release()
        engines = simulation.fleet.settings
        lost = (*refusals(simulation.arrivals, journal, engines), *failures(journal, several=len(engines) > 1))
    with stages.stage("bounds"):
        bounds = run_bounds(simulation)
    with stages.stage("metrics"):
        summary = summarise(journal, requests, counters, bounds, Slo(**system.config.section("slo")))
        target = target_notes(system.config["sharing.hit_rate"], bounds.infinite, counters.admitted_prompt_tokens)
        told = (*target, *tier_notes(system.config), *clip_notes(requests, simulation.arrivals))
        record = _record(configured, system, costs, requests, journal, counters, summary, complete, told)
        record = _with_ranks(_with_measures(record, system, simulation), simulation)
        record = with_fleet(record, simulation, journal)
    document = run_document(record, _details(configured, system, costs, trace, stages))
    if system.config["clock"] == "measured":
        document["measured"] = details(cast("MeasuredRun", simulation))
    warnings = (*lost, *_changed_workload(configured, record))
    return Result(requests, journal, counters, record, document, warnings)


def _simulation(system: System, requests: Requests, costs: Costs) -> Simulation:
    if system.config["clock"] == "measured":
        return measured_run(system.config, system.settings, requests, costs.tables, fleet_of(system, requests))
    if system.config["dp"] > 1 or system.config["ep"] > 1:
        from .experts import rank_simulation

        return prepared(rank_simulation(system, requests, costs))
    fleet = fleet_of(system, requests)
    if fleet is not None:
        first = fleet.members[0]
        return prepared(Simulation(requests, first.settings, first.tables, fleet))
    return prepared(Simulation(requests, system.settings, costs.tables))


def _finish(simulation: Simulation, progress: Progress | None) -> bool:
    try:
        return simulation.run(progress)
    except KeyboardInterrupt:
        return False


def _changed_workload(configured: Configured, record: RunRecord) -> tuple[str, ...]:
    if configured.fingerprint in ("", record.fingerprint):
        return ()
    return (
        "this is not the workload of that run.json (another trace, or a NumPy that draws other numbers): "
        f"fingerprint {record.fingerprint[:16]}, was {configured.fingerprint[:16]}",
    )


def _record(
    configured: Configured,
    system: System,
    costs: Costs,
    requests: Requests,
    journal: Journal,
    counters: Counters,
    summary: Summary,
    complete: bool,
    told: tuple[str, ...],
) -> RunRecord:
    config = system.config
    preset = find_preset(config["preset"], config.where["preset"])
    return RunRecord(
        run=configured.name,
        fingerprint=requests.fingerprint(),
        clock=config["clock"],
        cache_state=state_at_start(config),
        cache_kind=config["cache.kind"],
        preset=preset.name,
        engine=preset.engine,
        batching=config["batching"],
        overlap=config["overlap"],
        overlap_default=preset.values["overlap"],
        model=system.deployment.model.name,
        dtype=config["dtype"],
        kv_dtype=config["kv_dtype"],
        parallelism=parallelism(config),
        device=config["device"],
        step_times=costs.source,
        block_tokens=config["block_tokens"],
        seed=config["seed"],
        machine=cpu_name(),
        path=counters.path,
        memory=memory_lines(system),
        notes=(
            *fault_notes(system.settings.faults),
            *requests.notes,
            *(costs.notes if config["clock"] == "modelled" else ()),
            *outside_notes(counters.outside_steps, counters.num_steps),
            *(kv_notes(system, counters) if config["clock"] == "modelled" else ()),
            *sync_notes(SyncSettings(**config.section("sync")), config["overlap"]),
            *beam_notes(config["beam.width"], config["beam.skew"]),
            *excluded_notes(requests.excluded),
            *told,
            *honest_notes(system.settings.cache.state, journal),
        ),
        complete=complete,
        summary=summary,
        copy_on_write=config["cache.copy_on_write"],
        allocation=config["cache.allocation"],
        slo=str(Slo(**config.section("slo"))),
        step_error=costs.error if config["clock"] == "modelled" else "",
    )


def _with_measures(record: RunRecord, system: System, simulation: Simulation) -> RunRecord:
    """On the measured clock: what ran instead of the model and the device that the configuration names."""
    config = system.config
    if config["clock"] != "measured":
        return record
    run = cast("MeasuredRun", simulation)
    return replace(
        record,
        device=system.deployment.device.title,
        step_times="measured on it",
        dtype="float32",
        kv_dtype=config["measured.kv_dtype"],
        measured=measured_lines(run, config, system.budget.block_bytes),
        notes=(*record.notes, *measured_notes(config, system.settings)),
    )


def _with_ranks(record: RunRecord, simulation: Simulation) -> RunRecord:
    """Of ranks that step together: what they waited for, and what became of their experts."""
    from ..cluster.lockstep_simulation import LockstepSimulation

    if not isinstance(simulation, LockstepSimulation):
        return record
    from ..report.expert_files import rank_section
    from .experts import expert_report

    report = expert_report(simulation)
    section = rank_section(report)
    return replace(record, sections=(*record.sections, section), notes=(*record.notes, *report.notes))


def memory_lines(system: System) -> tuple[MemoryLine, ...]:
    """The memory budget of a device, as a table shows it."""
    budget, config = system.budget, system.config
    if config["clock"] == "measured":
        return cpu_memory_lines(budget, config)
    blocks = system.settings.cache.num_blocks
    kv = f"{blocks:,} blocks of {config['block_tokens']} tokens"
    if blocks < budget.num_blocks:
        kv += f" (cache.blocks; {budget.num_blocks:,} would fit)"
    elif blocks > budget.num_blocks:
        kv += f" (cache.blocks; MORE than the {budget.num_blocks:,} that fit)"
    share = f"of {system.deployment.device.memory_bytes / 1e9:.1f} GB, memory_utilization"
    return (
        MemoryLine("usable", budget.usable_bytes, f"{share} {config['cache.memory_utilization']:g}"),
        MemoryLine("weights", budget.weights_bytes),
        MemoryLine("KV", blocks * budget.block_bytes, kv),
        MemoryLine("reserved", budget.reserved_bytes, "activations, workspaces, driver: an estimate"),
        MemoryLine("tables", budget.metadata_bytes, "block tables and slots, on the device"),
    )


def _details(
    configured: Configured, system: System, costs: Costs, trace: TraceInfo | None, stages: Stages
) -> dict[str, Any]:
    return {
        "config": system.config.tree(),
        "given": configured.given,
        "trace": None if trace is None else asdict(trace),
        "step_times_without": list(costs.missing),
        "versions": versions(),
        "machine": machine(),
        "git_commit": git_commit(),
        "host_s": stages.seconds,
        "jit": {"functions_compiled": compile_watch.functions, "seconds": round(compile_watch.seconds, 3)},
    }
