"""Scripts for SGLang: its radix tree, its waiting order and admission, its whole scheduler.

The scheduler's first streams are named: each drives one rule to its limits. The others are random over all of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .prompts import Prompts
from .scripts import MOST_STEPS, TREE_EVERY, Fields, Operations, Script

_OLD = "0.5.12"
_OLD_EVICTION = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")
_OLD_ORDERS = ("fcfs", "lpm", "dfs-weight", "lof")
_BOUND = {"threshold": 48, "next_prompt_estimate": 16}


def _evictions(version: str) -> tuple[str, ...]:
    return _OLD_EVICTION if version == _OLD else (*_OLD_EVICTION, "tlru")


def _orders(version: str) -> tuple[str, ...]:
    return _OLD_ORDERS if version == _OLD else (*_OLD_ORDERS, "hrrn", "shortest-prefill-first", "priority")


def _bounded(params: Fields, eviction: str) -> Fields:
    """tlru needs to know which tails it may drop."""
    return params | ({"eviction_policy_config": _BOUND} if eviction == "tlru" else {})


# ---------------------------------------------------------------- the tree


def radix_script(seed: int, number: int, operations: int, version: str) -> Script:
    """Matches, inserts, locks and evictions of the radix tree by itself, the policies in turn."""
    rng = np.random.default_rng([seed, 3, number])
    known = _evictions(version)
    policy = known[number % len(known)]
    params: Fields = {
        "page_size": int(rng.choice([1, 4, 16])),
        "policy": policy,
        "namespaces": [None] if rng.random() < 0.5 else [None, "lora-a"],
    }
    planned = _radix_rows(rng, operations, params["page_size"], params["namespaces"])
    header = {
        "params": _bounded(params, policy),
        "seed": seed,
        "notes": "clock: strictly increasing integer counter, one tick per read",
    }
    name = f"sglang_radix_{number:02d}_{policy}_p{params['page_size']}"
    return Script(name, "radix_cache", header, lambda: _as_planned(planned), planned)


def _as_planned(planned: list[Fields]) -> Operations:
    for row in planned:
        yield dict(row)


def _radix_rows(rng: np.random.Generator, operations: int, page: int, namespaces: list[str | None]) -> list[Fields]:
    """chunked: no hit is counted (0.5.12). inserted: no hit is counted of so many leading tokens (from 0.5.23)."""
    prompts = Prompts(rng, 4 if page == 1 else 2, 8 * page + 40)
    rows: list[Fields] = []
    held: list[int] = []
    slot, handles = 0, 0
    while len(rows) < operations:
        kind = rng.random()
        ns = namespaces[int(rng.integers(0, len(namespaces)))]
        key = {"key": prompts.draw()} | ({} if ns is None else {"ns": ns})
        if kind < 0.4:
            more: Fields = {"priority": int(rng.integers(0, 4))} if rng.random() < 0.5 else {}
            more |= {"chunked": True} if rng.random() < 0.1 else {}
            if rng.random() < 0.2:
                more["inserted"] = int(rng.integers(0, len(key["key"]) // page + 1)) * page
            rows.append({"op": "insert", **key, "slot_base": slot, **more})
            slot += -(-len(key["key"]) // page) * page
        elif kind < 0.8:
            rows.append({"op": "match", **key})
            if len(held) < 6 and rng.random() < 0.3:
                rows.append({"op": "lock", "h": handles})
                held.append(handles)
                handles += 1
        elif kind < 0.9 and held:
            rows.append({"op": "unlock", "h": held.pop(int(rng.integers(0, len(held))))})
        else:
            rows.append({"op": "evict", "n": int(rng.integers(1, 6 * page + 20))})
    for number, row in enumerate(rows):
        row["out"] = {"tree": None} if number % TREE_EVERY == TREE_EVERY - 1 else {}
    return rows


# ---------------------------------------------------------------- waiting order and admission


def policy_script(seed: int, number: int, operations: int, version: str) -> Script:
    """The order of waiting requests, and their admission one by one, over one tree that is also written to."""
    rng = np.random.default_rng([seed, 5, number])
    orders = tuple(order for order in _orders(version) if order != "priority")
    order = orders[number % len(orders)]
    page = int(rng.choice([1, 16, 64]))
    params: Fields = {
        "page_size": page,
        "schedule_policy": order,
        "vocab": 40,
        "kv_tokens": page * int(rng.choice([24, 60])) + (400 if page == 1 else 0),
        "namespaces": [None, "a"] if rng.random() < 0.4 else [None],
    }
    ignores = version != _OLD and rng.random() < 0.4
    params |= {} if version == _OLD else {"ignore_eos": bool(ignores)}
    planned = list(_policy_rows(rng, max(operations // 3, 8), params))
    header = {"params": params, "seed": seed, "notes": ""}
    name = f"sglang_policy_{number:02d}_{order}_p{page}"
    return Script(name, "schedule_policy_and_prefill_adder", header, lambda: _as_planned(planned), planned)


def _policy_rows(rng: np.random.Generator, operations: int, params: Fields) -> Any:
    page, tokens = params["page_size"], params["kv_tokens"]
    prompts = Prompts(rng, params["vocab"], tokens // 4)
    named = 0

    def namespace() -> Fields:
        ns = params["namespaces"][int(rng.integers(0, len(params["namespaces"])))]
        return {} if ns is None else {"ns": ns}

    def request() -> Fields:
        nonlocal named
        named += 1
        more: Fields = {"output_so_far": prompts.fresh(1, 12)} if rng.random() < 0.2 else {}
        most = len(more.get("output_so_far", ())) + int(rng.integers(1, tokens // 6))
        return {"id": f"q{named:05d}", "prompt": prompts.draw(), "max_tokens": most, **namespace(), **more}

    for _ in range(operations):
        kind = rng.random()
        if kind < 0.35:
            yield {"op": "insert", "key": prompts.draw(), **namespace(), "out": {}}
        elif kind < 0.42:
            yield {"op": "evict", "n": int(rng.integers(1, tokens // 3)), "out": {}}
        elif kind < 0.7:
            many = 140 if rng.random() < 0.05 else int(rng.integers(2, 14))
            row: Fields = {"op": "calc_priority", "waiting": [request() for _ in range(many)]}
            if params["schedule_policy"] in ("hrrn", "shortest-prefill-first"):
                row["processed"] = int(rng.integers(0, 4000))
                for spec in row["waiting"]:
                    spec["arrival_processed"] = int(rng.integers(0, row["processed"] + 1))
            yield row | {"out": {}}
        else:
            yield _adder_row(rng, page, tokens, [request() for _ in range(int(rng.integers(1, 10)))])


def _adder_row(rng: np.random.Generator, page: int, tokens: int, fed: list[Fields]) -> Fields:
    running = []
    for _ in range(int(rng.integers(0, 6))):
        most = int(rng.integers(1, tokens // 4))
        running.append({"max_tokens": most, "num_output": int(rng.integers(0, most))})
    chunk = page * int(rng.integers(1, max(2, tokens // page // 4)))
    return {
        "op": "prefill_adder",
        "running": running,
        "new_token_ratio": round(float(rng.random()), 3),
        "rem_input_tokens": int(rng.integers(page, tokens)),
        "rem_chunk_tokens": chunk if rng.random() < 0.6 else None,
        "num_mixed_decode_tokens": len(running) if rng.random() < 0.3 else 0,
        "prefill_max_requests": int(rng.integers(1, 6)) if rng.random() < 0.2 else None,
        "held_tokens": int(rng.integers(0, tokens // page // 2)) * page if rng.random() < 0.5 else 0,
        "reqs": fed,
        "out": {},
    }


# ---------------------------------------------------------------- the scheduler

_NAMED: dict[str, Fields] = {
    "chat": {"chat": 0.8},
    "page16_chunks": {"page_size": 16, "kv_tokens": 900, "chunked_prefill_size": 64},
    "page64_lpm": {"page_size": 64, "kv_tokens": 1600, "schedule_policy": "lpm", "namespaces": 0.4},
    "storm": {"kv_tokens": 220, "schedule_conservativeness": 0.01, "decay_steps": 1, "outputs": (30, 90)},
    "storm_page4": {
        "page_size": 4,
        "kv_tokens": 260,
        "schedule_conservativeness": 0.01,
        "decay_steps": 1,
        "outputs": (30, 90),
    },
    "mixed": {"enable_mixed_chunk": True},
    "mixed_storm": {
        "enable_mixed_chunk": True,
        "kv_tokens": 300,
        "schedule_conservativeness": 0.05,
        "decay_steps": 1,
        "outputs": (20, 90),
    },
    "mixed_page16": {
        "enable_mixed_chunk": True,
        "page_size": 16,
        "kv_tokens": 480,
        "schedule_conservativeness": 0.1,
        "outputs": (20, 90),
    },
    "tight_chunks": {"page_size": 16, "kv_tokens": 640, "chunked_prefill_size": 16, "max_prefill_tokens": 32},
    "no_chunks": {"chunked_prefill_size": None, "max_prefill_tokens": 90},
    "no_chunks_page16": {"chunked_prefill_size": None, "max_prefill_tokens": 90, "page_size": 16, "kv_tokens": 800},
    "mixed_without_chunks": {"chunked_prefill_size": None, "enable_mixed_chunk": True},
    "ignore_eos": {"ignore_eos": True},
    "off": {"disable_radix_cache": True},
    "off_ignore_eos": {"disable_radix_cache": True, "ignore_eos": True},
    "off_ignore_eos_page16": {"disable_radix_cache": True, "ignore_eos": True, "page_size": 16, "kv_tokens": 640},
    "off_mixed": {"disable_radix_cache": True, "enable_mixed_chunk": True},
    "off_storm_page16": {
        "disable_radix_cache": True,
        "page_size": 16,
        "kv_tokens": 400,
        "schedule_conservativeness": 0.01,
        "outputs": (30, 90),
    },
    "lpm_twins": {"schedule_policy": "lpm", "twins": 0.7, "burst": True},
    "dfs_chains": {"schedule_policy": "dfs-weight", "burst": True, "namespaces": 0.2},
    "lof": {"schedule_policy": "lof", "burst": True},
    "alone": {"max_running_requests": 1},
    "tiny": {"kv_tokens": 26, "chunked_prefill_size": 8, "max_prefill_tokens": 16, "outputs": (1, 8)},
    "one_token": {"outputs": (1, 1), "kv_tokens": 300},
    "lfu_chat": {"eviction_policy": "lfu", "chat": 0.6, "kv_tokens": 500},
    "fifo_chat": {"eviction_policy": "fifo", "chat": 0.6, "kv_tokens": 500, "page_size": 4},
    "filo_lpm": {"eviction_policy": "filo", "schedule_policy": "lpm", "kv_tokens": 500},
    "mru_chat": {"eviction_policy": "mru", "chat": 0.6, "kv_tokens": 500},
    "slru": {"eviction_policy": "slru", "kv_tokens": 500},
    "urgent_evict": {"eviction_policy": "priority", "kv_tokens": 500, "urgency": True},
    "burst": {"kv_tokens": 2000, "max_running_requests": 64, "max_prefill_tokens": 512, "burst": True, "times": 3},
}
_NAMED_SINCE: dict[str, Fields] = {
    "hrrn": {"schedule_policy": "hrrn", "burst": True},
    "hrrn_mixed_page16": {
        "schedule_policy": "hrrn",
        "burst": True,
        "page_size": 16,
        "kv_tokens": 900,
        "enable_mixed_chunk": True,
    },
    "shortest": {"schedule_policy": "shortest-prefill-first", "burst": True},
    "shortest_page16": {
        "schedule_policy": "shortest-prefill-first",
        "burst": True,
        "page_size": 16,
        "kv_tokens": 900,
        "chunked_prefill_size": 96,
    },
    "shortest_mixed": {"schedule_policy": "shortest-prefill-first", "burst": True, "enable_mixed_chunk": True},
    "urgent": {"schedule_policy": "priority", "urgency": True, "burst": True},
    "urgent_retraction": {
        "schedule_policy": "priority",
        "retraction_policy": "priority",
        "urgency": True,
        "kv_tokens": 240,
        "schedule_conservativeness": 0.01,
        "decay_steps": 1,
        "outputs": (30, 90),
    },
    "tlru_chat": {"eviction_policy": "tlru", "chat": 0.7, "kv_tokens": 500},
    "tlru_page16": {"eviction_policy": "tlru", "chat": 0.7, "kv_tokens": 640, "page_size": 16},
    "refreshed": {"max_running_requests": 2, "kv_tokens": 500, "burst": True, "times": 2},
}
"""Parameters that differ from the usual, and of the load: chat, twins and namespaces are shares, burst: all at once."""

_LOAD: Fields = {
    "chat": 0.2,
    "twins": 0.1,
    "namespaces": 0.0,
    "burst": False,
    "urgency": False,
    "times": 1,
    "outputs": (1, 60),
}


def scheduler_script(seed: int, number: int, operations: int, version: str) -> Script:
    """Requests that arrive; every step is scheduled and run by a fake model, to the end."""
    rng = np.random.default_rng([seed, 6, number])
    named = _NAMED if version == _OLD else _NAMED | _NAMED_SINCE
    what = list(named)[number] if number < len(named) else f"random{number - len(named):03d}"
    chosen = named.get(what) or _random(rng, version)
    load = _LOAD | {name: value for name, value in chosen.items() if name in _LOAD}
    own = {name: value for name, value in chosen.items() if name not in _LOAD}
    params = _scheduler_params(version, own)
    requests = _requests(rng, max(operations // 10, 6) * load["times"], params, load)
    header = {"params": params, "seed": seed, "notes": "", "requests": requests}
    return Script(f"sglang_sched_{number:02d}_{what}", "scheduler", header, lambda: _steps(requests))


def _scheduler_params(version: str, own: Fields) -> Fields:
    """Every parameter, as numbers."""
    conservativeness, decay = own.get("schedule_conservativeness", 1.0), own.pop("decay_steps", None)
    start = min(0.7 * conservativeness, 1.0)
    least = min(start * 0.14, 1.0)
    params: Fields = {
        "page_size": 1,
        "kv_tokens": 900,
        "context_len": own.get("kv_tokens", 900) + 50,
        "max_running_requests": 8,
        "max_prefill_tokens": 256,
        "chunked_prefill_size": 64,
        "enable_mixed_chunk": False,
        "schedule_policy": "fcfs",
        "eviction_policy": "lru",
        "disable_radix_cache": False,
        "schedule_conservativeness": conservativeness,
        "ignore_eos": False,
        "init_new_token_ratio": start,
        "min_new_token_ratio": least,
        "new_token_ratio_decay": (start - least) / (decay or 600),
        "clip_max_new_tokens": 4096,
        "retract_decode_steps": 20,
        "in_batch_check_threshold": 32,
        "in_batch_deprioritize_threshold": 32,
    }
    params |= {"decay_steps": decay} if decay else {}
    params |= {} if version == _OLD else {"retraction_policy": "length"}
    return _bounded(params | own, own.get("eviction_policy", "lru"))


def _random(rng: np.random.Generator, version: str) -> Fields:
    def one(*values: Any) -> Any:
        return values[int(rng.integers(0, len(values)))]

    page = one(1, 1, 2, 4, 16, 32, 64)
    tokens = one(8, 14, 24, 48) * page * one(1, 2) + one(0, page - 1) + (one(30, 100, 300) if page == 1 else 0)
    off = bool(rng.random() < 0.15)
    orders = [order for order in _orders(version) if not off or order in ("fcfs", "lof", "priority")]
    order = one("fcfs", *orders)
    usable = tokens // page * page
    return {
        "page_size": page,
        "kv_tokens": tokens,
        "context_len": tokens + 50,
        "max_running_requests": one(1, 2, 4, 8, 32),
        "max_prefill_tokens": one(page, 4 * page, 64, 256),
        "chunked_prefill_size": one(None, max(page, 4), 2 * page + 4 * (page == 1), 4 * page, 128),
        "enable_mixed_chunk": bool(rng.random() < 0.3),
        "schedule_policy": order,
        "eviction_policy": one("lru", *_evictions(version)),
        "disable_radix_cache": off,
        "schedule_conservativeness": one(0.01, 0.1, 0.3, 1.0, 2.0),
        "ignore_eos": bool(rng.random() < 0.2),
        **({"decay_steps": one(1, 5)} if rng.random() < 0.4 else {}),
        **({"retraction_policy": one("length", "priority")} if order == "priority" else {}),
        "outputs": (1, max(1, min(int(usable * one(0.1, 0.3)), 90))),
        "chat": one(0.0, 0.2, 0.7),
        "twins": one(0.0, 0.2, 0.6),
        "namespaces": one(0.0, 0.0, 0.4),
        "burst": one(False, False, True),
        "urgency": order == "priority" or bool(rng.random() < 0.3),
    }


def _requests(rng: np.random.Generator, many: int, params: Fields, load: Fields) -> list[Fields]:
    """A prompt and its output fit the pool by themselves, so that none waits for ever."""
    page = params["page_size"]
    most = params["kv_tokens"] // page * page - 2 * page - 2
    low, high = load["outputs"]
    prompts = Prompts(rng, int(rng.choice([2, 5, 60])), max(2, most * int(rng.choice([2, 4, 7])) // 10))
    requests: list[Fields] = []
    step = 0
    for i in range(many):
        kind = rng.random()
        if requests and kind < load["twins"]:
            prompt = list(requests[-1]["prompt"])
        elif requests and kind < load["twins"] + load["chat"]:
            before = requests[-1 - int(rng.integers(0, min(3, len(requests))))]
            prompt = before["prompt"] + before["output"] + prompts.fresh(1, max(1, prompts.longest // 4))
        else:
            prompt = prompts.draw()
        prompt = prompt[: max(1, min(prompts.longest * 2, most - 1))]
        output = prompts.fresh(low, high)[: max(1, most - len(prompt))]
        spec: Fields = {
            "id": f"r{i:04d}",
            "arrival_step": step,
            "prompt": prompt,
            "max_tokens": len(output),
            "output": output,
        }
        if rng.random() < load["namespaces"]:
            spec["ns"] = str(rng.choice(["a", "b"]))
        if load["urgency"]:
            spec["priority"] = int(rng.integers(0, 4))
        requests.append(spec)
        gaps = (0, 0, 0, 0, 9) if load["burst"] else (0, 0, 1, 1, 3, 8)
        step += int(rng.choice(gaps))
    return requests


def _steps(requests: list[Fields]) -> Operations:
    left = len(requests)
    for step in range(MOST_STEPS):
        arrive = [r["id"] for r in requests if r["arrival_step"] == step]
        out = yield {"step": step} | ({"arrive": arrive} if arrive else {})
        left -= len(out.get("finished", ())) + len(out.get("oom_aborted", ()))
        if left == 0:
            return
