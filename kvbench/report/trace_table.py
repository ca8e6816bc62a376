"""`kvbench trace info`, `convert` and `fit` as text of at most 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .table import grid, labelled, note

Info = Mapping[str, Any]

_HIT_RULES = (
    "tokens: of prompt tokens; a prompt finds all but its last token at most, and answers are in the cache. no "
    "answers: prompts alone are. whole blocks: the hits of the first column, of whole blocks of the prompts. ids of "
    "the trace: as published, ids as opaque units, uncapped."
)


def info_table(info: Info) -> str:
    """Head, lengths, hit rates, notes of one trace."""
    head = [
        ("trace", f"{info['path']}"),
        ("format", f"{info['format']}; sha256 {info['sha256'][:16]}; fingerprint {info['fingerprint'][:16]}"),
        ("requests", f"{info['requests']:,}; {info['bad_rows']:,} bad rows left out"),
        ("times", info["time_unit"]),
        ("arrivals", _arrivals(info)),
        ("bursts", _bursts(info)),
        ("sessions", _sessions(info)),
        ("rows", info["turns_of_rows"]),
        ("blocks", _blocks(info)),
    ]
    lengths = [["prompt tokens", *_row(info["prompt_tokens"])], ["output tokens", *_row(info["output_tokens"])]]
    hits = [
        [f"{row['block_tokens']:,}", *(_rate(row[name]) for name in ("tokens", "prompts", "blocks", "ids"))]
        for row in info["hit_rates"]
    ]
    parts = [
        labelled([(name, text) for name, text in head if text]),
        grid(["", "mean", "p50", "p90", "p99", "min", "max"], lengths),
        "hit rate of a cache that never evicts, one request after another, as a run would find it\n"
        + grid(["block tokens", "tokens", "tokens, no answers", "whole blocks", "ids of the trace"], hits),
        note(_HIT_RULES),
        labelled([("note", note) for note in info["notes"]]),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _arrivals(info: Info) -> str:
    if info["rate_rps"] is None:
        return f"{info['arrivals']:,}, all at once"
    return (
        f"{info['arrivals']:,} in {info['duration_s']:,.1f} s: {info['rate_rps']:.4g}/s; "
        f"{info['input_tokens_per_s']:,.0f} prompt and {info['output_tokens_per_s']:,.0f} output tokens/s"
    )


def _bursts(info: Info) -> str:
    if info["rate_rps"] is None:
        return ""
    spread = info["variance_to_mean_per_s"]
    return (
        f"gaps CV {_number(info['gap_cv'])}, the largest {info['largest_gap_s']:,.1f} s; variance/mean per 1 s "
        f"{_number(spread)}; {info['distinct_times']:,} times, up to {info['most_at_one_time']:,} at one"
    )


def _sessions(info: Info) -> str:
    if not info["sessions"]:
        return ""
    turns, think = info["turns"], info["think_s"]
    text = f"{info['sessions']:,}; turns p50 {_number(turns['p50'])}, max {turns['max']:,}"
    if think:
        text += f"; think time p50 {_number(think['p50'])}, p90 {_number(think['p90'])}, p99 {_number(think['p99'])} s"
    return text


def _blocks(info: Info) -> str:
    age = info["reuse_age_s"]
    if not info["own_ids"] and info["one_time_share"] == 1.0:
        return (
            f"{info['blocks']:,} of {info['block_tokens']} tokens; no two prompts share anything that the file tells, "
            "so hit rates of 0 say nothing where it holds lengths alone"
        )
    text = (
        f"{info['blocks']:,} of {info['block_tokens']} tokens, {info['distinct_blocks']:,} different, "
        f"{100 * info['one_time_share']:.1f} % of these used once"
    )
    if info["ids_name_prefixes"] is False:
        text += "; some ids stand behind different ones, so they name contents and not prefixes"
    if age["p50"] is None:
        return text
    return f"{text}; reuse age p50 {_number(age['p50'])}, p90 {_number(age['p90'])}, p99 {_number(age['p99'])} s"


def _row(numbers: Mapping[str, Any]) -> list[str]:
    return [_number(numbers[name]) for name in ("mean", "p50", "p90", "p99", "min", "max")]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100_000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.2f}"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def fit_table(block_tokens: int, distances: Mapping[str, tuple[float | None, float | None, float]]) -> str:
    """How far a fitted workload is from its trace."""
    rows = [[name, _rate(trace), _rate(fit), f"{apart:.4f}"] for name, (trace, fit, apart) in distances.items()]
    said = note(
        "apart: of lengths and gaps the Kolmogorov-Smirnov distance (0 is equal, 1 is disjoint); of the hit rate the "
        f"difference, in tokens, of a cache that never evicts, blocks of {block_tokens} tokens"
    )
    return f"{grid(['', 'trace', 'fit', 'apart'], rows)}\n\n{said}\n"


def workload_toml(tables: Mapping[str, Any], comments: Sequence[str]) -> str:
    """Nested tables as a TOML file: plain keys first, then a section for each table."""
    lines = [f"# {comment}" for comment in comments]
    lines += [f"{name} = {_toml(value)}" for name, value in tables.items() if not isinstance(value, Mapping)]
    for section, table in tables.items():
        if isinstance(table, Mapping):
            lines += ["", f"[{section}]", *(f"{name} = {_toml(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_toml(part)}" for name, part in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
