"""How even the load of ranks is, in the measures that the engines print."""

from __future__ import annotations

import numpy as np

from .greedy import AnyFloat
from .layout import F64, I64, replica_counts


def slot_loads(load: I64 | F64, experts: I64) -> F64:
    """(layers, slots) tokens of each slot when the replicas of an expert share its tokens evenly.

    load     (layers, num_experts)
    experts  (layers, slots) a map
    """
    load = np.asarray(load, np.float64)
    each = load / np.maximum(replica_counts(experts, load.shape[1]), 1)
    return np.take_along_axis(each, experts, 1)


def rank_loads(of_slots: I64 | AnyFloat, ranks: int) -> F64:
    """(layers, ranks) tokens of each rank."""
    layers = of_slots.shape[0]
    return np.asarray(of_slots, np.float64).reshape(layers, ranks, -1).sum(-1)


def balancedness(of_ranks: F64) -> float:
    """Mean load of a rank over that of the fullest, layers summed (vLLM). 0 without load."""
    most = of_ranks.max(1).sum()
    return float(of_ranks.mean(1).sum() / most) if most > 0 else 0.0


def sglang_balancedness(of_ranks: F64) -> float:
    """Mean over layers of mean over maximum, in float32 with 1e-5 added to both (SGLang): 1 without load."""
    single = of_ranks.astype(np.float32)
    small = np.float32(1e-5)
    mean = single.sum(1, dtype=np.float32) / np.float32(single.shape[1])
    return float(((mean + small) / (single.max(1) + small)).mean(dtype=np.float32))
