"""Which engine was sent which prefix: a tree of objects, as SGLang's router has it. A block is any value."""

from __future__ import annotations

from itertools import count


class Node:
    def __init__(self, blocks, parent, creator, birth):
        self.blocks, self.parent, self.creator, self.birth = list(blocks), parent, creator, birth
        self.children = {}
        self.stamps = {}  # engine -> stamp


class ReferenceTree:
    def __init__(self):
        self.roots = {}
        self.births = count(1)

    def root(self, name):
        return self.roots.setdefault(name, Node((), None, None, 0))

    def match(self, name, blocks):
        """(deepest node that shares something, blocks shared, {engine: blocks that it holds})."""
        node, shared, held = self.root(name), 0, {}
        while shared < len(blocks) and blocks[shared] in node.children:
            node = node.children[blocks[shared]]
            same = _common(node.blocks, blocks[shared:])
            shared += same
            held |= dict.fromkeys(node.stamps, shared)
            if same < len(node.blocks):
                break
        return node, shared, held

    def insert(self, name, blocks, engine, stamp):
        """(the node that ends the path, whether it is new)."""
        node, at = self.root(name), 0
        while at < len(blocks):
            child = node.children.get(blocks[at])
            if child is None:
                child = Node(blocks[at:], node, engine, next(self.births))
                node.children[blocks[at]] = child
                child.stamps[engine] = stamp
                return child, True
            same = _common(child.blocks, blocks[at:])
            if same < len(child.blocks):
                child = self._split(child, same)
            child.stamps.setdefault(engine, stamp)
            node, at = child, at + same
        return node, False

    def _split(self, lower, length):
        upper = Node(lower.blocks[:length], lower.parent, lower.creator, next(self.births))
        upper.stamps = dict(lower.stamps)
        upper.parent.children[upper.blocks[0]] = upper
        lower.blocks, lower.parent = lower.blocks[length:], upper
        upper.children = {lower.blocks[0]: lower}
        return upper

    def release(self, node, engine):
        del node.stamps[engine]
        if not node.stamps:
            assert not node.children
            del node.parent.children[node.blocks[0]]

    def nodes(self):
        stack = list(self.roots.values())
        while stack:
            node = stack.pop()
            stack += node.children.values()
            if node.parent is not None:
                yield node

    def held(self, engine):
        return sum(len(n.blocks) for n in self.nodes() if engine in n.stamps)

    def evict(self, limits, older_than=0):
        """limits: {engine: blocks}. Smallest (stamp, birth) first, of engines over their limit, or too old."""
        while True:
            leaves = [
                (stamp, node.birth, engine, node)
                for node in self.nodes()
                for engine, stamp in node.stamps.items()
                if not any(engine in child.stamps for child in node.children.values())
            ]
            over = {engine for engine, limit in limits.items() if self.held(engine) > limit}
            leaves = [leaf for leaf in leaves if leaf[2] in over or leaf[0] < older_than]
            if not leaves:
                return
            _, _, engine, node = min(leaves, key=lambda leaf: leaf[:2])
            self.release(node, engine)

    def drop_engine(self, engine):
        self.evict({engine: -1})


def _common(one, other):
    n = 0
    while n < min(len(one), len(other)) and one[n] == other[n]:
        n += 1
    return n
