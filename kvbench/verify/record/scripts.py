"""What a recording consists of before there is an engine: parameters, requests and operations, from a seed.

A script yields rows and is sent what was observed, because some decisions depend on it: an allocation that failed
is not computed, a request that finished is not aborted. A row's `out` names what is to be observed beside the usual.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .prompts import Prompts

Fields = dict[str, Any]
Operations = Generator[Fields, Fields, None]

MOST_STEPS = 3_000
LISTED_BLOCKS = 96
"""Pools up to this size are recorded with their whole free queue."""
TREE_EVERY = 25


@dataclass(frozen=True)
class Script:
    """One stream to be recorded.

    name        of the file, without suffix
    header      params, seed and what belongs to the component
    planned     rows that hold every token there will be; only kvbench's own code wants them ahead
    operations  starts the rows anew
    """

    name: str
    component: str
    header: Fields
    operations: Callable[[], Operations]
    planned: list[Fields] = field(default_factory=list)


# ---------------------------------------------------------------- vLLM's cache manager


def manager_script(seed: int, number: int, operations: int, version: str) -> Script:
    """Look-ups, allocations, outputs, frees, preemptions and resets of the KV cache manager."""
    rng = np.random.default_rng([seed, 1, number])
    params = {
        "num_blocks": int(rng.choice([24, 48, 90])),
        "block_size": int(rng.choice([4, 16])),
        "enable_prefix_caching": bool(rng.random() < 0.85),
        "max_model_len": 400,
    }
    prompts = Prompts(rng, 200, params["block_size"] * params["num_blocks"] // 4)
    planned: list[Fields] = []
    for i in range(operations // 8 + 2):
        prompt = prompts.draw()
        salt = {"salt": "s1"} if rng.random() < 0.1 else {}
        planned.append({"op": "new", "id": f"q{i}", "prompt": prompt, **salt})
        planned.append({"op": "append", "id": f"q{i}", "tokens": prompts.fresh(8, 40)})
        prompts.said(prompt + planned[-1]["tokens"])
    header = {"params": params, "seed": seed, "notes": ""}
    order = int(rng.integers(0, 1 << 31))
    return Script(
        f"vllm_kvmgr_{number:02d}",
        "v1_kv_cache_manager",
        header,
        lambda: _manager_operations(np.random.default_rng(order), planned, operations, params["block_size"]),
        planned,
    )


@dataclass
class _Live:
    """A request of the cache manager's script. computed: tokens; holds: whether it has blocks."""

    name: str
    tokens: int
    coming: list[int]
    computed: int = 0
    holds: bool = False


def _manager_operations(rng: np.random.Generator, planned: list[Fields], operations: int, block: int) -> Operations:
    waiting = list(zip(planned[::2], planned[1::2], strict=True))
    live: list[_Live] = []
    for _ in range(operations):
        kind = rng.random()
        if waiting and (not live or (kind < 0.12 and len(live) < 8)):
            first, later = waiting.pop(0)
            yield dict(first)
            live.append(_Live(first["id"], len(first["prompt"]), list(later["tokens"])))
            continue
        if not live or kind > 0.995:
            yield {"op": "reset_prefix_cache"}
            continue
        r = live[int(rng.integers(0, len(live)))]
        if kind < 0.2:
            yield {"op": "free", "id": r.name}
            live.remove(r)
        elif kind < 0.24 and r.holds:
            yield {"op": "preempt", "id": r.name}
            r.computed, r.holds = 0, False
        elif r.computed == r.tokens and r.coming:
            few = int(rng.integers(1, 4))
            yield {"op": "append", "id": r.name, "tokens": r.coming[:few]}
            r.tokens += len(r.coming[:few])
            del r.coming[:few]
        elif r.computed < r.tokens:
            yield from _allocate(rng, r, block)


def _allocate(rng: np.random.Generator, r: _Live, block: int) -> Operations:
    """The next tokens of a request, perhaps a part of them; one that holds nothing is looked up before."""
    found = 0
    if not r.holds:
        found = (yield {"op": "get_computed", "id": r.name})["n"]
    left = r.tokens - r.computed - found
    tokens = left if rng.random() < 0.6 else int(rng.integers(1, left + 1))
    got = yield {"op": "allocate", "id": r.name, "n_new": tokens, "n_computed": found}
    if got["ok"]:
        r.computed += found + tokens
        r.holds = True


# ---------------------------------------------------------------- vLLM's scheduler


def scheduler_script(seed: int, number: int, operations: int, version: str) -> Script:
    """Requests that arrive and are aborted; every step is scheduled and run by a fake model, to the end."""
    rng = np.random.default_rng([seed, 2, number])
    block = int(rng.choice([4, 16]))
    blocks = int(rng.choice([24, 40, 90]))
    params: Fields = {
        "block_size": block,
        "num_blocks": blocks,
        "max_num_seqs": int(rng.choice([4, 8, 32])),
        "max_num_batched_tokens": int(rng.choice([32, 64, 256])),
        "max_model_len": block * blocks * 3 // 4,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": bool(rng.random() < 0.8),
        "policy": str(rng.choice(["fcfs", "fcfs", "priority"])),
        "long_prefill_token_threshold": int(rng.choice([0, 0, 24])),
        "scheduler_reserve_full_isl": bool(rng.random() < 0.7),
        "async_scheduling": False,
    }
    requests = _requests(rng, max(operations // 8, 4), params["max_model_len"], params["policy"] == "priority")
    header = {"params": params, "seed": seed, "notes": "", "requests": requests}
    listed = {"free_queue": None} if blocks <= LISTED_BLOCKS else {}
    name = f"vllm_sched_{number:02d}_{params['policy']}"
    return Script(name, "v1_scheduler", header, lambda: _steps(requests, listed))


def cadence_script(seed: int, number: int, operations: int, version: str) -> Script:
    """The same with the rules that vLLM has only since 0.33."""
    script = scheduler_script(seed, 1000 + number, operations, version)
    rng = np.random.default_rng([seed, 6, number])
    params = script.header["params"]
    few = [None, 2, 4]
    params |= {
        "max_num_active_seqs": few[int(rng.integers(0, 3))],
        "long_prefill_token_threshold": int(rng.choice([0, 4, 12])),
        "long_prefill_token_threshold_adaptive": bool(rng.random() < 0.5),
        "prefill_schedule_interval": int(rng.choice([1, 2, 3, 6])),
        "watermark": float(rng.choice([0.0, 0.0, 0.05, 0.2])),
    }
    return replace(script, name=f"vllm_sched_cadence_{number:02d}_{params['policy']}")


def _requests(rng: np.random.Generator, count: int, longest: int, urgent: bool) -> list[Fields]:
    prompts = Prompts(rng, 400, longest // 2)
    requests, step = [], 0
    for i in range(count):
        prompt, output = prompts.draw(), prompts.fresh(1, longest // 4)
        r: Fields = {"id": f"r{i}", "arrival_step": step, "prompt": prompt, "max_tokens": len(output), "output": output}
        if rng.random() < 0.2:
            r["eos"] = output[int(rng.integers(0, len(output)))]
        if rng.random() < 0.1:
            r["salt"] = "tenant-a"
        if urgent:
            r["priority"] = int(rng.integers(0, 3))
        if rng.random() < 0.1:
            r["abort_step"] = step + int(rng.integers(1, 20))
        requests.append(r)
        prompts.said(prompt + output)
        step += int(rng.choice([0, 0, 1, 1, 3]))
    return requests


def _steps(requests: list[Fields], listed: Fields) -> Operations:
    over: set[str] = set()
    for step in range(MOST_STEPS):
        arrive = [r["id"] for r in requests if r["arrival_step"] == step]
        abort = [r["id"] for r in requests if r.get("abort_step") == step and r["id"] not in over]
        row: Fields = {"step": step, "out": dict(listed)}
        got = yield row | ({"arrive": arrive} if arrive else {}) | ({"abort": abort} if abort else {})
        over.update(abort, (name for name, _ in got.get("finished", ())))
        if len(over) == len(requests):
            return
