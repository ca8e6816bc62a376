"""Where placing experts anew pays: skew x tokens of a step x redundant experts, without an engine.

Steps of equal tokens on every device are drawn and priced under the first map, with the fewest redundant experts asked
for, and under a balanced one; attention and the rest of a step are those of the cost tables. What a move costs is that
of a synchronous one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..costs.pricing import price_steps
from ..experts.mixture import Mixture
from ..report.expert_table import ExpertCase
from .configure import configure
from .experts import mixture_of
from .step_times import step_costs
from .system import System, build_system

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Axes:
    """skews: exponents of zipf; tokens: of a device in a step; redundant: experts. is_prefill: a chunk a device."""

    skews: Sequence[float]
    tokens: Sequence[int]
    redundant: Sequence[int]
    is_prefill: bool
    context: int
    steps: int


def expert_cases(changes: Sequence[tuple[str, str]], axes: Axes, progress: Progress) -> list[ExpertCase]:
    """A case for every point. UsageError: a deployment that cannot be."""
    cases: list[ExpertCase] = []
    total = len(axes.skews) * len(axes.tokens) * len(axes.redundant)
    for skew in axes.skews:
        plain = _system(changes, skew, min(axes.redundant), "off")
        blocks = plain.budget.num_blocks
        for tokens in axes.tokens:
            rest = _rest_ns(plain, tokens, axes)
            before, even_before, _ = _together(mixture_of(plain), tokens, axes)
            for redundant in axes.redundant:
                progress(len(cases), total)
                system = _system(changes, skew, redundant, "static")
                after, even_after, pause = _together(mixture_of(system), tokens, axes)
                saved = before - after
                cases.append(
                    ExpertCase(
                        skew=skew,
                        tokens=tokens,
                        redundant=redundant,
                        even_before=even_before,
                        even_after=even_after,
                        step_ns=rest + before,
                        saved_ns=saved,
                        pause_ns=pause,
                        blocks=system.budget.num_blocks / blocks,
                    )
                )
    progress(total, total)
    return cases


def _system(changes: Sequence[tuple[str, str]], skew: float, redundant: int, mode: str) -> System:
    point = [
        ("experts", f"experts.exponent={skew}"),
        ("experts", f"eplb.redundant={redundant}"),
        ("experts", f'eplb.mode="{mode}"'),
    ]
    return build_system(configure("batch-offline", changes=[*changes, *point]).config)


def _rest_ns(system: System, tokens: int, axes: Axes) -> float:
    """ns of a rank's step without its routed experts and their exchange."""
    of_rank = tokens * system.config["tp"]
    step = (of_rank, axes.context, 0, 0) if axes.is_prefill else (0, 0, of_rank, axes.context)
    resources, _ = price_steps(step_costs(system).tables, [step])
    return float(resources.sum())


def _together(mixture: Mixture, tokens: int, axes: Axes) -> tuple[float, float, int]:
    """Mean ns of experts and exchange in a step; balancedness; ns of a synchronous move to the map at hand."""
    row = np.zeros((mixture.ranks.count, 2), np.int64)
    row[:, 0 if axes.is_prefill else 1] = tokens * mixture.ranks.tp
    terms = np.zeros((mixture.ranks.count, 4))
    spent = [mixture.step(index, 0, row, terms)[0] for index in range(axes.steps)]
    even = sum(mixture.records.mean) / max(sum(mixture.records.most), 1e-9)
    return float(np.mean(spent)), even, mixture.balancer.static_pause_ns
