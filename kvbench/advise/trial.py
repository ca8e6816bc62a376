"""One run of one configuration, in whichever process it runs: its record, its promises, what shows its symptoms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..bench.configure import Configured
from ..bench.run import run
from ..bench.system import build_system
from ..core.compile_watch import compile_watch
from ..core.errors import KvbenchError
from ..metrics.latency import promised_value
from ..metrics.slo import Promise
from ..report.record import RunRecord
from ..sweep.task import shared_workload
from .evidence import Evidence, evidence_of


@dataclass(frozen=True)
class Trial:
    """What one worker gets. look: also for evidence."""

    index: int
    configured: Configured
    promises: tuple[Promise, ...]
    look: bool = False


@dataclass(frozen=True)
class Tried:
    """What came of it. promised: each promise of a percentile with its value in ms. error: why there is nothing."""

    index: int
    record: RunRecord | None = None
    promised: tuple[tuple[Promise, float], ...] = ()
    evidence: Evidence | None = None
    error: str = ""


def try_one(trial: Trial) -> Tried:
    """Run it. What cannot run says why; a fault of kvbench itself gets through.

    raises  KeyboardInterrupt: the run was cut short
    """
    compile_watch.quiet = True
    try:
        system = build_system(trial.configured.config, trial.look)
        result = run(trial.configured, None, trial.look, shared_workload(system.config))
    except KvbenchError as error:
        return Tried(trial.index, error=str(error))
    if not result.record.complete:
        raise KeyboardInterrupt
    promised = tuple((p, promised_value(p, result.journal, result.requests)) for p in trial.promises)
    return Tried(trial.index, result.record, promised, evidence_of(result, system) if trial.look else None)


def broken_by(one: Tried, slo: Mapping[str, float], share: float) -> list[str]:
    """Latencies whose promise this run breaks; of a joint promise, those whose tail is beyond its bound.

    slo     bounds of the joint promise, ms; 0: none
    share   of the sequences that have to keep it
    """
    broken = [p.latency for p, value in one.promised if not math.isnan(value) and value > p.bound]
    assert one.record is not None
    summary = one.record.summary
    kept = summary["slo_share"]
    if kept is not None and kept < share:
        over = {name: (summary.latencies[name].p99 or 0.0) / bound for name, bound in slo.items() if bound}
        broken += [name for name, times in over.items() if times > 1] or [max(over, key=lambda name: over[name])]
    return list(dict.fromkeys(broken))
