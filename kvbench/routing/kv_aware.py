"""The engine with the least cost: what is left to prefill there, and the blocks that decoding there holds.

    cost = prefill_scale x max(0, (pending + prompt) / block_tokens - credit x cached blocks)
           + blocks of live requests there, this one's among them, each once  + active_weight x live requests

Drawn by chance among equal ones; at a temperature t > 0 with weights exp(-cost / (max - min) / t).
source: Dynamo's KV router 1.6.1; `pending` are prompt tokens sent there without a first token yet, less what was cached
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from . import holder_tree
from .belief import learn, look_up, predict, prompt_keys, refresh, root_of
from .by_load import count
from .choose import draw, draw_least, num_accepting, open_decision
from .router import ENDED, IN_FLIGHT, NO_ENGINE, OUTPUT_BLOCK, PENDING_TOKENS, SENT


def route(router, seqs, seq, now):
    open_decision(router, seqs, seq, now)
    refresh(router, now)
    if num_accepting(router) == 0:
        return NO_ENGINE
    costs(router, seqs, seq)
    engine = draw_least(router, router.cost) if router.rules.temperature == 0 else _draw_soft(router)
    predict(router, seqs, seq, engine)
    return engine


@jit
def costs(router, seqs, seq):
    """Fill cached (tokens), shared (blocks of live requests there that this one has too) and cost, by engine."""
    rules, load, base = router.rules, router.load, router.base
    look_up(router, seqs, seq)
    blocks = prompt_keys(router, seqs, seq)
    holder_tree.look(router.live, root_of(router, seqs, seq), router.keys, blocks, base, router.shared)
    bt = rules.block_tokens
    low = np.int64(1) << 62
    for engine in range(rules.num_engines):
        if router.accepts[engine] == 1:
            low = min(low, load[base + engine, PENDING_TOKENS])
    for engine in range(rules.num_engines):
        pending = load[base + engine, PENDING_TOKENS]
        decay = rules.credit_decay * (max(pending - low, 0) / bt) / max(-(-seqs.prompt[seq] // bt), 1)
        credit = rules.credit / (1.0 + decay)
        prefill = max((pending + seqs.prompt[seq]) / bt - credit * (router.cached[engine] // bt), 0.0)
        decode = decode_blocks(router, engine, blocks)
        active = rules.active_weight * load[base + engine, IN_FLIGHT]
        router.cost[engine] = rules.prefill_scale * prefill + decode + active


@jit
def decode_blocks(router, engine, blocks):
    """Different blocks that live requests hold on an engine once this one is there, and those of their outputs."""
    port = router.base + engine
    return router.live.held[port] + blocks - router.shared[engine] + router.output_blocks[port]


@jit
def _draw_soft(router):
    """An engine by chance, the cheaper the likelier."""
    cost, accepts = router.cost, router.accepts
    low, high = np.inf, -np.inf
    for engine in range(accepts.size):
        if accepts[engine] == 1:
            low, high = min(low, cost[engine]), max(high, cost[engine])
    total, scale = np.int64(0), (high - low) * router.rules.temperature
    for turn in range(2):
        if turn == 1:
            left = draw(router, total)
        for engine in range(accepts.size):
            if accepts[engine] == 1:
                weight = np.int64(1 << 24) if high == low else _exp_weight((cost[engine] - low) / scale)
                if turn == 0:
                    total += weight
                else:
                    left -= weight
                    if left < 0:
                        return engine
    return NO_ENGINE


@jit
def _exp_weight(x):
    """exp(-x) in units of 2 ** -24, x >= 0, without libm: the same on every machine."""
    if x > 20.0:
        return np.int64(0)
    halvings = np.int64(0)
    while x > 0.0625:
        x *= 0.5
        halvings += 1
    value = 1.0 - x * (1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0))))
    for _ in range(halvings):
        value *= value
    return np.int64(value * (1 << 24))


def hear(router, seqs, event, subject, engine, now):
    """Live requests hold their blocks from the decision to the end."""
    count(router, seqs, event, subject, engine, now)
    port = router.base + engine
    if event == SENT:
        n = prompt_keys(router, seqs, subject)
        node, _ = holder_tree.insert(router.live, root_of(router, seqs, subject), router.keys, n, port, np.int64(0))
        holder_tree.count_path(router.live, node, port)
        router.leaf[subject] = node
    elif event == ENDED:
        holder_tree.discount_path(router.live, router.leaf[subject], port)
        router.output_blocks[port] -= router.grown[subject]
        router.grown[subject] = 0
    elif event == OUTPUT_BLOCK:
        router.output_blocks[port] += 1
        router.grown[subject] += 1
    learn(router, seqs, event, subject, engine, now)
