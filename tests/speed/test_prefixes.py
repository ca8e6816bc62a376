"""What the prefix cache is timed on: loads that share what they say, and walks that find it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from kvbench.memory.pool import make_pool
from kvbench.prefix import radix
from kvbench.prefix.walk import admit_all, chain_all, match_all
from kvbench.speed import prefixes

from ..reference.radix import RadixTree


def common_with_any_before(rows: list[list[int]]) -> int:
    """Tokens of each request that an earlier one begins with, at most, summed."""
    total = 0
    for i, row in enumerate(rows):
        best = 0
        for other in rows[:i]:
            n = 0
            while n < min(len(row), len(other)) and row[n] == other[n]:
                n += 1
            best = max(best, n)
        total += best
    return total


def split(lengths: np.ndarray, tokens: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]


def as_blocks(row: list[int], block_tokens: int) -> list[tuple[int, ...]]:
    return [tuple(row[i : i + block_tokens]) for i in range(0, len(row) // block_tokens * block_tokens, block_tokens)]


@pytest.mark.parametrize("make", [prefixes.shared_prompt, prefixes.chat, prefixes.adversarial])
@pytest.mark.parametrize("block_tokens", [1, 16])
def test_a_walk_finds_what_earlier_requests_left(make, block_tokens):
    lengths, tokens = make(5)
    keys, offset = prefixes._keys(lengths, tokens, block_tokens)
    rows = [keys[a:b].tolist() for a, b in pairwise(offset)]
    blocks_of = [as_blocks(row, block_tokens) for row in split(lengths, tokens)]
    assert common_with_any_before(rows) == common_with_any_before(blocks_of) > 0  # keys are equal where tokens are

    tree, pool = radix.make_tree(keys.size, "lru"), make_pool(keys.size, "append")
    row = np.zeros(int(np.diff(offset).max()), np.int32)
    found = admit_all(tree, pool, keys, offset, row)
    assert found == common_with_any_before(rows)
    assert match_all(tree, keys, offset, row) == keys.size
    plain = RadixTree("lru")
    assert found == sum(plain.insert(r, r, 0, 0, False) for r in rows)
    assert tree.evictable == keys.size - found


def test_chain_hashes_are_equal_exactly_for_equal_prefixes():
    keys = np.array([1, 2, 3, 1, 2, 4, 2, 2, 3])
    out = np.zeros(9, np.int64)
    chain_all(keys, np.array([0, 3, 6, 9]), out)
    assert out[:2].tolist() == out[3:5].tolist()
    assert len(set(out.tolist())) == 7


def test_token_ids_become_requests_that_the_engine_takes():
    lengths, tokens = prefixes.chat(3)
    requests = prefixes._requests(lengths, tokens)
    requests.check()
    assert requests.prompt_tokens.tolist() == [128, 256, 384]
