"""How many tokens of a step go to each expert of each layer.

Few tokens choose one by one, so that a batch of four touches few experts: top-k of a layer drawn one after the other by
weight, none twice, from the groups that the token has drawn. Of many tokens the counts are drawn at once: mean and
variance of independent tokens, made to add up. A step's draws depend on the seed and the step alone.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, inline, jit

FEW_TOKENS = 32
"""So many tokens of a phase choose one by one."""

_SHUT, _OPEN = np.zeros(1, np.uint8)[0], np.ones(1, np.uint8)[0]

_TRIES = 64
"""Draws of one choice before the most popular that is left is taken."""


@inline
def _mixed(x):
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@inline
def _unit(x):
    """In [0, 1), of the top 53 bits."""
    return np.float64(x >> np.uint64(11)) * (1.0 / 9007199254740992.0)


_STEP = np.uint64(0x9E3779B97F4A7C15)


@entry
def draw_counts(state, tokens, top_k, group_limit, weights, sums, included, counts):
    """Add the choices of the tokens of one phase of a step.

    state     (1,) uint64: of the generator, goes on
    weights   (layers, experts); sums: (layers, groups) their sums by group
    included  (layers, experts) see popularity.inclusion
    counts    (layers, experts) added to: tokens * top_k in every layer
    """
    if tokens <= FEW_TOKENS:
        _one_by_one(state, tokens, top_k, group_limit, weights, sums, counts)
    else:
        _at_once(state, tokens, top_k, included, counts)


@jit
def _draw(state):
    state[0] += _STEP
    return _unit(_mixed(state[0]))


@jit
def _one_by_one(state, tokens, top_k, group_limit, weights, sums, counts):
    layers, experts = weights.shape
    groups = sums.shape[1]
    size = experts // groups
    open_groups = np.ones(groups, np.uint8)
    taken = np.zeros(experts, np.uint8)
    chosen = np.zeros(top_k, np.int64)
    for layer in range(layers):
        for _ in range(tokens):
            if groups > 1:
                open_groups[:] = 0
                for _ in range(group_limit):
                    open_groups[_pick(state, sums, layer, open_groups, _SHUT)] = 1
            for k in range(top_k):
                expert = _pick_expert(state, weights, sums, layer, open_groups, taken, size)
                taken[expert] = 1
                chosen[k] = expert
                counts[layer, expert] += 1
            for k in range(top_k):
                taken[chosen[k]] = 0


@jit
def _pick(state, weights, row, flags, wanted):
    """One column by weight among those whose flag is `wanted`."""
    total = 0.0
    for i in range(flags.size):
        if flags[i] == wanted:
            total += weights[row, i]
    rest = _draw(state) * total
    last = np.int64(-1)
    for i in range(flags.size):
        if flags[i] == wanted:
            last = i
            rest -= weights[row, i]
            if rest < 0.0:
                return last
    return last


@jit
def _pick_expert(state, weights, sums, layer, open_groups, taken, size):
    """One expert of an open group that is not taken, by weight: drawn again while it is taken."""
    for _ in range(_TRIES):
        first = _pick(state, sums, layer, open_groups, _OPEN) * size
        rest = _draw(state) * sums[layer, first // size]
        expert = first
        while expert < first + size - 1 and rest >= weights[layer, expert]:
            rest -= weights[layer, expert]
            expert += 1
        if taken[expert] == 0:
            return expert
    best = np.int64(-1)
    for expert in range(taken.size):
        is_free = taken[expert] == 0 and open_groups[expert // size] == 1
        if is_free and (best < 0 or weights[layer, expert] > weights[layer, best]):
            best = expert
    return best


@jit
def _at_once(state, tokens, top_k, included, counts):
    layers, experts = included.shape
    noise = np.zeros(experts)
    drawn = np.zeros(experts, np.int64)
    for layer in range(layers):
        variance, sum_noise = 0.0, 0.0
        for i in range(experts):
            own = tokens * included[layer, i] * (1.0 - included[layer, i])
            noise[i] = np.sqrt(max(own, 0.0)) * _nearly_normal(state)
            variance += own
            sum_noise += noise[i]
        share = sum_noise / variance if variance > 0.0 else 0.0
        left = tokens * top_k
        for i in range(experts):
            own = tokens * included[layer, i]
            mean = own + noise[i] - share * own * (1.0 - included[layer, i])
            drawn[i] = min(max(np.int64(mean + _draw(state)), 0), tokens)
            left -= drawn[i]
        i = np.int64(_draw(state) * experts)
        step = np.int64(1) if left > 0 else np.int64(-1)
        while left != 0:
            if 0 <= drawn[i] + step <= tokens and included[layer, i] > 0.0:
                drawn[i] += step
                left -= step
            i = i + 1 if i + 1 < experts else 0
        for i in range(experts):
            counts[layer, i] += drawn[i]


@inline
def _nearly_normal(state):
    """Mean 0, variance 1: the sum of eight 16-bit uniforms, without libm."""
    total = np.int64(0)
    for _ in range(2):
        state[0] += _STEP
        bits = _mixed(state[0])
        for shift in range(0, 64, 16):
            total += np.int64((bits >> np.uint64(shift)) & np.uint64(0xFFFF))
    return (np.float64(total) - 8.0 * 32767.5) / 53509.92
