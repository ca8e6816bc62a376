"""The prefix cache on its own: naming blocks, looking prefixes up, inserting them; in tokens per second."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.requests import EXPLICIT, Requests
from ..memory.pool import make_pool
from ..prefix import radix
from ..prefix.keys import block_keys
from ..prefix.walk import admit_all, chain_all, match_all
from .entries import Entry
from .probes import Probe
from .sizes import Sizes

TOKENS = 32_000
"""Ids of a vocabulary."""


def prefix_entries(sizes: Sizes) -> list[Entry]:
    """Three shapes of sharing at two block sizes; the limit is NumPy comparing as many block keys for equality."""
    entries = []
    for name, make in (("shared prompt", shared_prompt), ("chat", chat), ("adversarial", adversarial)):
        lengths, tokens = make(sizes.prefix_requests)
        for block_tokens in (1, 16):
            keys, offset = _keys(lengths, tokens, block_tokens)
            limit = _compare(keys, block_tokens)
            shape = f"{name}, block {block_tokens}"
            for probe in (_match(shape, keys, offset, block_tokens), _admit(shape, keys, offset, block_tokens)):
                entries.append(Entry("prefix cache", "Gtoken/s", probe, 1, limit))
    for block_tokens in (1, 16):
        entries += _naming_entries(sizes, block_tokens)
    return entries


def shared_prompt(num: int) -> tuple[Any, Any]:
    """Lengths and ids of requests with 2,048 tokens in common and 64 of their own."""
    rng = np.random.default_rng(1)
    own = rng.integers(1, TOKENS, (num, 2112))
    own[:, :2048] = own[0, :2048]
    return np.full(num, 2112), own.reshape(-1)


def chat(num: int) -> tuple[Any, Any]:
    """Sessions of up to 16 turns; each sends what was said before, and 128 tokens more."""
    rng = np.random.default_rng(2)
    lengths = 128 * (1 + np.arange(num) % 16)
    sessions = rng.integers(1, TOKENS, (-(-num // 16), 16 * 128))
    return lengths, np.concatenate([sessions[i // 16, : lengths[i]] for i in range(num)])


def adversarial(num: int) -> tuple[Any, Any]:
    """Prompts of 512 tokens out of two ids, each a copy of an earlier one up to a random place: many splits."""
    rng = np.random.default_rng(3)
    prompts = rng.integers(1, 3, (num, 512))
    for i in range(1, num):
        common = rng.integers(0, 512)
        prompts[i, :common] = prompts[rng.integers(0, i), :common]
    return np.full(num, 512), prompts.reshape(-1)


def _keys(lengths: Any, tokens: Any, block_tokens: int) -> tuple[Any, Any]:
    """One key per whole block, and where each request's begin."""
    blocks = lengths // block_tokens
    offset = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    begin = np.concatenate([[0], np.cumsum(lengths)])[:-1]
    whole = np.concatenate([tokens[b : b + n * block_tokens] for b, n in zip(begin, blocks, strict=True)])
    rows = whole.reshape(-1, block_tokens)
    weights = np.random.default_rng(4).integers(1, 1 << 61, block_tokens)
    return ((rows * weights).sum(axis=1) & ((1 << 62) - 1)).astype(np.int64), offset


def _compare(keys: Any, block_tokens: int) -> Probe:
    other = keys.copy()
    return Probe("compare", lambda: np.array_equal(keys, other), keys.size * block_tokens)


class _Tree:
    """An empty tree before each run, or one that holds all requests."""

    def __init__(self, keys: Any, offset: Any) -> None:
        self.keys, self.offset = keys, offset
        self.row = np.zeros(int(np.diff(offset).max()), np.int32)
        self.empty()

    def empty(self) -> None:
        self.tree = radix.make_tree(self.keys.size, "lru")
        self.pool = make_pool(self.keys.size, "append")

    def admit(self) -> Any:
        return admit_all(self.tree, self.pool, self.keys, self.offset, self.row)

    def match(self) -> Any:
        return match_all(self.tree, self.keys, self.offset, self.row)


def _match(shape: str, keys: Any, offset: Any, block_tokens: int) -> Probe:
    tree = _Tree(keys, offset)
    tree.admit()
    return Probe(f"{shape}: match", tree.match, keys.size * block_tokens)


def _admit(shape: str, keys: Any, offset: Any, block_tokens: int) -> Probe:
    tree = _Tree(keys, offset)
    return Probe(f"{shape}: match, insert", tree.admit, keys.size * block_tokens, tree.empty)


def _naming_entries(sizes: Sizes, block_tokens: int) -> list[Entry]:
    """Token ids -> block keys, and block keys -> chain hashes."""
    lengths, tokens = chat(sizes.prefix_requests)
    requests = _requests(lengths, tokens)
    keys, offset = _keys(lengths, tokens, block_tokens)
    out, work = np.zeros(keys.size, np.int64), keys.size * block_tokens
    limit = _compare(keys, block_tokens)
    probes = (
        Probe(f"keys of token ids, block {block_tokens}", lambda: block_keys(requests, block_tokens), work),
        Probe(f"chain hash, block {block_tokens}", lambda: chain_all(keys, offset, out), work),
    )
    return [Entry("prefix cache", "Gtoken/s", probe, 1, limit) for probe in probes]


def _requests(lengths: Any, tokens: Any) -> Requests:
    """A table of explicit ids that asks for nothing more than its prompts."""
    n = lengths.size
    zero, one, none = np.zeros(n, np.int64), np.ones(n, np.int64), np.full(n, -1)
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Requests(
        arrival_ns=zero, prompt_tokens=lengths, output_tokens=zero, max_tokens=zero, samples=one, session_id=none,
        turn=zero, after=none, think_ns=zero, tenant=zero, namespace=zero, priority=zero, phase=zero, cancel_ns=none,
        output_stream=np.full(n, EXPLICIT), output_start=zero, segment_offset=np.arange(n + 1),
        segment_stream=np.full(n, EXPLICIT), segment_start=begin[:-1], segment_length=lengths,
        token_ids=tokens.astype(np.int64),
    )  # fmt: skip
