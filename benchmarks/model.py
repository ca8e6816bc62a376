"""Tokens per second of the model on this machine, beside eager `transformers` where it is installed.

    python benchmarks/model.py [--size tiny] [--threads 2] [--rounds 5] [--workload 64]

Prefill of one prompt of 512 tokens, decode of 1, 8 and 32 sequences behind 128 tokens, in fast and exact numerics and
in float32. Medians of rounds in which all take turns, so that another load on the machine meets all of them. The peer
is the same architecture with the same weights in torch, the same number of threads, one logit a row; its cache grows
contiguously. Kernels are compiled, or loaded from the disk cache, before the first round, and that is timed apart.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the peer is built by the tests

from kvbench.core.compile_watch import compile_watch
from kvbench.model.config import ModelConfig, named
from kvbench.model.forward import Model
from kvbench.model.weights import Weights, random_weights
from tests.model import peer
from tests.model.paged import Paged, prompts

BATCHES = (1, 8, 32)
PROMPT, CONTEXT, STEPS = 512, 128, 8
Work = Callable[[], int]
"""Runs something and returns how many tokens it computed."""


def prefill(model: Model) -> Work:
    def work() -> int:
        paged = Paged(model, prompts([PROMPT], model.config.vocab), PROMPT, block_tokens=16)
        paged.step({0: PROMPT})
        return PROMPT

    return work


def decode(model: Model, batch: int, rounds: int) -> Work:
    """Each call goes on where the last one ended."""
    most = CONTEXT + (rounds + 1) * STEPS + 1
    paged = Paged(model, prompts([CONTEXT] * batch, model.config.vocab), most, block_tokens=16)
    paged.step(dict.fromkeys(range(batch), CONTEXT))

    def work() -> int:
        for _ in range(STEPS):
            paged.step(dict.fromkeys(range(batch), 1))
        return STEPS * batch

    return work


def peer_prefill(model: Any, config: ModelConfig) -> Work:
    import torch

    given = torch.tensor(prompts([PROMPT], config.vocab))

    def work() -> int:
        with torch.inference_mode():
            model(given, use_cache=True, logits_to_keep=1)
        return PROMPT

    return work


def peer_decode(model: Any, config: ModelConfig, batch: int) -> Work:
    import torch

    given = torch.tensor(prompts([CONTEXT] * batch, config.vocab))
    with torch.inference_mode():
        out = model(given, use_cache=True, logits_to_keep=1)
    state = {"cache": out.past_key_values, "token": out.logits[:, -1].argmax(-1)}

    def work() -> int:
        with torch.inference_mode():
            for _ in range(STEPS):
                out = model(state["token"][:, None], past_key_values=state["cache"], use_cache=True)
                state["token"] = out.logits[:, -1].argmax(-1)
        return STEPS * batch

    return work


def rates(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """Median tokens per second of each; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            begin = time.perf_counter()
            tokens = work()
            found[name].append(tokens / (time.perf_counter() - begin))
    return {name: statistics.median(values) for name, values in found.items()}


def build_peer(config: ModelConfig, weights: Weights, threads: int) -> Any:
    """The model in torch, or None where torch or transformers is missing."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return None
    import torch

    torch.set_num_threads(threads)
    return peer.build(config, weights)


def compare(size: str, threads: int, rounds: int) -> None:
    config = named(size)
    weights = random_weights(config, 0)
    fast, exact = (Model(config, weights, numerics, threads) for numerics in ("fast", "exact"))
    begin = time.perf_counter()
    Paged(fast, prompts([3, 1], config.vocab), 4).step({0: 3, 1: 1})
    Paged(exact, prompts([3], config.vocab), 4).step({0: 3})
    print(f"kernels ready in {time.perf_counter() - begin:.1f} s, of it compiling {compile_watch.seconds:.1f} s")
    other = build_peer(config, weights, threads)
    rows = []
    for name, batch in (("prefill 512", 0), *((f"decode {b}", b) for b in BATCHES)):
        models = {"fast": fast, "exact": exact}
        works = {k: decode(m, batch, rounds) if batch else prefill(m) for k, m in models.items()}
        if other is not None:
            works["peer"] = peer_decode(other, config, batch) if batch else peer_prefill(other, config)
        rate = rates(works, rounds)
        against = rate["fast"] / rate["peer"] if "peer" in rate else None
        rows.append([name, rate["fast"], rate["exact"], rate["fast"] / rate["exact"], rate.get("peer"), against])
    headers = ["tokens/s", "fast", "exact", "exact costs", "eager HF", "fast / HF"]
    print(tabulate(rows, headers, floatfmt=("", ".0f", ".0f", ".2f", ".0f", ".2f")))


def workload(size: str, threads: int, requests: int) -> None:
    """Requests of 128 to 512 tokens in and 64 out, 16 at a time: wall and CPU time, and where it goes."""
    config = named(size)
    model = Model(config, random_weights(config, 0), threads=threads)
    lengths = np.random.default_rng(0).integers(128, 513, requests).tolist()
    spent: dict[str, int] = {}
    begin, cpu = time.perf_counter(), time.process_time()
    for first in range(0, requests, 16):
        paged = Paged(model, prompts(lengths[first : first + 16], config.vocab), 576, block_tokens=16)
        for sequence, length in enumerate(lengths[first : first + 16]):
            add(spent, paged.step({sequence: length}).kernel_ns)
        for _ in range(63):
            add(spent, paged.step(dict.fromkeys(range(len(paged.tokens)), 1)).kernel_ns)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    shares = ", ".join(f"{kind} {ns / seconds / 1e7:.1f} %" for kind, ns in spent.items())
    print(f"{requests} requests, {sum(lengths)} tokens in, {64 * requests} out: {seconds:.1f} s, {cpu:.1f} s of CPU")
    print(shares)


def add(total: dict[str, int], more: dict[str, int]) -> None:
    for kind, ns in more.items():
        total[kind] = total.get(kind, 0) + ns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workload", type=int, metavar="N", help="N requests of 128-512 tokens instead")
    args = parser.parse_args()
    if args.workload:
        workload(args.size, args.threads, args.workload)
    else:
        compare(args.size, args.threads, args.rounds)


if __name__ == "__main__":
    main()
