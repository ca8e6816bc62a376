"""Plain radix tree over block keys: the oracle of SGLang's prefix cache.

Lives here: the tree alone (match, insert, lock, unlock, evict) and its integrity check. Block keys are any hashable
(a token when a block holds one token, a tuple of tokens, or a virtual key); the value of a block is one int.
All sizes are counted in blocks: who owns the block size multiplies.

Always true:
- a path from the root spells a prefix; two children of a node never start with the same block key;
- a node's lock_ref is at least the sum of its children's, so an unlocked node has only unlocked nodes below;
- num_evictable + num_protected = blocks in the tree; a block is protected iff its node has lock_ref > 0.

Does not belong: block allocation, requests, time. "Time" is a counter that rises by one per read, so no two reads tie.
"""

import heapq
from collections.abc import Hashable, Sequence
from itertools import count
from typing import NamedTuple

# A node inserted this many times is in the protected segment of slru.
SLRU_PROTECTED_HITS = 2


class RadixIntegrityError(Exception):
    """The tree contradicts itself; the message names the node and the rule."""


class Node:
    """A run of blocks with no branch inside; the root is the only node with no keys."""

    __slots__ = (
        "children",
        "created",
        "history",
        "hit_count",
        "keys",
        "last_access",
        "lock_ref",
        "namespace",
        "parent",
        "priority",
        "values",
    )

    def __init__(self, keys, values, namespace, parent, priority, last_access, created):
        self.keys = keys
        self.values = values
        self.namespace = namespace
        self.parent = parent
        # (namespace, first block key) -> Node. The order of this dict breaks ties of the dfs-weight policy.
        self.children = {}
        self.lock_ref = 0
        self.hit_count = 0
        self.priority = priority
        self.last_access = last_access
        self.created = created
        self.history = 0  # blocks of the longest path that ever ran through this node

    def depth(self) -> int:
        """Number of blocks above this node."""
        num_above, node = 0, self.parent
        while node is not None:
            num_above += len(node.keys)
            node = node.parent
        return num_above


class Match(NamedTuple):
    """The longest cached prefix: its last node (the root if none) and the values of its blocks."""

    node: Node
    values: list


# Smallest rank is evicted first. No ranks tie: nodes that share a stamp lie on one path, so they never compete.
EVICTION_RANKS = {
    "lru": lambda node: (node.last_access,),
    "lfu": lambda node: (node.hit_count, node.last_access),
    "fifo": lambda node: (node.created,),
    "mru": lambda node: (-node.last_access,),
    "filo": lambda node: (-node.created,),
    "priority": lambda node: (node.priority, node.last_access),
    "slru": lambda node: (node.hit_count >= SLRU_PROTECTED_HITS, node.last_access),
}


def tail_lru_rank(tail: int):
    """tlru: first what lies in the last `tail` blocks of the longest conversation over it, then lru."""
    return lambda node: (node.depth() < node.history - tail, node.last_access)


def common_prefix_len(left: Sequence[Hashable], right: Sequence[Hashable]) -> int:
    """Number of leading blocks that are equal."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:  # the usual case, at C speed
        return shorter
    return next(i for i in range(shorter) if left[i] != right[i])


class RadixTree:
    def __init__(self, policy: str = "lru", keeps_age: bool = False, tail: int = 0):
        """keeps_age: a split leaves the age of the whole to both parts (0.5.23). tail: blocks, see tail_lru_rank."""
        self._rank = tail_lru_rank(tail) if policy == "tlru" else EVICTION_RANKS[policy]
        self._keeps_age = keeps_age
        self._clock = count(1)
        self.root = self._new_node([], [], None, None, priority=0)
        self.root.lock_ref = 1  # the root is never evicted
        self.num_evictable = 0
        self.num_protected = 0

    # -- reading (which still touches stamps and may split) -------------------------------------------------------

    def match_and_split(self, keys: Sequence[Hashable], namespace: Hashable = None) -> Match:
        """Longest cached prefix of keys; touches the path, splits the node in which the match ends.

        One clock read stamps the whole path, before any split: the upper half of a split is newer than its lower half.
        """
        node, values = self.root, []
        if not keys:
            return Match(node, values)
        now = next(self._clock)
        node.last_access = now
        num_matched = 0
        while num_matched < len(keys):
            child = node.children.get((namespace, keys[num_matched]))
            if child is None:
                break
            child.last_access = now
            num_common = common_prefix_len(child.keys, keys[num_matched : num_matched + len(child.keys)])
            node = child if num_common == len(child.keys) else self._split(child, num_common)
            values.extend(node.values)
            num_matched += num_common
            if node is not child:
                break
        return Match(node, values)

    # -- writing --------------------------------------------------------------------------------------------------

    def insert(
        self, keys, values, namespace=None, priority: int = 0, chunked: bool = False, num_counted: int = 0
    ) -> int:
        """Add the missing tail of keys as one leaf; returns how many leading blocks were already present.

        The tree keeps only values[returned:]; the caller still owns the rest. Every node of the path, a split's upper
        half and the new leaf get one hit and at least this priority; no hit if chunked or within the first num_counted.
        """
        now = next(self._clock)
        node = self.root
        self._touch(node, now, priority)
        num_present = 0
        while num_present < len(keys):
            child = node.children.get((namespace, keys[num_present]))
            if child is None:
                break
            child.last_access = now
            num_common = common_prefix_len(child.keys, keys[num_present : num_present + len(child.keys)])
            # A split's lower half keeps its own priority and hits: only the shared part was inserted again.
            node = child if num_common == len(child.keys) else self._split(child, num_common)
            node.priority = max(node.priority, priority)
            num_present += num_common
            node.hit_count += not chunked and num_present > num_counted
        if num_present < len(keys):
            self._add_leaf(
                node, keys[num_present:], values[num_present:], namespace, priority, chunked or len(keys) <= num_counted
            )
        return num_present

    def lock(self, node: Node) -> int:
        """Protect the path from node to the root; returns the change of num_evictable (<= 0)."""
        before = self.num_evictable
        while node is not self.root:
            if node.lock_ref == 0:
                self._move_to_protected(len(node.keys))
            node.lock_ref += 1
            node = node.parent
        return self.num_evictable - before

    def hit(self, node: Node) -> None:
        """A request that is admitted uses the path to a node; SGLang's own policies count insertions instead."""

    def unlock(self, node: Node) -> int:
        """Undo one lock of the same path; returns the change of num_evictable (>= 0)."""
        before = self.num_evictable
        while node is not self.root:
            if node.lock_ref <= 0:
                raise RadixIntegrityError(f"unlock of a node that is not locked, at depth {node.depth()}")
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self._move_to_protected(-len(node.keys))
            node = node.parent
        return self.num_evictable - before

    def evict(self, num_blocks: int) -> list:
        """Remove whole unlocked leaves in policy order until at least num_blocks went, or none is left.

        Returns the values of each removed node, in order. A parent becomes a candidate when its last child goes.
        """
        candidates = [(self._rank(node), i, node) for i, node in enumerate(self._unlocked_leaves())]
        heapq.heapify(candidates)
        tie_break = count(len(candidates))
        evicted, num_evicted = [], 0
        while num_evicted < num_blocks and candidates:
            _, _, leaf = heapq.heappop(candidates)
            self._remove_leaf(leaf)
            evicted.append(leaf.values)
            num_evicted += len(leaf.values)
            parent = leaf.parent
            if not parent.children and parent.lock_ref == 0:
                heapq.heappush(candidates, (self._rank(parent), next(tie_break), parent))
        return evicted

    # -- walking --------------------------------------------------------------------------------------------------

    def nodes(self):
        """Every node but the root, parents first, children in dict order."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack.extend(reversed(node.children.values()))

    def _unlocked_leaves(self):
        return (node for node in self.nodes() if not node.children and node.lock_ref == 0)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _new_node(self, keys, values, namespace, parent, priority) -> Node:
        last_access = next(self._clock)
        created = next(self._clock)
        return Node(keys, values, namespace, parent, priority, last_access, created)

    def _touch(self, node: Node, now: int, priority: int) -> None:
        node.last_access = now
        node.priority = max(node.priority, priority)

    def _add_leaf(self, parent, keys, values, namespace, priority, chunked) -> None:
        leaf = self._new_node(list(keys), list(values), namespace, parent, priority)
        leaf.hit_count += not chunked
        parent.children[(namespace, leaf.keys[0])] = leaf
        self.num_evictable += len(leaf.keys)
        end, node = leaf.depth() + len(leaf.keys), leaf
        while node is not None:
            node.history = max(node.history, end)
            node = node.parent

    def _split(self, lower: Node, num_upper: int) -> Node:
        """Cut a node in two; the new upper half is fresh, but inherits hits, priority and locks.

        The lower node object stays the end of its path, so handles on it (locks) still mean the same prefix.
        """
        parent = lower.parent
        keys, values = lower.keys[:num_upper], lower.values[:num_upper]
        upper = self._new_node(keys, values, lower.namespace, parent, lower.priority)
        upper.hit_count = lower.hit_count
        upper.history = lower.history
        if self._keeps_age:
            upper.created = lower.created
        upper.lock_ref = lower.lock_ref
        lower.keys, lower.values = lower.keys[num_upper:], lower.values[num_upper:]
        lower.parent = upper
        upper.children[(lower.namespace, lower.keys[0])] = lower
        parent.children[(upper.namespace, upper.keys[0])] = upper  # same key: keeps the place in the dict order
        return upper

    def _remove_leaf(self, leaf: Node) -> None:
        if leaf.lock_ref or leaf.children:
            raise RadixIntegrityError(f"eviction of a locked or inner node at depth {leaf.depth()}")
        del leaf.parent.children[(leaf.namespace, leaf.keys[0])]
        self.num_evictable -= len(leaf.keys)

    def _move_to_protected(self, num_blocks: int) -> None:
        self.num_evictable -= num_blocks
        self.num_protected += num_blocks

    # -- checking -------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Recompute everything that is stored twice; raises RadixIntegrityError. O(blocks)."""
        if self.root.keys or self.root.parent is not None or self.root.lock_ref != 1:
            raise RadixIntegrityError("the root must be empty, parentless and locked once")
        sizes = {False: 0, True: 0}
        seen_values = set()
        for node in self.nodes():
            self._check_node(node)
            sizes[node.lock_ref > 0] += len(node.keys)
            if not seen_values.isdisjoint(node.values) or len(set(node.values)) != len(node.values):
                raise RadixIntegrityError(f"a value is held twice, at depth {node.depth()}")
            seen_values.update(node.values)
        if (self.num_evictable, self.num_protected) != (sizes[False], sizes[True]):
            raise RadixIntegrityError(
                f"sizes are stored as evictable {self.num_evictable}, protected {self.num_protected}, "
                f"but the nodes sum to {sizes[False]}, {sizes[True]}"
            )
        for node in [self.root, *self.nodes()]:
            self._check_children(node)

    def _check_node(self, node: Node) -> None:
        if not node.keys or len(node.keys) != len(node.values):
            raise RadixIntegrityError(f"{len(node.keys)} keys, {len(node.values)} values at depth {node.depth()}")
        if node.lock_ref < 0:
            raise RadixIntegrityError(f"lock_ref {node.lock_ref} at depth {node.depth()}")

    def _check_children(self, node: Node) -> None:
        for child_key, child in node.children.items():
            if child.parent is not node or child_key != (child.namespace, child.keys[0]):
                raise RadixIntegrityError(f"the child table does not lead to its node, at depth {child.depth()}")
            if node is not self.root and child.namespace != node.namespace:
                raise RadixIntegrityError(f"two namespaces share a path, at depth {child.depth()}")
        num_needed = sum(child.lock_ref for child in node.children.values())
        if node is not self.root and node.lock_ref < num_needed:
            raise RadixIntegrityError(f"lock_ref {node.lock_ref} < {num_needed} needed below, at depth {node.depth()}")
