"""SGLang's dfs-weight: waiting sequences in the order of a walk through the radix tree, heaviest subtree first.

The weight of a node is the number of waiting sequences whose match ends at it or below. Children come before
the node's own sequences, by falling weight; ties go by the order in which they became children (a split keeps the
place). Sequences of one node keep their order. All namespaces hang below one root.

Only nodes with weight are looked at: they are numbered 1, 2, ... as the paths from the matches up to the root
are walked; 0 is the root.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from ..kernels.ordering import sort_by_key
from ..prefix.node import MARK, PARENT, PLACE

# Columns of the numbered nodes.
NODE, WEIGHT, UP, FIRST_CHILD, LAST_CHILD, NEXT_CHILD, FIRST_SEQ = range(7)
NOBODY = -1


@jit
def heaviest_subtree_first(tree, seqs, ends):
    """Reorder seqs.

    seqs     (n,) int64, in place
    ends     (n,) int64, the node at which each one's match ends (<= 0: at a root); overwritten
    cost     O(n x depth + m log m) for m nodes with weight
    """
    most = tree.nodes.shape[0] - tree.num_free_nodes  # nodes of the tree, and the root
    wood = np.empty((most, 7), np.int64)
    count = _number_nodes(tree.nodes, wood, ends)
    _hang_children(tree.nodes, wood, count)
    _walk(wood, seqs, ends)


@inline
def _open_node(wood, at, node):
    wood[at, NODE] = node
    wood[at, WEIGHT] = 0
    wood[at, FIRST_CHILD] = wood[at, LAST_CHILD] = wood[at, NEXT_CHILD] = NOBODY
    wood[at, FIRST_SEQ] = NOBODY


@inline
def _number_nodes(nodes, wood, ends):
    """Number and weigh the nodes of all paths; ends becomes numbers. Returns how many there are.

    A node's MARK is its number if the node of that number is this one: what stands there otherwise is of an
    earlier walk, or of an earlier node.
    """
    _open_node(wood, 0, 0)
    count = 1
    for i in range(ends.size):
        node, below = ends[i], NOBODY
        at = 0
        while node > 0:
            at = nodes[node, MARK]
            if at <= 0 or at >= count or wood[at, NODE] != node:
                at = count
                count += 1
                nodes[node, MARK] = at
                _open_node(wood, at, node)
            wood[at, WEIGHT] += 1
            if below == NOBODY:
                ends[i] = at
            else:
                wood[below, UP] = at
            below = at
            node = nodes[node, PARENT]
        if below == NOBODY:
            ends[i] = 0
        else:
            wood[below, UP] = 0
    return count


@inline
def _hang_children(nodes, wood, count):
    """Lists of children in their order."""
    key, at = np.empty(count - 1, np.int64), np.empty(count - 1, np.int64)
    for i in range(count - 1):
        at[i] = i + 1
        key[i] = nodes[wood[i + 1, NODE], PLACE]
    sort_by_key(key, at, count - 1)
    for i in range(count - 1):
        key[i] = -wood[at[i], WEIGHT]
    sort_by_key(key, at, count - 1)
    for i in range(count - 1):
        child = at[i]
        up = wood[child, UP]
        if wood[up, LAST_CHILD] == NOBODY:
            wood[up, FIRST_CHILD] = child
        else:
            wood[wood[up, LAST_CHILD], NEXT_CHILD] = child
        wood[up, LAST_CHILD] = child


@inline
def _walk(wood, seqs, ends):
    """Write the sequences in the order of the walk."""
    before, next_seq = seqs.copy(), np.empty(seqs.size, np.int64)
    for i in range(seqs.size - 1, -1, -1):
        next_seq[i] = wood[ends[i], FIRST_SEQ]
        wood[ends[i], FIRST_SEQ] = i
    out, at = 0, 0
    while at != NOBODY:
        while wood[at, FIRST_CHILD] != NOBODY:
            at = wood[at, FIRST_CHILD]
        while at != NOBODY:
            i = wood[at, FIRST_SEQ]
            while i != NOBODY:
                seqs[out] = before[i]
                out += 1
                i = next_seq[i]
            following = wood[at, NEXT_CHILD] if at > 0 else NOBODY
            if following != NOBODY:
                at = following
                break
            at = wood[at, UP] if at > 0 else NOBODY
