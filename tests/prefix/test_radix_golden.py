"""Recordings of SGLang's radix tree, operation by operation through the product's tree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvbench.memory.pool import make_pool
from kvbench.prefix import radix
from kvbench.prefix.node import CHILDREN, HITS, LENGTH, LOCK, OFFSET, PARENT, PRIORITY

from ..recordings import read_recording, recording_params

_CAPACITY = 1 << 16


class Tree:
    """The product's tree behind the operations of a recording. A page is a block; its value is its first slot."""

    def __init__(self, params: dict[str, Any], version: str) -> None:
        self.page = params["page_size"]
        self.newer = version != "0.5.12"
        self.namespaces = params["namespaces"]
        config = params.get("eviction_policy_config", {})
        tail = (config.get("threshold", 0) - config.get("next_prompt_estimate", 0)) // self.page
        self.tree = radix.make_tree(_CAPACITY, params["policy"], log_capacity=1 << 14, keeps_age=self.newer, tail=tail)
        self.pool = make_pool(1 << 18, "append")  # takes duplicates back; nothing is taken from it
        self.pages: dict[tuple[int, ...], int] = {}
        self.row = np.zeros(_CAPACITY, np.int32)
        self.handles: dict[Any, int] = {}
        self.last = 0

    def keys(self, tokens: list[int]) -> np.ndarray:
        n, p = len(tokens) // self.page, self.page
        pages = [tuple(tokens[i * p : (i + 1) * p]) for i in range(n)]
        return np.array([self.pages.setdefault(page, len(self.pages) + 1) for page in pages], np.int64)

    def ranges(self, blocks: Any) -> list[list[int]]:
        """Slots of blocks as merged [start, length]."""
        out: list[list[int]] = []
        for block in blocks:
            if out and sum(out[-1]) == block:
                out[-1][1] += self.page
            else:
                out.append([int(block), self.page])
        return out

    def match(self, op: dict[str, Any]) -> dict[str, Any]:
        keys = self.keys(op["key"])
        with np.errstate(over="ignore"):
            self.last, n = radix.match(self.tree, np.int64(self.space(op)), keys, len(keys), self.row)
        return {"len": n * self.page, "slots": self.ranges(self.row[:n])}

    def insert(self, op: dict[str, Any]) -> dict[str, Any]:
        keys = self.keys(op["key"])
        row = (op["slot_base"] + self.page * np.arange(len(keys))).astype(np.int32)
        counted = len(keys) if op.get("chunked", False) else 0
        if self.newer:
            counted = op.get("inserted", 0) // self.page
        root, priority = np.int64(-1 - self.space(op)), op.get("priority", 0)
        with np.errstate(over="ignore"):
            _, n = radix.insert(self.tree, self.pool, root, keys, row, 0, len(keys), priority, np.int64(counted))
        return {"prefix_len": n * self.page}

    def lock(self, op: dict[str, Any]) -> dict[str, Any]:
        self.handles[op["h"]] = self.last
        return {"delta": -radix.lock(self.tree, self.last) * self.page}

    def unlock(self, op: dict[str, Any]) -> dict[str, Any]:
        return {"delta": radix.unlock(self.tree, self.handles.pop(op["h"])) * self.page}

    def evict(self, op: dict[str, Any]) -> dict[str, Any]:
        t, logged = self.tree, self.tree.log_size
        with np.errstate(over="ignore"):
            freed = radix.evict(t, self.pool, -(-op["n"] // self.page))
        nodes = t.log[logged : t.log_size]
        return {"evicted": freed * self.page, "segs": [r for o, n in nodes for r in self.ranges(t.blocks[o : o + n])]}

    def space(self, op: dict[str, Any]) -> int:
        return self.namespaces.index(op.get("ns"))

    def sizes(self) -> dict[str, int]:
        evictable, protected = self.tree.evictable * self.page, self.tree.protected * self.page
        return {"evictable": evictable, "protected": protected, "total": evictable + protected}

    def preorder(self) -> list[list[Any]]:
        """[tokens above, length, first slot, lock, hits, priority, ns] of every node; children by (ns, tokens)."""
        t, nodes = self.tree, self.tree.nodes
        tokens_of = {number: page for page, number in self.pages.items()}
        children: dict[int, list[int]] = {}
        for node in np.flatnonzero(nodes[:, LENGTH] > 0):
            children.setdefault(int(nodes[node, PARENT]), []).append(int(node))
        rows: list[list[Any]] = []

        def tokens(node: int) -> tuple[int, ...]:
            offset, length = nodes[node, OFFSET], nodes[node, LENGTH]
            return tuple(token for key in t.keys[offset : offset + length] for token in tokens_of[int(key)])

        def walk(parent: int, depth: int, space: Any) -> None:
            assert parent < 0 or nodes[parent, CHILDREN] == len(children.get(parent, []))
            for node in sorted(children.get(parent, []), key=tokens):
                first = int(t.blocks[nodes[node, OFFSET]])
                columns = [int(nodes[node, c]) for c in (LOCK, HITS, PRIORITY)]
                rows.append([depth, int(nodes[node, LENGTH]) * self.page, first, *columns, space])
                walk(node, depth + int(nodes[node, LENGTH]) * self.page, space)

        for i, space in sorted(enumerate(self.namespaces), key=lambda pair: pair[1] or ""):
            walk(-1 - i, 0, space)
        return rows


@pytest.mark.parametrize("path", recording_params("sglang_radix_*"))
def test_radix(path):
    header, steps, _ = read_recording(path)
    tree = Tree(header["params"], header["version"])
    trees_seen = 0
    for number, op in enumerate(steps):
        got = getattr(tree, op["op"])(op) | tree.sizes()
        for name, value in op["out"].items():
            if name == "tree":
                trees_seen += 1
                assert tree.preorder() == value, f"{path.name} operation {number}, the tree"
            else:
                assert got[name] == value, f"{path.name} operation {number} ({op['op']}), {name}"
    assert trees_seen > 5
