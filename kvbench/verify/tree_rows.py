"""The product's radix tree in the form in which recordings keep one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..engine.observe import fields_of
from ..prefix.node import HITS, LENGTH, LOCK, OFFSET, PARENT, PRIORITY
from ..prefix.radix import RadixTree


def tree_rows(
    tree: RadixTree,
    namespaces: Sequence[Any],
    tokens_of: Mapping[int, tuple[int, ...]],
    block_tokens: int,
    first_slot: Callable[[int], int],
) -> list[list[Any]]:
    """[tokens above, length, first slot, lock, hits, priority, namespace] of every node, parents first.

    Children are in order of their tokens. tokens_of: block key -> tokens. first_slot: of a block.
    """
    state = fields_of(tree)
    nodes, keys, blocks = state["nodes"], state["keys"], state["blocks"]
    children: dict[int, list[int]] = {}
    for node in np.flatnonzero(nodes[:, LENGTH] > 0).tolist():
        children.setdefault(int(nodes[node, PARENT]), []).append(node)
    rows: list[list[Any]] = []

    def content(node: int) -> tuple[int, ...]:
        offset, length = nodes[node, OFFSET], nodes[node, LENGTH]
        return tuple(token for key in keys[offset : offset + length].tolist() for token in tokens_of[key])

    def walk(parent: int, depth: int, namespace: Any) -> None:
        for node in sorted(children.get(parent, ()), key=content):
            length = int(nodes[node, LENGTH]) * block_tokens
            counts = [int(nodes[node, column]) for column in (LOCK, HITS, PRIORITY)]
            rows.append([depth, length, first_slot(int(blocks[nodes[node, OFFSET]])), *counts, namespace])
            walk(node, depth + length, namespace)

    for number, namespace in sorted(enumerate(namespaces), key=lambda pair: pair[1] or ""):
        walk(-1 - number, 0, namespace)
    return rows
