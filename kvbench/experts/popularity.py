"""How likely a token goes to each expert: by layer, by phase, and as it changes over the steps.

    weights     (layers, experts) relative popularity: what one choice of a token is drawn by
    inclusion   (layers, experts) probability that an expert is among the top-k of a token, none twice

Without libm, so that every machine gives the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .keys import BY_STEP, LoadSettings
from .layout import F64

PREFILL, DECODE = 0, 1
_PERMUTATION, _PHASE, _DRIFT = range(3)
"""What a generator is for: one each."""

_STAGES = 16
"""A slow drift goes from one popularity to the next in so many parts."""


@dataclass(frozen=True)
class Routing:
    """How a model's tokens choose.

    layers       that have experts
    groups       of experts, of which a token uses group_limit (DeepSeek's node-limited routing); 1: no groups
    """

    layers: int
    experts: int
    top_k: int
    groups: int = 1
    group_limit: int = 1

    @property
    def group_size(self) -> int:
        return self.experts // self.groups


class Popularity:
    """The weights of every step, from settings and a seed."""

    def __init__(self, settings: LoadSettings, routing: Routing, seed: int) -> None:
        self.settings, self.routing, self.seed = settings, routing, seed
        self._bases = _bases(settings, routing)
        self._known: dict[tuple[int, int], F64] = {}

    def stage(self, step: int, domain: int = 0) -> int:
        """Weights are the same for all steps of a stage; of requests of several domains each is a stage by itself."""
        drift, every = self.settings.drift, self.settings.drift_steps
        if drift not in BY_STEP:
            return domain
        return step * _STAGES // every if drift == "rotate" else step // every

    def weights(self, stage: int, phase: int) -> F64:
        """(layers, experts) of a stage; each layer adds up to 1."""
        if self.settings.drift == "rotate":
            era, part = divmod(stage, _STAGES)
            share = part / _STAGES
            return (1.0 - share) * self._of_era(era, phase) + share * self._of_era(era + 1, phase)
        return self._of_era(stage, phase)

    def _of_era(self, era: int, phase: int) -> F64:
        phase = phase if self.settings.phases_differ else PREFILL
        if (era, phase) not in self._known:
            self._known[era, phase] = self._permuted(era, phase)
        return self._known[era, phase]

    def _permuted(self, era: int, phase: int) -> F64:
        """Recorded tables stay as they are, one after the other; what is drawn has a permutation for every layer.

        A table that is all there is has permutations too, from its second era on and for decode.
        """
        base = self._bases[era % len(self._bases)]
        if self.settings.load == "recorded" and (len(self._bases) > 1 or (era == 0 and phase == PREFILL)):
            return base
        dice = np.random.default_rng([self.seed, _PERMUTATION, era, phase])
        return np.take_along_axis(base, dice.permuted(_orders(self.routing), axis=1), 1)


def _orders(routing: Routing) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.tile(np.arange(routing.experts), (routing.layers, 1))


def _bases(settings: LoadSettings, routing: Routing) -> list[F64]:
    """One, or one for each domain of a recorded table."""
    if settings.load == "recorded":
        found = [_recorded(settings.table, domain, routing) for domain in settings.domain.split(",")]
    else:
        exponent = settings.exponent if settings.load == "zipf" else 0.0
        found = [np.tile(_power(1.0 / np.arange(1, routing.experts + 1), exponent), (routing.layers, 1))]
    return [rows / rows.sum(1, keepdims=True) for rows in found]


def _power(base: F64, exponent: float) -> F64:
    """base ** exponent to 24 bits of the exponent, by squares and square roots: the same on every machine."""
    whole = int(exponent)
    result = np.ones_like(base)
    for _ in range(whole):
        result = result * base
    root, rest = base, exponent - whole
    for _ in range(24):
        root, rest = np.sqrt(root), rest * 2.0
        if rest >= 1.0:
            result, rest = result * root, rest - 1.0
    return result


def _recorded(table: str, domain: str, routing: Routing) -> F64:
    """(layers, experts) counts of a table; its layers are repeated in order where the model has more."""
    path = Path(table)
    where = f"experts.table {table}"
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{where}: cannot be read ({error}); give a JSON file of counts by layer and expert") from None
    for name in [part.strip() for part in domain.split("/") if part.strip()]:
        tree = tree.get("domains", tree) if isinstance(tree, dict) and name not in tree else tree
        if not isinstance(tree, dict) or name not in tree:
            known = ", ".join(sorted(tree)) if isinstance(tree, dict) else "none"
            raise UsageError(f"{where}: no {name!r} of experts.domain = {domain} in it; there are: {known}")
        tree = tree[name]
    try:
        counts = np.array(tree, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: not rows of counts; name a part of it as experts.domain (model/domain)") from None
    if counts.ndim != 2 or counts.shape[1] != routing.experts or counts.shape[0] < 1:
        raise UsageError(f"{where}: has shape {counts.shape}, the model {routing.experts} experts a layer")
    if counts.min() < 0 or not np.all(counts.sum(1) > 0):
        raise UsageError(f"{where}: counts are 0 or more, and not all of a layer 0")
    return counts[np.arange(routing.layers) * counts.shape[0] // routing.layers]


# ---------------------------------------------------------------- from weights to top-k


def inclusion(weights: F64, routing: Routing) -> F64:
    """(layers, experts) probability that an expert is among a token's top-k; a layer adds up to top_k.

    The odds of an expert are its weight times one factor for all. Groups are taken likewise, by their summed weight.
    """
    layers, size = weights.shape[0], routing.group_size
    of_group = weights.reshape(layers, routing.groups, size)
    if routing.groups == 1:
        return _scaled(weights, np.ones_like(weights), float(routing.top_k))
    chosen = _scaled(of_group.sum(-1), np.ones((layers, routing.groups)), float(routing.group_limit))
    within = np.repeat(chosen, size, axis=1)
    return _scaled(weights, within, float(routing.top_k))


def _scaled(weights: F64, most: F64, total: float) -> F64:
    """most * odds / (1 + odds), odds = factor * weights, so that each row adds up to `total`."""
    if total >= weights.shape[1]:
        return most
    low, high = np.zeros((weights.shape[0], 1)), np.ones((weights.shape[0], 1))

    def share(factor: F64) -> F64:
        odds = factor * weights
        return most * odds / (1.0 + odds)

    while np.any(short := share(high).sum(1, keepdims=True) < total):
        high = np.where(short, high * 2.0, high)
        if high.max() > 1e15:  # fewer experts than top_k have any weight
            break
    for _ in range(60):
        middle = (low + high) / 2.0
        short = share(middle).sum(1, keepdims=True) < total
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    found = share(high)
    return found * (total / found.sum(1, keepdims=True))
