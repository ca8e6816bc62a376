"""An eviction policy of one's own: kvbench run chat --set cache.eviction=examples/seldom_hit.py:seldom_hit

A node is a row of int64 columns, which kvbench/prefix/node.py names: a run of blocks in the radix tree, one block under
block hash. The smallest key goes first, ties by last access; it is asked for when a node becomes a candidate. WORD_A
and WORD_B are the policy's own, 0 in a new node. Hooks bear the name with _on_insert, _on_hit or _on_evict behind it.
"""

from kvbench.prefix.node import LENGTH, WORD_A


def seldom_hit(nodes, node, now):
    """Who was hit seldom for its length goes first."""
    return 1000 * nodes[node, WORD_A] // nodes[node, LENGTH]


def seldom_hit_on_hit(nodes, node, now):
    nodes[node, WORD_A] += 1
