"""Which replica a token goes to, as the engines choose: how the load of an expert is split over its slots."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from .layout import I64, Layout

_KNUTH = np.uint64(2654435769)
_ASCEND_ROWS = 1024
_SGLANG_SEED = 42

Slots = Sequence[Sequence[int]]
"""Of one layer: the slots of every expert, in the order in which their replicas were made."""


def _picked(slots: Slots, ids: I64, index: I64) -> I64:
    """The slot of each choice; index is taken modulo the replicas of its expert."""
    width = max(len(s) for s in slots)
    table = np.array([[*s, *([s[0]] * (width - len(s)))] for s in slots], np.int64)
    counts = np.array([len(s) for s in slots], np.int64)
    return table[ids, index % counts[ids]]


def vllm(slots: Slots, ids: I64) -> I64:
    """By a hash of the token's row in the batch of its rank, the same for all its experts. slots ascend.

    ids  (tokens, k) experts
    """
    rows = np.arange(ids.shape[0], dtype=np.uint64) * _KNUTH % np.uint64(1 << 32)
    return _picked(slots, ids, np.broadcast_to(rows.astype(np.int64)[:, None], ids.shape))


def sglang_rows(slots: Slots, ids: I64) -> I64:
    """SGLang's dynamic choice without an all-to-all backend: by the row in the batch."""
    rows = np.arange(ids.shape[0], dtype=np.int64)[:, None]
    return _picked(slots, ids, np.broadcast_to(rows, ids.shape))


def sglang_drawn(slots: Slots, ids: I64, draws: I64) -> I64:
    """SGLang's dynamic choice with one: by draws from 0 to 65,535, a draw for every choice."""
    return _picked(slots, ids, draws.reshape(ids.shape))


def sglang_static(slots: Slots, layout: Layout, dice: random.Random | None = None) -> I64:
    """(ranks, experts) the slot that each rank uses for an expert (SGLang's default with an all-to-all backend).

    The nearest replica: on the own rank, else on the own node where that narrows the choice, else dealt fairly.
    dice  one generator runs over all layers
    """
    dice = dice or random.Random(_SGLANG_SEED)
    table = np.full((layout.ranks, layout.experts), -1, np.int64)
    for expert, candidates in enumerate(slots):
        for rank in range(layout.ranks):
            table[rank, expert] = _nearest(candidates, rank, layout)
        left = table[:, expert] < 0
        table[left, expert] = _dealt(candidates, int(left.sum()), dice)
    return table


def _nearest(candidates: Sequence[int], rank: int, layout: Layout) -> int:
    """The one slot that distance decides for; -1 when it decides nothing."""
    if len(candidates) == 1:
        return candidates[0]
    own = [slot for slot in candidates if slot // layout.slots_per_rank == rank]
    if own:
        return own[0]
    node = rank // layout.ranks_per_node
    near = [slot for slot in candidates if slot // layout.slots_per_rank // layout.ranks_per_node == node]
    return near[0] if near and len(near) < len(candidates) else -1


def _dealt(candidates: Sequence[int], size: int, dice: random.Random) -> list[int]:
    """So many choices of which none is made more than once oftener than another, in a random order."""
    times, rest = divmod(size, len(candidates))
    dealt = list(candidates) * times + dice.sample(list(candidates), k=rest)
    dice.shuffle(dealt)
    return dealt


def ascend_by_row(slots: Slots, ids: I64, rank: int) -> I64:
    """vllm-ascend v2: (row mod 1,024 + rank + expert) mod replicas."""
    rows = np.arange(ids.shape[0], dtype=np.int64)[:, None] % _ASCEND_ROWS
    return _picked(slots, ids, rows + rank + ids)


def ascend_by_rank(slots: Slots, ranks: int, tp: int = 1) -> I64:
    """(ranks, experts) vllm-ascend v1: a rank uses one replica of each expert."""
    expert, rank = np.arange(len(slots)), np.arange(ranks)[:, None]
    index = rank if tp == 1 else rank % tp + rank // tp + expert
    return _picked(slots, np.broadcast_to(expert, (ranks, len(slots))), np.broadcast_to(index, (ranks, len(slots))))
