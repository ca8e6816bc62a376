"""A fit to a user's server: as text of at most 100 columns, and as the device file that it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .fidelity import TITLES
from .record import SCHEMA
from .table import grid, note


@dataclass(frozen=True)
class Line:
    """One coefficient: a factor on the base (unit ""), or a time."""

    name: str
    start: float
    value: float
    low: float
    high: float
    share: float
    is_determined: bool
    unit: str = ""


@dataclass(frozen=True)
class Part:
    """Errors over some of the requests: (metric, statistic) -> measured and replayed, ms."""

    name: str
    requests: int
    figures: Mapping[tuple[str, str], tuple[float, float]]


@dataclass(frozen=True)
class Calibrated:
    """residuals, before: metric -> replayed / measured - 1 at `quantiles` of the requests, after and before the fit.

    server    model, type, parallelism and preset that were replayed
    left_out  stages of the configuration that the requests do not determine: they stay as they are there
    """

    server: str
    base: str
    device: str
    files: Sequence[str]
    requests: int
    lines: Sequence[Line]
    quantiles: Sequence[float]
    residuals: Mapping[str, Sequence[float]]
    before: Mapping[str, Sequence[float]]
    parts: Sequence[Part]
    replays: int
    seconds: float
    left_out: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def off(self) -> tuple[str, float]:
        """What the fit leaves: "TTFT" or "TPOT", whose median is further off, and by what share."""
        medians = {
            TITLES[metric]: values[self.quantiles.index(0.5)] for metric, values in self.residuals.items() if values
        }
        return max(medians.items(), key=lambda pair: abs(pair[1]))

    @property
    def doubt(self) -> str:
        """Why a device of this fit would be none; "": nothing speaks against it."""
        what, share = self.off
        if abs(share) <= MOST_OFF:
            return ""
        return (
            f"after the fit {what} is off by {100 * share:+.0f} % in the median: check the units of the file (s), "
            "--model, --device and --preset"
        )


NEAR = 0.1
"""Of a median: a fit that leaves more is told to begin at another base."""
MOST_OFF = 0.5
"""Of a median: a fit that leaves more has replayed another server, or times in other units."""


def calibration_table(c: Calibrated) -> str:
    """Coefficients with their intervals, residuals by quantile, errors of each part."""
    head = "\n".join(
        [note(f"{c.requests} requests of {', '.join(c.files)}"), note(c.server), note(f"base: {c.device}, {c.base}")]
    )
    rows = [
        [
            line.name,
            line.unit or "x",
            _number(line.start),
            _number(line.value),
            f"{_number(line.low)} .. {_number(line.high)}",
            f"{100 * line.share:.0f}",
            "" if line.is_determined else "not determined",
        ]
        for line in c.lines
    ]
    table = grid(["coefficient", "", "before", "fitted", "95 %", "data %", ""], rows)
    residuals = [
        [f"{TITLES[metric]} {when}", *(f"{100 * value:+.1f}" for value in values[metric])]
        for metric in c.residuals
        for when, values in (("before", c.before), ("fitted", c.residuals))
    ]
    shown = grid(["replayed / measured - 1, %", *(f"p{100 * q:g}" for q in c.quantiles)], residuals)
    errors = [
        [part.name, str(part.requests), TITLES[metric], statistic, *_pair(*values)]
        for part in c.parts
        for (metric, statistic), values in part.figures.items()
    ]
    compared = grid(["requests", "n", "", "", "measured ms", "replayed ms", "error %"], errors)
    told = [f"{c.replays} replays in {c.seconds:.1f} s", *c.notes]
    undetermined = [line.name for line in c.lines if not line.is_determined]
    told += [f"{name}: not determined; left out, as the configuration has it" for name in c.left_out]
    what, share = c.off
    if c.doubt:
        told.insert(0, f"WARNING: {c.doubt}")
    elif abs(share) > NEAR:
        told.insert(0, f"WARNING: {what} is still off by {100 * share:+.0f} % in the median: is {c.device} its device?")
    if undetermined:
        told.append(
            f"Not determined by these requests: {', '.join(undetermined)}. Others make up for them here; a load of "
            "another kind (longer prompts, more in flight) would tell them apart."
        )
    return "\n\n".join([head, table, shown, compared, "\n".join(map(note, told))])


def _pair(measured: float, replayed: float) -> list[str]:
    return [f"{measured:,.2f}", f"{replayed:,.2f}", _error((measured, replayed))]


def _error(pair: tuple[float, float]) -> str:
    return f"{100 * (pair[1] / pair[0] - 1):+.2f}"


def device_file(c: Calibrated) -> str:
    """TOML for `--device FILE.toml`: what the factors are on, the factors, the times."""
    shown = c.parts[-1]
    errors = [
        f"{TITLES[metric]} {statistic} {_error(shown.figures[metric, statistic])} %"
        for metric in ("ttft", "tpot")
        for statistic in ("mean", "p99")
        if (metric, statistic) in shown.figures
    ]
    lines = [
        f'base = "{c.device}"',
        f'source = "calibrated on {c.requests} requests of {", ".join(c.files)}"'.replace("\\", "/"),
        f'error = "{", ".join(errors)} on {shown.requests} requests that were {_what(shown.name)}"',
    ]
    for table, unit in (("scale", ""), ("host", "us")):
        lines += ["", f"[{table}]"]
        lines += [
            f"{line.name} = {line.value:.6g}  # {_number(line.low)} .. {_number(line.high)}"
            f"{'' if line.is_determined else '; not determined'}"
            for line in c.lines
            if line.unit == unit
        ]
    lines += [f"# {name}: not determined; left out" for name in c.left_out]
    return "\n".join(lines) + "\n"


def _what(part: str) -> str:
    return {"held out": "held out of the fit", "fitted": "fitted", "all": "fitted"}[part]


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def calibration_document(c: Calibrated) -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "schema": SCHEMA,
        "server": c.server,
        "device": c.device,
        "base": c.base,
        "files": list(c.files),
        "requests": c.requests,
        "coefficients": [asdict(line) for line in c.lines],
        "quantiles": list(c.quantiles),
        "residuals": {metric: list(values) for metric, values in c.residuals.items()},
        "residuals_before": {metric: list(values) for metric, values in c.before.items()},
        "errors": [
            {"part": part.name, "requests": part.requests, "metric": metric, "statistic": statistic}
            | {"measured_ms": values[0], "replayed_ms": values[1]}
            for part in c.parts
            for (metric, statistic), values in part.figures.items()
        ],
        "replays": c.replays,
        "seconds": round(c.seconds, 3),
        "left_out": list(c.left_out),
        "doubt": c.doubt,
        "notes": list(c.notes),
    }
