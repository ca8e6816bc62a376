"""What `--cache-only` prints: every figure with the rule that it follows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .table import REPLAY_BOUNDS, grid, note

_OWN = {
    "hit_rate_tokens": "of prompt tokens, as a run finds them whose requests lie far apart",
    "hit_rate_blocks": "the same hits, of whole blocks of the prompts",
    "hit_rate_ids": "as published: opaque ids in a plain LRU, uncapped, no answers",
}
_BOUNDS = {"infinite": "nothing is ever evicted", "optimum": "that many blocks, with the future known"}

_COUNTS = {
    "requests": "of the workload",
    "counted": "requests that the rates count",
    "refused": "sequences that the engine refuses",
    "prompts_with_answers": "prompts that quote an answer, or may: explicit ids",
    "prompt_tokens": "asked for",
    "hit_tokens": "found",
    "blocks": "whole blocks of the prompts",
    "hit_blocks": "whole blocks found",
    "evicted_blocks": "while requests were counted",
    "capacity_blocks": "of the cache; 0 = no bound",
    "seconds": "that the replay took",
    "engines": "behind the router",
}

_ENGINES_SHOWN = 8
"""More engines are shown by the least, the median and the most."""
_FLEET_LOAD = (
    "load needs a clock: here a request is in flight, without a first token, until 64 others an engine have been sent. "
    "A run with --replicas has real queues"
)


def answers_rule(figures: Mapping[str, Any]) -> str:
    """What enters the cache beside prompts, and whether the workload can tell who finds it."""
    if not figures["answers"]:
        return "prompts alone enter the cache; in a run answers do, too"
    if figures["prompts_with_answers"] == 0:
        return (
            "answers enter the cache as in a run, and no prompt here quotes one: they take room and are never found "
            "(a trace of ids or lengths cannot say who quotes what)"
        )
    return "answers enter the cache as in a run, all but their last token"


def warm_up_rule(figures: Mapping[str, Any]) -> str:
    """Which requests are not counted."""
    if not figures["warm_up"]:
        return ""
    return f"the first {100 * figures['warm_up']:g} % of the requests fill the cache and are not counted"


def refused_rule(figures: Mapping[str, Any]) -> str:
    """Requests that are in no rate."""
    if not figures["refused"]:
        return ""
    return (
        f"{figures['refused']:,} sequences, which an engine refuses (longer than the cache or max_model_len, or "
        "without an answer), are in no rate"
    )


def rules(figures: Mapping[str, Any]) -> dict[str, str]:
    """Rate -> the rule that it follows; answers, warm_up: of all but the ids' rates."""
    found = {"answers": answers_rule(figures), "warm_up": warm_up_rule(figures), "refused": refused_rule(figures)}
    for name in figures:
        base, _, bound = name.rpartition("_")
        if name in _OWN:
            found[name] = _OWN[name]
            if name == "hit_rate_tokens" and not figures["answers"]:
                found[name] = "of prompt tokens, prompts alone in the cache (a run has answers in it)"
        elif base in _OWN and bound in _BOUNDS:
            found[name] = f"at most: {_BOUNDS[bound]}"
    return {name: text for name, text in found.items() if text}


def replay_table(figures: Mapping[str, Any]) -> str:
    """Rates, then counts, then the rules of all."""
    said = rules(figures)
    rates = [[name, f"{figures[name]:.4f}", text] for name, text in said.items() if name.startswith("hit_rate_")]
    counts = [[name, _count(figures[name]), text] for name, text in _COUNTS.items() if name in figures]
    tables = [grid(["", "", "rule"], rows, ("left", "right", "left")) for rows in (rates, counts)]
    if "engines" in figures:
        tables.append(_engines(figures))
    return "\n\n".join([*tables, replay_notes(figures)]) + "\n"


def replay_notes(figures: Mapping[str, Any]) -> str:
    """What holds for all rates, and what the bounds are."""
    said = rules(figures)
    texts = [f"{name}: {said[name]}." for name in ("answers", "warm_up", "refused") if name in said]
    return "\n\n".join(map(note, [*texts, _FLEET_LOAD if "engines" in figures else REPLAY_BOUNDS]))


def _engines(figures: Mapping[str, Any]) -> str:
    """Requests and hit rate of every engine, or the spread of each over many."""
    columns = [figures["requests_engines"], figures["hit_rate_engines"]]
    names = [str(i) for i in range(figures["engines"])]
    if len(names) > _ENGINES_SHOWN:
        columns = [[min(values), sorted(values)[len(values) // 2], max(values)] for values in columns]
        names = ["min", "median", "max"]
    rows = [[name, f"{requests:,}", f"{rate:.4f}"] for name, requests, rate in zip(names, *columns, strict=True)]
    return grid(["engine", "requests", "hit_rate_tokens"], rows)


def replay_document(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    return {**figures, "rules": rules(figures)}


def _count(value: float | int) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"
