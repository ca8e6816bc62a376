"""The part of a report that runs of ranks have: lines, figures, and experts.csv, eplb.csv and ranks.csv."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..core.units import NS_PER_MS
from .experts import ExpertReport, expert_lines, paid_back
from .record import Section
from .table import labelled

STEP_HEAD = "step,begin_ms,length_ms,pause_ms,prefill,mean_tokens,most_tokens,balancedness,decision,saved_ms"
MOVE_HEAD = "step,at_ms,balancedness_before,balancedness_after,experts_moved,bytes,pause_ms,ready_ms,layers,kept"
RANK_HEAD = "rank,steps,busy_ms,wait_ms,dummy_ms,dummy_steps"


def rank_section(report: ExpertReport) -> Section:
    """What the report of such a run has more. Files of experts only where they are spread over devices."""
    files = {"ranks.csv": ranks_csv(report)}
    if report.settings:
        files |= {"experts.csv": experts_csv(report), "eplb.csv": moves_csv(report)}
    return Section(
        "ranks",
        labelled(expert_lines(report)),
        rank_figures(report),
        {name: "".join(lines) for name, lines in files.items()},
    )


def rank_figures(report: ExpertReport) -> dict[str, Any]:
    """For run.json: totals, and balancedness of every layer by phase, under the first map and later ones."""
    figures: dict[str, Any] = {
        "steps": report.steps,
        "step_ns": report.step_ns,
        "wait_ns": [rank.wait_ns for rank in report.ranks],
        "busy_ns": [rank.busy_ns for rank in report.ranks],
        "dummy_steps": [rank.dummy_steps for rank in report.ranks],
    }
    if not report.settings:
        return figures
    return figures | {
        "experts_ns": report.experts_ns,
        "exchange_ns": report.exchange_ns,
        "choices": report.chosen,
        "active_slots": report.active,
        "decisions": len(report.moves),
        "moved_experts": sum(m.moves for m in report.moves if m.layers),
        "moved_bytes": sum(m.num_bytes for m in report.moves if m.layers),
        "pause_ns": sum(m.pause_ns for m in report.moves),
        "saved_ns": sum(s.saved_ns for s in report.steps_of),
        "paid_back_after_steps": paid_back(report.steps_of) if report.instances == 1 else None,
        "balancedness": [
            {"layer": x.layer, "phase": x.phase, "before": _number(x.before), "after": _number(x.after)}
            for x in report.layers
        ],
    }


def _number(share: float) -> float | None:
    return None if math.isnan(share) else round(share, 6)


def ranks_csv(report: ExpertReport) -> Iterator[str]:
    """A row a rank; busy + wait of each is the time of its instance's steps."""
    yield _head(report, RANK_HEAD)
    for r in report.ranks:
        times = ",".join(_ms(ns) for ns in (r.busy_ns, r.wait_ns, r.dummy_ns))
        yield f"{_engine(report, r.engine)}{r.rank},{r.steps},{times},{r.dummy_steps}\n"


def _head(report: ExpertReport, names: str) -> str:
    """Of a fleet, with the engine first: the instance that the router chose."""
    return ("engine," if report.instances > 1 else "") + names + "\n"


def _engine(report: ExpertReport, number: int) -> str:
    return f"{number}," if report.instances > 1 else ""


def experts_csv(report: ExpertReport) -> Iterator[str]:
    """A row a step of the instance: tokens of a device, in the mean, of the fullest, and of each; layers summed."""
    devices = report.device_loads.shape[1]
    yield _head(report, ",".join([STEP_HEAD, *(f"device_{d}" for d in range(devices))]))
    for s, loads in zip(report.steps_of, report.device_loads.tolist(), strict=True):
        times = ",".join(_ms(ns) for ns in (s.begin_ns, s.length_ns, s.pause_ns))
        even = f"{s.mean / s.most:.6f}" if s.most else ""
        own = ",".join(map(str, loads))
        begin = f"{_engine(report, s.engine)}{s.step},{times}"
        yield f"{begin},{int(s.has_prefill)},{s.mean:.3f},{s.most:.3f},{even},{s.decision},{_ms(s.saved_ns)},{own}\n"


def moves_csv(report: ExpertReport) -> Iterator[str]:
    """A row a decision."""
    yield _head(report, MOVE_HEAD)
    for m in report.moves:
        even = f"{m.before:.6f},{m.after:.6f}"
        yield (
            f"{_engine(report, m.engine)}{m.step},{_ms(m.at_ns)},{even},{m.moves},{m.num_bytes},{_ms(m.pause_ns)},"
            f'{_ms(m.ready_ns)},{m.layers},"{m.kept}"\n'
        )


def _ms(ns: int) -> str:
    return f"{ns / NS_PER_MS:.6f}"
