"""`kvbench device`: what is known of step times, and steps priced by them beside the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..core.units import NS_PER_MS
from ..costs.known_errors import known_error
from ..costs.pricing import price_steps
from ..costs.roofline import roofline_times
from ..costs.step_times import StepTimes, load_step_times
from ..costs.tables import HOST, LIMIT_NAMES
from ..report.step_times import StepCurves
from .configure import configure
from .step_times import found_times, graphs_of
from .system import System, build_system

Rows = list[tuple[str, str]]
F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]


CONTEXTS = (512, 2048, 8192, 32768)
MOST_DECODES, MOST_TOKENS = 1024, 16384


def shown_system(name: str, changes: Sequence[tuple[str, str]]) -> System:
    """The system whose step times are shown. A file of step times says itself what it is of.

    name  a known device, a file that is a device (.npz, .toml), or measured steps (.csv)
    """
    own = [("device show", f"step_times={name}" if name.endswith(".csv") else f"device={name}")]
    if name.endswith(".npz"):
        origin = load_step_times(Path(name)).origin
        own += [("device show", f"{key}={getattr(origin, key)}") for key in ("model", "dtype", "kv_dtype", "tp")]
    return build_system(configure(None, changes=[*own, *changes]).config)


def step_curves(system: System) -> StepCurves:
    """Device time of steps of decodes and of a prompt alone, as a run would price them and by the datasheet."""
    times, graphs = found_times(system), graphs_of(system)
    roof = roofline_times(system.deployment, system.costs)
    contexts = tuple(context for context in CONTEXTS if context <= system.deployment.length)
    decodes = tuple(2**i for i in range(MOST_DECODES.bit_length()))
    tokens = tuple(2**i for i in range(4, MOST_TOKENS.bit_length()) if 2**i <= system.deployment.length)
    steps = [(0, 0, n, context) for context in contexts for n in decodes] + [(n, 0, 0, 0) for n in tokens]
    ms, beyond = _device_ms(times, system, steps)
    by_sheet, _ = _device_ms(roof, system, steps)
    shape = (len(contexts), len(decodes))
    cut = len(contexts) * len(decodes)
    return StepCurves(
        contexts=contexts,
        decodes=decodes,
        tokens=tokens,
        decode_ms=ms[:cut].reshape(shape),
        decode_beyond=beyond[:cut].reshape(shape),
        decode_roofline_ms=by_sheet[:cut].reshape(shape),
        prefill_ms=ms[cut:],
        prefill_beyond=beyond[cut:],
        prefill_roofline_ms=by_sheet[cut:],
        captured=graphs.sizes[-1] if graphs.sizes else 0,
    )


def describe(times: StepTimes) -> Rows:
    """(label, text) of where step times come from, what they hold for and how far."""
    origin = times.origin
    rows = [
        ("step times", origin.source),
        ("device", f"{origin.device.name}: {origin.device.title}"),
        ("model", f"{origin.model} ({origin.shape})"),
        ("type", f"{origin.dtype}, KV {origin.kv_dtype}; {origin.parallelism}"),
        ("engine", origin.engine or "any"),
        ("measured to", _limits(times.limits)),
        ("of that", _share(origin.measured)),
        ("error", known_error(origin.kind, origin.device.name, origin.engine, origin.error)),
    ]
    if times.host:
        rows.append(("host", ", ".join(f"{key} {us:g}" for key, us in times.host.items())))
    if origin.licence:
        rows.append(("licence", origin.licence))
    return rows + [("note", note) for note in origin.notes]


def _device_ms(times: StepTimes, system: System, steps: list[tuple[int, int, int, int]]) -> tuple[F64, Flags]:
    resources, outside = price_steps(times.tables(system.costs, graphs_of(system)), steps)
    return (resources.sum(axis=1) - resources[:, HOST]) / NS_PER_MS, outside > 0


def _limits(limits: tuple[float, ...]) -> str:
    names = {name: f"{int(n):,}" for name, n in zip(LIMIT_NAMES, limits, strict=True) if math.isfinite(n)}
    if not names:
        return "formulas: they hold everywhere"
    return (
        f"steps of {names['tokens']} tokens, {names['sequences']} sequences; chunks of {names['chunk']} on "
        f"{names['chunk_context']}; {names['batch']} decodes of {names['context']} tokens"
    )


def _share(measured: float | None) -> str:
    if measured is None:
        return "share not known"
    return "none: all from formulas" if measured == 0 else f"{measured:.0%} of the sampled time, the rest estimated"
