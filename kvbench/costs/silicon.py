"""Step times from kernels that were measured on real devices: aiconfigurator-core (extra kvbench[silicon])."""

from __future__ import annotations

from ..core.errors import UsageError
from .step_times import StepTimes


def silicon_step_times(system: str, engine: str, model: str, tp: int, dtype: str) -> StepTimes:
    """Step times of a system, engine and model. UsageError: not in the package, or the package is not installed."""
    raise UsageError("device build --silicon is not there yet")
