"""`kvbench device`: what is known of step times, and steps priced by them beside the roofline."""

from __future__ import annotations

import math

from ..costs.known_errors import known_error
from ..costs.step_times import StepTimes
from ..costs.tables import LIMIT_NAMES

Rows = list[tuple[str, str]]


def describe(times: StepTimes) -> Rows:
    """(label, text) of where step times come from, what they hold for and how far."""
    origin = times.origin
    rows = [
        ("step times", origin.source),
        ("device", f"{origin.device.name}: {origin.device.title}"),
        ("model", f"{origin.model} ({origin.shape})"),
        ("type", f"{origin.dtype}, KV {origin.kv_dtype}; {origin.parallelism}"),
        ("engine", origin.engine or "any"),
        ("measured up to", _limits(times.limits)),
        ("of that", _share(origin.measured)),
        ("error", known_error(origin.kind, origin.error)),
    ]
    if times.host:
        rows.append(("host", ", ".join(f"{key} {us:g}" for key, us in times.host.items())))
    if origin.licence:
        rows.append(("licence", origin.licence))
    return rows + [("note", note) for note in origin.notes]


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
