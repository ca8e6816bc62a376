"""Requests -> Mooncake JSON Lines, and what such a file cannot say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from ..core.requests import NONE, Requests
from ..core.units import NS_PER_MS
from .chain import block_ids, has_own_ids
from .clock import is_doubtful
from .formats.mooncake import BLOCK_TOKENS
from .json_columns import turns
from .rows import I64
from .table import PLAIN


def write(requests: Requests, block_tokens: int) -> Iterator[str]:
    """The lines of a file with ids of that block size."""
    r = requests
    ids, counts = _ids(r, block_tokens)
    ends = np.cumsum(counts).tolist()
    flat = ids.tolist()
    follows = _follows(r)
    for i in range(len(r)):
        row: dict[str, object] = {} if follows[i] else {"timestamp": _ms(int(r.arrival_ns[i]))}
        row |= {"input_length": int(r.prompt_tokens[i]), "output_length": int(r.output_tokens[i])}
        row["hash_ids"] = flat[ends[i] - int(counts[i]) : ends[i]]
        if r.session_id[i] != NONE:
            row["session_id"] = f"s{r.session_id[i]}"
        if follows[i]:
            row["delay"] = _ms(int(r.think_ns[i]))
        if r.priority[i]:
            row["priority"] = -int(r.priority[i])
        yield json.dumps(row) + "\n"


def losses(requests: Requests, block_tokens: int) -> list[str]:
    """What is lost on the way, one line each."""
    r = requests
    lost = []
    told = {
        "samples": "several samples of one prompt",
        "tenant": "tenants",
        "namespace": "namespaces (their ids stay apart)",
        "phase": "phases",
        "cancel_ns": "cancels",
    }
    lost += [text for name, text in told.items() if (getattr(r, name) != PLAIN[name]).any()]
    if (r.max_tokens != np.maximum(r.output_tokens, 1)).any():
        lost.append("max_tokens (the output's length stands for it)")
    if r.present_tokens is not None:
        lost.append("KV that comes with a request")
    if r.joins is not None:
        lost.append("that a request waits for several calls")
    if r.flush_ns is not None or r.excluded:
        lost.append("flushes, and phases that are left out of results")
    if ((r.after != NONE) & ~_follows(r)).any():
        lost.append("that some requests wait for one that is not the one before in their session: they arrive at 0")
    if not has_own_ids(r, block_tokens):
        lost.append(f"what prompts share beyond whole blocks of {block_tokens} tokens")
    if np.isin(r.segment_stream, r.output_stream).any() or r.token_ids.size:
        lost.append("that later prompts hold what was generated: ids are of prompts only, so hits on it become misses")
    return lost


def keys_to_read(requests: Requests, block_tokens: int) -> list[str]:
    """What a reader of such a file has to be told, since the form cannot: key=value, one for each."""
    r = requests
    keys = [] if block_tokens == BLOCK_TOKENS else [f"trace.block_tokens={block_tokens}"]
    before = turns(r.session_id)[1]
    if (before != NONE).any():
        ids, counts = _ids(r, block_tokens)
        first = ids[np.cumsum(counts) - counts]
        if not ((before != NONE) & (first == first[before])).any():
            keys.append("trace.turns=whole")
    if is_doubtful(r.arrival_ns[~_follows(r)] / NS_PER_MS, "ms"):
        keys.append("trace.time_unit=ms")
    return keys


def _ids(requests: Requests, block_tokens: int) -> tuple[I64, I64]:
    if has_own_ids(requests, block_tokens):
        return requests.segment_stream - 1, np.diff(requests.segment_offset)
    return block_ids(requests, block_tokens)


def _follows(requests: Requests) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,) rows that wait for the one before them in their session."""
    before: I64 = turns(requests.session_id)[1]
    return (requests.after != NONE) & (requests.after == before)


def _ms(ns: int) -> int | float:
    return ns // NS_PER_MS if ns % NS_PER_MS == 0 else ns / NS_PER_MS
