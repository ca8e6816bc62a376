"""Token ids of a recording as a request table, so that the product itself makes block keys of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.requests import I64, Requests
from ..prefix.keys import BlockKeys, sequence_keys


@dataclass(frozen=True)
class Asked:
    """What one recorded request asks for. output: every token that it will have, one by one."""

    prompt: Sequence[int]
    output: Sequence[int] = ()
    max_tokens: int = 0
    namespace: Hashable = None
    priority: int = 0


def request_table(asked: Sequence[Asked]) -> Requests:
    """One request each, with explicit token ids; nothing arrives by itself."""
    n = len(asked)
    zero = np.zeros(n, np.int64)
    spaces = list(dict.fromkeys(a.namespace for a in asked))
    prompts, outputs = (_int64(map(len, part)) for part in ([a.prompt for a in asked], [a.output for a in asked]))
    start = np.cumsum(prompts + outputs) - prompts - outputs
    return Requests(
        arrival_ns=zero,
        prompt_tokens=prompts,
        output_tokens=outputs,
        max_tokens=_int64(a.max_tokens for a in asked),
        samples=zero + 1,
        session_id=zero - 1,
        turn=zero,
        after=zero - 1,
        think_ns=zero,
        tenant=zero,
        namespace=_int64(spaces.index(a.namespace) for a in asked),
        priority=_int64(a.priority for a in asked),
        phase=zero,
        cancel_ns=zero - 1,
        output_stream=zero,
        output_start=start + prompts,
        segment_offset=np.arange(n + 1, dtype=np.int64),
        segment_stream=zero,
        segment_start=start,
        segment_length=prompts,
        token_ids=_int64(token for a in asked for part in (a.prompt, a.output) for token in part),
        namespaces=tuple("" if space is None else str(space) for space in spaces),
    )


def _int64(values: Iterable[int]) -> I64:
    return np.array(list(values), np.int64)


def tokens_of_keys(keys: BlockKeys, asked: Sequence[Asked], block_tokens: int) -> dict[int, tuple[int, ...]]:
    """Block key -> the tokens of the block, for every whole block there is."""
    found: dict[int, tuple[int, ...]] = {}
    for i, a in enumerate(asked):
        tokens = (*a.prompt, *a.output)
        for block, key in enumerate(sequence_keys(keys, i, len(tokens) // block_tokens).tolist()):
            found[key] = tokens[block * block_tokens : (block + 1) * block_tokens]
    return found


def slot_ranges(firsts: Iterable[int], block_tokens: int, tokens: int | None = None) -> list[list[int]]:
    """Token slots of blocks, each given by its first slot, as merged [first, length].

    tokens   how many slots are in use (the last block may be partial); None = all
    """
    ranges: list[list[int]] = []
    covered = 0
    for first in firsts:
        if ranges and sum(ranges[-1]) == first:
            ranges[-1][1] += block_tokens
        else:
            ranges.append([int(first), block_tokens])
        covered += block_tokens
    if tokens is not None and ranges:
        ranges[-1][1] -= covered - tokens
    return ranges
