"""Fit what a datasheet leaves open to the tables of measured kernels that ship: the figures of costs/classes.py.

python benchmarks/roofline_fit.py [FOLDER of profiles, each in LLMServingSim's layout]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from kvbench.costs.axes import F64
from kvbench.costs.deployment import Deployment
from kvbench.costs.keys import CostSettings
from kvbench.costs.models import MODELS
from kvbench.costs.pricing import price_steps
from kvbench.costs.profile import find_profile, profile_step_times
from kvbench.costs.roofline import roofline_times
from kvbench.costs.step_times import StepTimes, load_step_times
from kvbench.costs.tables import HOST

Step = tuple[int, int, int, int]

MEASURED = Path(__file__).resolve().parents[1] / "kvbench" / "costs" / "measured"
STEPS: tuple[Step, ...] = (
    *((0, 0, n, context) for n in (1, 4, 16, 64, 128, 256) for context in (512, 2048, 8192)),
    *((n, 0, 0, 0) for n in (256, 512, 1024, 2048, 4096, 8192)),
    (2048, 8192, 0, 0),
)
START, LOW, HIGH = (0.6, 0.85, 0.7, 10.0, 2.0), (0.05, 0.2, 0.05, 1.0, 0.0), (1.0, 1.0, 1.0, 40.0, 12.0)
"""Shares of FLOP/s, bandwidth, link; us of an all-reduce; us before each kernel."""


@dataclass(frozen=True)
class Measured:
    """Steps of one table with their device times, ns."""

    times: StepTimes
    steps: list[Step]
    ns: F64

    @property
    def deployment(self) -> Deployment:
        origin = self.times.origin
        return Deployment(origin.device, MODELS[origin.model], origin.dtype, tp=origin.tp)


def measured(times: StepTimes) -> Measured:
    """The steps that a table covers."""
    inside = [step for step in STEPS if price_steps(times.tables(), [step])[1][0] == 0]
    return Measured(times, inside, _device_ns(times, CostSettings(), inside))


def _device_ns(times: StepTimes, settings: CostSettings, steps: Sequence[Step]) -> F64:
    resources, _ = price_steps(times.tables(settings), steps)
    return (resources.sum(axis=1) - resources[:, HOST]).astype(np.float64)


def errors(at: F64, tables: Sequence[Measured]) -> F64:
    """log(roofline / measured) of every step."""
    flops, bandwidth, link, allreduce_us, launch_us = (float(value) for value in at)
    settings = CostSettings(flops, bandwidth, link, allreduce_us, launch_us, floor_us=0.0)
    found = [_device_ns(roofline_times(m.deployment, settings), settings, m.steps) / m.ns for m in tables]
    return np.log(np.concatenate(found))


def fit(tables: Sequence[Measured]) -> F64:
    """What is open, robustly."""
    found = least_squares(
        errors,
        START,
        bounds=(LOW, HIGH),
        loss="soft_l1",
        f_scale=0.1,
        x_scale=(0.1, 0.1, 0.1, 3.0, 1.0),
        diff_step=1e-3,  # times are whole ns: a smaller step would change nothing
        args=(tables,),
    )
    return np.asarray(found.x, np.float64)


def report(name: str, fitted: Sequence[Measured], judged: Sequence[Measured]) -> None:
    """One line: what was found on some tables, and how far it is off on others."""
    at = fit(fitted)
    off = np.abs(np.expm1(errors(at, judged))) * 100
    print(f"{name:<26} {np.round(at, 3)}  median {np.median(off):.1f} %, p90 {np.quantile(off, 0.9):.1f} %", flush=True)


def main(profiles: Path | None) -> None:
    """Every class, and each fit on what it was not made from."""
    tables = [measured(load_step_times(path)) for path in sorted(MEASURED.rglob("*.npz"))]
    for dtype in ("bf16", "fp8"):
        chosen = [m for m in tables if m.times.origin.dtype == dtype]
        report(f"hbm {dtype}", chosen, chosen)
    wide = [m for m in tables if m.times.origin.dtype == "bf16"]
    parts: dict[str, Callable[[Measured], bool]] = {
        "H100, on H200": lambda m: m.times.origin.device.name == "h100",
        "Llama, on Qwen3": lambda m: m.times.origin.model.startswith("llama"),
        "tp 1 and 2, on 4 and 8": lambda m: m.times.origin.tp <= 2,
    }
    for name, has in parts.items():
        report(name, [m for m in wide if has(m)], [m for m in wide if not has(m)])
    if profiles is not None:
        found = [find_profile(path.parent, 1, None, None) for path in sorted(profiles.rglob("meta.yaml"))]
        gddr = [measured(profile_step_times(profile, 1)) for profile in found]
        report("gddr", gddr, gddr)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
