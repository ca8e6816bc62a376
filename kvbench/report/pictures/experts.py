"""Experts over the time of a run: how even their devices are, and what each of them has to do."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from .chart import F64, Axis, Chart, Rule, Series, axis
from .folders import RunFolder

_BINS = 200
_DECISIONS = 40
"""Decisions that are marked; of more of them none is."""


def experts(run: RunFolder, colour: int) -> Chart | None:
    """Balancedness over time, with the decisions marked."""
    e = run.experts
    if e is None or e["step"].size == 0:
        return None
    pairs, rules = _pairs(e), _new_maps(e)
    seconds = np.array([e["begin_ms"][a:b].mean() for a, b in pairs]) / 1000
    even = np.array([_share(e, slice(a, b)) for a, b in pairs])
    rows = [(name, f"{_share(e, part):.3f}") for name, part in _parts(e)]
    return Chart(
        "experts",
        "Balancedness of expert devices over time",
        axis("time (s)", [0.0, *seconds], zero=True, steps=10),
        Axis("mean load / fullest device", high=1.0),
        (Series(run.label, seconds, even, colour),),
        ("", "balancedness"),
        tuple(rows),
        rules=rules,
        note="Lines mark new maps. " if rules else "",
    )


def devices(run: RunFolder, colour: int) -> Chart | None:
    """Load of devices over time, of the mean one: from the emptiest to the fullest, and the fullest of each layer."""
    e = run.experts
    if e is None or e["step"].size == 0:
        return None
    loads = np.stack([values for name, values in e.items() if name.startswith("device_")])
    pairs = _pairs(e)
    seconds = np.array([e["begin_ms"][a:b].mean() for a, b in pairs]) / 1000
    means = np.stack([loads[:, a:b].mean(1) for a, b in pairs], axis=1)
    shares = means / np.maximum(means.mean(0), 1e-9)
    in_layer = np.array([1.0 / max(_share(e, slice(a, b)), 1e-9) for a, b in pairs])
    series = (
        Series("fullest of each layer", seconds, in_layer, colour),
        Series("all layers", seconds, shares.max(0), colour, "faint", shares.min(0)),
    )
    rows = [(f"device {i}", f"{row.mean():,.0f}", f"{row.mean() / loads.mean():.2f}") for i, row in enumerate(loads)]
    rules = _new_maps(e)
    return Chart(
        "devices",
        "Load of expert devices over time",
        axis("time (s)", [0.0, *seconds], zero=True, steps=10),
        axis("tokens, of the mean device", [0.0, *in_layer, *shares.max(0)], zero=True),
        series,
        ("", "tokens a step", "of the mean"),
        tuple(rows),
        rules=rules,
        note="The area: emptiest to fullest device, layers summed. " + ("Lines mark new maps. " if rules else ""),
    )


def _pairs(e: dict[str, F64]) -> list[tuple[int, int]]:
    """First step and the one behind the last, of each point."""
    edges = np.unique(np.linspace(0, e["step"].size, min(_BINS, e["step"].size) + 1).astype(int))
    return list(pairwise(edges.tolist()))


def _new_maps(e: dict[str, F64]) -> tuple[Rule, ...]:
    """When steps began to read them."""
    rules = [Rule(float(e["begin_ms"][i]) / 1000, "", "x") for i in np.flatnonzero(np.diff(e["decision"])) + 1]
    return tuple(rules) if len(rules) <= _DECISIONS else ()


def _share(e: dict[str, F64], part: Any) -> float:
    most = e["most_tokens"][part].sum()
    return float(e["mean_tokens"][part].sum() / most) if most > 0 else float("nan")


def _parts(e: dict[str, F64]) -> list[tuple[str, Any]]:
    found = []
    for name, flag in (("decode", 0), ("with prefill", 1)):
        for when, has in (("first map", e["decision"] == 0), ("later maps", e["decision"] > 0)):
            part = np.flatnonzero((e["prefill"] == flag) & has)
            if part.size:
                found.append((f"{name}, {when}", part))
    return found
