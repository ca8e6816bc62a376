"""Step times fitted to a user's own server: his requests are replayed through the engine while the coefficients move.

The base is whatever step times the configuration would use; the fit puts factors on its parts and finds the times of
the host and of the server's stages. What comes out is a device file (costs.corrections) for `--device`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..bench.step_times import found_times, graphs_of
from ..bench.system import System
from ..cluster.simulation import Simulation
from ..core.errors import UsageError
from ..core.journal import FINISHED, Journal
from ..core.requests import Requests
from ..core.units import NS_PER_US
from ..costs.corrections import SCALES, scaled
from ..costs.step_times import costs_of
from ..costs.tables import CostTables
from ..engine.settings import EngineSettings
from ..report.calibration import Calibrated, Line, Part
from ..workload.formats.llmservingsim import read
from ..workload.options import TraceOptions
from ..workload.source import Source, Trace
from .fit import Coefficient, Estimate, Fit, fit
from .names import known_model
from .results import Served

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FEWEST = 20
"""Requests; fewer fit anything."""

_FACTOR = 0.7
"""Believed of a factor: within one half and two, mostly."""
_TIME = 1.5
"""And of a time of the host: its order of magnitude."""
_DELAY_US = 50.0
"""Where a stage that the configuration has at 0 starts from."""


OUTPUT_STAGE = "output_us_per_token"
_STAGE = 0.3
"""Of the output stage: it begins at what the busiest time leaves, and is hardly faster where it shows."""
_EXPLAINED = 0.03
"""A fit that leaves less needs no stage to explain it."""
_WORTH = 0.5
"""Of what a fit without it leaves, a stage may leave so much: where a device is unlike its base, it helps a little."""
_BUSY = 0.7
"""Of the busiest time a stage has to fill so much: where it fills less, hardly a token waits for it."""

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def calibrate(system: System, results: Sequence[Served], holdout: float = 0.0, scattered: bool = False) -> Calibrated:
    """Fit the coefficients.

    holdout    this share of each file's requests is replayed and not fitted: the last ones
    scattered  every few of them instead, over the whole file
    raises  UsageError: too few requests, or one that this engine could not run
    """
    started = time.perf_counter()
    total = sum(map(len, results))
    if total * (1.0 - holdout) < FEWEST:
        raise UsageError(f"{total} requests do not determine step times; give at least {FEWEST} to fit on")
    model = _Model(system, results)
    fitted = [_fitted(len(served), holdout, scattered) for served in results]

    def fitted_to(coefficients: tuple[Coefficient, ...], begin: F64 | None = None) -> Fit:
        def residuals(values: F64) -> list[F64]:
            columns: tuple[list[F64], list[F64]] = ([], [])
            named = {c.name: value for c, value in zip(coefficients, values.tolist(), strict=True)}
            for served, part, (ttft, tpot) in zip(results, fitted, model.replay(named), strict=True):
                for column, replayed, measured in zip(columns, (ttft, tpot), (served.ttft, served.tpot), strict=True):
                    column.append(np.where(part, _log_ratio(replayed, measured), np.nan))
            return [np.concatenate(column) for column in columns]

        return fit(coefficients, residuals, begin=begin)

    coefficients = _coefficients(system)
    before = model.replay({c.name: c.start for c in coefficients})
    plain = fitted_to(coefficients)
    replays, left_out = plain.replays, _undetermined_stages(system, plain)
    if left_out:
        coefficients = tuple(c for c in coefficients if c.name not in left_out)
        plain = fitted_to(coefficients)
        replays += plain.replays
    found, busiest = plain, _busiest_us(results)
    if not system.costs.output_us_per_token and plain.spread > _EXPLAINED:
        stage = (*coefficients, Coefficient(OUTPUT_STAGE, busiest, _STAGE, "us"))
        staged = fitted_to(stage, np.append(plain.values, busiest))
        found = staged if _is_stage(staged, plain, busiest) else plain
        replays += staged.replays
    after = model.replay({e.coefficient.name: e.value for e in found.estimates})
    parts = [_part("fitted" if holdout else "all", results, after, fitted)]
    if holdout:
        parts.append(_part("held out", results, after, [~part for part in fitted]))
    return Calibrated(
        server=f"{system.deployment.model.name}, {system.deployment.dtype}, tp {system.deployment.tp}; preset "
        f"{system.config['preset']}",
        base=model.base.origin.source,
        device=system.config["step_times"] or system.config["device"],
        files=tuple(served.name for served in results),
        requests=total,
        lines=tuple(_line(estimate) for estimate in found.estimates),
        quantiles=QUANTILES,
        residuals=_quantiles(results, after),
        before=_quantiles(results, before),
        parts=tuple(parts),
        replays=replays + 2,
        seconds=time.perf_counter() - started,
        left_out=left_out,
        notes=(
            *_models(system, results),
            *_notes(results, found is plain and not system.costs.output_us_per_token, busiest),
        ),
    )


def _undetermined_stages(system: System, found: Fit) -> tuple[str, ...]:
    """What all tokens pass one after the other caps a server: a guess of it would be worse than none."""
    serial = {OUTPUT_STAGE, *(["tokenize_us_per_token"] if system.costs.serial_tokenizer else [])}
    return tuple(e.coefficient.name for e in found.estimates if e.coefficient.name in serial and not e.is_determined)


def _is_stage(staged: Fit, plain: Fit, busiest_us: float) -> bool:
    """Whether the data cannot be explained without the output stage, which is the last coefficient."""
    stage = staged.estimates[-1]
    is_better = staged.misfit < plain.misfit and staged.spread <= _WORTH * plain.spread
    return is_better and stage.is_determined and stage.value >= _BUSY * busiest_us


def _models(system: System, results: Sequence[Served]) -> list[str]:
    """A line for each file that says it is of another model."""
    notes = []
    for served in results:
        try:
            named = known_model(served.model) if served.model else system.deployment.model.name
        except UsageError:
            named = served.model
        if named != system.deployment.model.name:
            notes.append(
                f"WARNING: {served.name} is of {served.model}, and {system.deployment.model.name} was replayed: name "
                "its model with --model"
            )
    return notes


def _fitted(requests: int, holdout: float, scattered: bool) -> NDArray[np.bool_]:
    """(requests,) in order of arrival: not held out."""
    at = np.arange(requests)
    if not scattered:
        return np.asarray(at < round(requests * (1.0 - holdout)))
    return np.asarray(np.floor((at + 1) * holdout) == np.floor(at * holdout))


# ---------------------------------------------------------------- the model


def _coefficients(system: System) -> tuple[Coefficient, ...]:
    """Factors on the parts of the base, then times in us."""
    factors = ["linear", "prefill", "decode", "mixed"]
    if system.deployment.tp > 1:
        factors.append("communication")
    costs = system.costs
    times = {
        "step_overhead_us": costs.step_overhead_us or _DELAY_US,
        "request_overhead_us": costs.request_overhead_us or 1.0,
        "tokenize_us_per_token": costs.tokenize_us_per_token or 0.1,
        "detokenize_us_per_token": costs.detokenize_us_per_token or 1.0,
    }
    if costs.output_us_per_token:
        times[OUTPUT_STAGE] = costs.output_us_per_token
    return (
        *(Coefficient(name, 1.0, _FACTOR) for name in factors),
        *(Coefficient(name, start, _TIME, "us") for name, start in times.items()),
    )


class _Model:
    """Values of coefficients, by name -> TTFT and TPOT of every request, by running them all."""

    def __init__(self, system: System, results: Sequence[Served]) -> None:
        self.system = system
        self.base, self.graphs = found_times(system), graphs_of(system)
        self.loads = [(served, _requests(served), _settings(system.settings, served)) for served in results]

    def replay(self, values: dict[str, float]) -> list[tuple[F64, F64]]:
        tables, delays = self._made(values)
        return [_times(_run(requests, delays(settings), tables), served) for served, requests, settings in self.loads]

    def _made(self, values: dict[str, float]) -> tuple[CostTables, Callable[[EngineSettings], EngineSettings]]:
        factors = {name: value for name, value in values.items() if name in SCALES}
        factors["head"] = factors["linear"]
        host: Any = {name: value for name, value in values.items() if name not in SCALES}
        costs = replace(self.system.costs, **host)
        tables = costs_of(scaled(self.base, factors), costs, self.graphs).tables

        def delays(settings: EngineSettings) -> EngineSettings:
            return replace(
                settings,
                tokenize_ns_per_token=round(costs.tokenize_us_per_token * NS_PER_US),
                detokenize_ns=round(costs.detokenize_us_per_token * NS_PER_US),
                output_ns_per_token=round(costs.output_us_per_token * NS_PER_US),
            )

        return tables, delays


def _requests(served: Served) -> Requests:
    rows = zip(served.prompt.tolist(), served.output.tolist(), served.arrival.tolist(), strict=True)
    lines = [
        json.dumps({"input_toks": int(prompt), "output_toks": int(output), "arrival_time_ns": round(at * 1e9)})
        for prompt, output, at in rows
    ]
    return read(Trace(served.name, (Source(served.name, "\n".join(lines).encode()),)), TraceOptions())


def _settings(settings: EngineSettings, served: Served) -> EngineSettings:
    """Of a closed loop: its slots. Where arrivals are known they hold, whatever cap the client had."""
    return replace(settings, concurrency=served.slots, closed_loop=served.slots > 0, record_steps=False)


def _run(requests: Requests, settings: EngineSettings, tables: CostTables) -> Journal:
    simulation = Simulation(requests, settings, tables)
    simulation.run()
    return simulation.journal()


def _times(journal: Journal, served: Served) -> tuple[F64, F64]:
    """(n,) TTFT and TPOT in s."""
    if (journal.status != FINISHED).any():
        lost = int((journal.status != FINISHED).sum())
        raise UsageError(f"{served.name}: {lost} requests cannot run on this engine; check model, cache.blocks")
    gaps = journal.output_tokens - 1
    spread = journal.finish_ns - journal.first_token_ns
    tpot = np.where(gaps > 0, spread / np.maximum(gaps, 1), np.nan)
    return (journal.first_token_ns - journal.arrival_ns) / 1e9, tpot / 1e9


# ---------------------------------------------------------------- what is told


def _log_ratio(replayed: F64, measured: F64) -> F64:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log(replayed / measured)
    return np.where(np.isfinite(ratio), ratio, np.nan)


def _quantiles(results: Sequence[Served], replayed: list[tuple[F64, F64]]) -> dict[str, tuple[float, ...]]:
    found = {}
    for i, metric in enumerate(("ttft", "tpot")):
        ratios = np.concatenate(
            [
                _log_ratio(times[i], served.tpot if i else served.ttft)
                for served, times in zip(results, replayed, strict=True)
            ]
        )
        known = np.expm1(ratios[~np.isnan(ratios)])
        found[metric] = tuple(np.quantile(known, QUANTILES).tolist()) if known.size else ()
    return found


def _part(
    name: str, results: Sequence[Served], replayed: list[tuple[F64, F64]], parts: list[NDArray[np.bool_]]
) -> Part:
    figures = {}
    for i, metric in enumerate(("ttft", "tpot")):
        measured = np.concatenate([(s.tpot if i else s.ttft)[p] for s, p in zip(results, parts, strict=True)])
        modelled = np.concatenate([times[i][p] for times, p in zip(replayed, parts, strict=True)])
        known = ~np.isnan(measured) & ~np.isnan(modelled)
        if not known.any():
            continue
        for statistic, q in (("mean", None), ("p50", 50.0), ("p90", 90.0), ("p99", 99.0)):
            pair = (measured[known], modelled[known])
            of = [float(x.mean() if q is None else np.percentile(x, q)) * 1e3 for x in pair]
            figures[metric, statistic] = (of[0], of[1])
    return Part(name, int(sum(part.sum() for part in parts)), figures)


def _line(e: Estimate) -> Line:
    c = e.coefficient
    return Line(c.name, c.start, e.value, e.low, e.high, e.share, e.is_determined, c.unit)


def _busiest_us(results: Sequence[Served]) -> float:
    """us a token in the busiest twentieth of any result: an output stage cannot be slower."""
    most = 0.0
    for served in results:
        ends = np.linspace(0.0, float((served.arrival + served.e2el).max()), 21)
        first, last = served.arrival + served.ttft, served.arrival + served.e2el
        share = np.clip((ends[:, None] - first) / np.maximum(last - first, 1e-9), 0.0, 1.0)
        most = max(most, float(np.diff((share * served.output).sum(axis=1)).max() / ends[1]))
    return 1e6 / most


def _notes(results: Sequence[Served], no_stage: bool, busiest_us: float) -> tuple[str, ...]:
    left_out = sum(served.left_out for served in results)
    loops = [served.name for served in results if served.slots]
    notes = []
    if no_stage:
        notes.append(
            f"nothing shows that tokens wait for one output stage; one of {busiest_us:.3g} us a token would have "
            "stopped the busiest time"
        )
    if left_out:
        notes.append(f"{left_out} requests that failed or warmed up are not replayed; the server bore them too")
    if loops:
        notes.append(f"start times are not in {', '.join(loops)}: their client's slots were replayed")
    return tuple(notes)
