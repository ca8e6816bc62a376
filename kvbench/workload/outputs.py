"""Outputs of rows that state none: trace.default_output, or a fault that names it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .draws import Purpose, uniforms
from .lengths import whole_numbers
from .options import TraceOptions
from .rows import I64, Faults

F64 = NDArray[np.float64]


def default_outputs(size: int, options: TraceOptions) -> I64:
    """(size,) drawn by trace.default_output, whichever rows need it. UsageError: it is no distribution."""
    u = uniforms(options.length_seed, Purpose.OUTPUT, size)
    return whole_numbers(options.default_output, u, "trace.default_output")


def filled(output: F64, faults: Faults, options: TraceOptions, name: str) -> tuple[F64, tuple[str, ...]]:
    """(n,) lengths with the missing ones (NaN) filled in, and a note; without a default they are marked."""
    missing = np.isnan(output) & ~faults.bad
    if not missing.any():
        return output, ()
    if options.default_output == 0:
        faults.mark(missing, lambda i: missing_text(name))
        return output, ()
    drawn = default_outputs(output.size, options)
    return np.where(missing, drawn, output), default_note(int(missing.sum()), output.size)


def missing_text(name: str) -> str:
    return f"has no {name}; trace.default_output=128 (or a distribution) stands for it"


def default_note(count: int, rows: int) -> tuple[str, ...]:
    return (f"{count:,} of {rows:,} rows state no output: drawn by trace.default_output",) if count else ()
