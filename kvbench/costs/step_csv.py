"""Step times from measured steps: one line per step, `--step-times FILE.csv`.

    prefill_tokens, decodes, context, ms     context: tokens that each decode attends to
    prefill_context                          optional: tokens in front of the chunk

The whole step is in a line, its host time included, so the times are fitted, not looked up:

    ms = max(floor, base + a decodes + b decodes x context + c prefill + d prefill x (prefill / 2 + prefill_context))

The floor is what launching a step takes, whatever is in it; beyond the knee the device is the limit. Coefficients are
not negative (least squares of relative errors), and a row counts for the floor or for the slopes, as the fit has it.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from ..core.errors import UsageError
from .axes import F64, Grid, axis_points, sample_line
from .deployment import Deployment
from .step_times import Origin, StepTimes, shape_of

COLUMNS = ("prefill_tokens", "decodes", "context", "ms")
_LEAST_ROWS = 8
_ROUNDS = 50
_FLOOR_QUANTILE, _NEAR_FLOOR = 0.1, 1.03
"""Where the search for the floor begins: the tenth of the rows that are fastest, and what is within 3 % of them."""
_NEW_BITS = 3
NO_HOST = {"step_overhead_us": 0.0, "request_overhead_us": 0.0}
"""A measured step holds its host time."""


@dataclass(frozen=True)
class Steps:
    """Measured steps, one array each: counts and ns."""

    prefill: F64
    prefill_context: F64
    decodes: F64
    context: F64
    ns: F64

    def part(self, rows: slice) -> Steps:
        """Some of the rows."""
        return Steps(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class StepFit:
    """floor, base: ns; per_*: ns per decode, cached token read, prefill token, and pair of prefill token and key."""

    floor: float
    base: float
    per_decode: float
    per_context: float
    per_prefill: float
    per_pair: float

    def predict(self, steps: Steps) -> F64:
        """ns of each step."""
        slopes = np.array([self.base, self.per_decode, self.per_context, self.per_prefill, self.per_pair])
        return np.maximum(_terms(steps) @ slopes, self.floor)


def _terms(s: Steps) -> F64:
    """(rows, 5): what the slopes are multiplied with."""
    pairs = s.prefill * (s.prefill / 2.0 + s.prefill_context)
    return np.stack([np.ones_like(s.ns), s.decodes, s.decodes * s.context, s.prefill, pairs], axis=1)


def fit_steps(steps: Steps) -> StepFit:
    """Floor and slopes; rows below the knee say nothing of the slopes, and those beyond nothing of the floor."""
    terms, ns = _terms(steps), steps.ns
    floor = float(np.quantile(ns, _FLOOR_QUANTILE))
    beyond = ns > floor * _NEAR_FLOOR
    slopes = np.zeros(terms.shape[1])
    for _ in range(_ROUNDS):
        if beyond.any():
            slopes, _residual = nnls(terms[beyond] / ns[beyond, None], np.ones(int(beyond.sum())))
        predicted = terms @ slopes
        if (predicted <= floor).any():
            floor = float(np.mean(ns[predicted <= floor]))
        if np.array_equal(predicted > floor, beyond):
            break
        beyond = predicted > floor
    return StepFit(floor, *(float(slope) for slope in slopes))


def read_step_csv(path: Path, deployment: Deployment) -> StepTimes:
    """Step times fitted to a file; it names no model: they are taken as this deployment's. UsageError: not usable."""
    steps = read_steps(path)
    fit = fit_steps(steps)
    error = np.abs(fit.predict(steps) / steps.ns - 1.0)
    origin = Origin(
        kind="steps",
        source=f"fitted to {steps.ns.size} measured steps of {path.name} (floor {fit.floor / 1e6:.3g} ms; residuals: "
        f"median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%})",
        device=deployment.device,
        model=deployment.model.name,
        shape=shape_of(deployment.model),
        dtype=deployment.dtype,
        kv_dtype=deployment.kv_dtype,
        tp=deployment.tp,
        measured=1.0,
        notes=(f"{path.name} names no model or parallelism: its times are taken as those of this run",),
    )
    return _step_times(origin, fit, steps, deployment)


def _step_times(origin: Origin, fit: StepFit, steps: Steps, deployment: Deployment) -> StepTimes:
    """The terms of a fit as tables: all are straight but the pairs of a chunk."""
    shared = min(fit.per_decode, fit.per_prefill)
    last = tuple(float(max(column.max(), 1.0)) for column in (steps.decodes, steps.context))
    new = axis_points(_NEW_BITS, deployment.length)[:, None]
    before = axis_points(0, deployment.length + 1)[None, :] - 1.0
    batch = axis_points(0, 2 * int(last[0]))[:, None]
    sums = axis_points(0, 2 * int(last[0] * last[1]))[None, :]
    decode = _grid(0, (fit.per_decode - shared) * batch + fit.per_context * sums)
    tokens = steps.prefill + steps.decodes
    return StepTimes(
        origin,
        linear=sample_line(lambda n: fit.base + shared * n, 0, 1 << 17),
        communication=sample_line(np.zeros_like, 0, 2),
        head=sample_line(np.zeros_like, 0, 2),
        prefill=_grid(_NEW_BITS, (fit.per_prefill - shared) * new + fit.per_pair * new * (new / 2.0 + before)),
        decode=decode,
        mixed=decode,
        floor_ns=fit.floor,
        limits=(
            *(float(tokens.max()), float(tokens.max())),
            *(max(float(steps.prefill.max()), 1.0), float(steps.prefill_context.max())),
            *last,
        ),
        host=NO_HOST,
    )


def _grid(row_bits: int, ns: F64) -> Grid:
    return Grid(row_bits, 0, np.ascontiguousarray(ns), np.zeros_like(ns))


def read_steps(path: Path) -> Steps:
    """The rows of a file. UsageError names the file, and the line or column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            absent = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if absent:
                raise UsageError(f"{path}: no column {', '.join(absent)}; a table of steps has {', '.join(COLUMNS)}")
            rows = [_row(path, number, row) for number, row in enumerate(reader, 2)]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a readable table of steps: {error}") from None
    if len(rows) < _LEAST_ROWS:
        raise UsageError(f"{path}: {len(rows)} measured steps are too few for a fit; it takes {_LEAST_ROWS}")
    prefill, before, decodes, context, ms = np.array(rows, np.float64).T
    return Steps(prefill, before, decodes, context, ms * 1e6)


def _row(path: Path, number: int, row: dict[str, str]) -> tuple[float, ...]:
    names = ("prefill_tokens", "prefill_context", "decodes", "context", "ms")
    try:
        values = tuple(float(row.get(name) or (0 if name == "prefill_context" else "?")) for name in names)
    except ValueError:
        raise UsageError(f"{path}:{number}: a value is missing or not a number") from None
    if not np.all(np.isfinite(values)) or min(values) < 0 or values[-1] == 0:
        raise UsageError(f"{path}:{number}: counts are 0 or more and times above 0")
    return values
