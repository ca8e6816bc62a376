"""The tree of holders against the reference, and its own book-keeping recomputed after every operation."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvbench.prefix.children import find_child
from kvbench.prefix.node import LENGTH, NO_NODE, OFFSET, PARENT
from kvbench.routing import holder_tree as product
from kvbench.routing.holder_tree import BELOW, BIRTH, CREATOR, ENGINE, HOLDERS, NEXT, NO_HOLDER, NODE, STAMP

from ..reference.holder_tree import ReferenceTree


def check(tree):
    """Everything that must always hold, recomputed."""
    num = tree.held.size
    live = [n for n in range(1, tree.high_node) if tree.nodes[n, LENGTH] > 0]
    assert tree.num_nodes == len(live)
    assert tree.live_keys == sum(int(tree.nodes[n, LENGTH]) for n in live) <= tree.top <= tree.keys.size
    places = {int(p & 0xFFFFFFFF) for p in tree.table if p != 0}
    assert places == set(live)
    spans = sorted((int(tree.nodes[n, OFFSET]), int(tree.nodes[n, LENGTH])) for n in live)
    assert all(a + length <= b for (a, length), (b, _) in pairwise(spans))
    records, held, below = set(), np.zeros(num, np.int64), {}
    for n in live:
        engines, holder = [], int(tree.nodes[n, HOLDERS])
        while holder != NO_HOLDER:
            row = tree.holders[holder]
            assert holder not in records
            assert row[NODE] == n
            records.add(holder)
            engines.append(int(row[ENGINE]))
            holder = int(row[NEXT])
        parent = tree.nodes[n, PARENT]
        assert engines
        assert len(set(engines)) == len(engines)
        assert find_child(tree, parent, tree.keys[tree.nodes[n, OFFSET]]) == n
        for engine in engines:
            held[engine] += tree.nodes[n, LENGTH]
            if parent > 0:
                assert product.find_holder(tree, parent, engine) != NO_HOLDER
                below[int(parent), engine] = below.get((int(parent), engine), 0) + 1
    assert held.tolist() == tree.held.tolist()
    for holder in records:
        row = tree.holders[holder]
        assert row[BELOW] == below.get((int(row[NODE]), int(row[ENGINE])), 0)
    free, at = set(), int(tree.free_holder)
    while at != NO_HOLDER:
        assert tree.holders[at, NODE] == NO_NODE
        free.add(at)
        at = int(tree.holders[at, NEXT])
    assert records | free == set(range(1, tree.high_holder))
    assert not records & free


def shape(tree):
    """{path of blocks: (birth, creator, {engine: stamp})}, the product's and the reference's alike."""
    out = {}
    for n in range(1, tree.high_node):
        if tree.nodes[n, LENGTH] == 0:
            continue
        path, node = [], n
        while node > 0:
            offset, length = tree.nodes[node, OFFSET], tree.nodes[node, LENGTH]
            path = [int(k) for k in tree.keys[offset : offset + length]] + path
            node = int(tree.nodes[node, PARENT])
        holders, holder = {}, int(tree.nodes[n, HOLDERS])
        while holder != NO_HOLDER:
            holders[int(tree.holders[holder, ENGINE])] = int(tree.holders[holder, STAMP])
            holder = int(tree.holders[holder, NEXT])
        out[(node, *path)] = (int(tree.nodes[n, BIRTH]), int(tree.nodes[n, CREATOR]), holders)
    return out


def reference_shape(tree):
    out = {}
    for node in tree.nodes():
        path, up = [], node
        while up.parent is not None:
            path, up = up.blocks + path, up.parent
        root = next(name for name, top in tree.roots.items() if top is up)
        out[(root, *path)] = (node.birth, node.creator, node.stamps)
    return out


prompts = st.lists(st.integers(1, 3), min_size=0, max_size=9)
operations = st.one_of(
    st.tuples(st.just("insert"), st.integers(-2, -1), prompts, st.integers(0, 3), st.integers(0, 30)),
    st.tuples(st.just("insert"), st.integers(-2, -1), prompts, st.integers(0, 3), st.integers(0, 30)),
    st.tuples(st.just("look"), st.integers(-2, -1), prompts),
    st.tuples(st.just("evict"), st.lists(st.integers(-1, 8), min_size=4, max_size=4), st.integers(0, 20)),
    st.tuples(st.just("drop"), st.integers(0, 3)),
)


@given(st.lists(operations, max_size=40))
def test_every_operation_is_the_reference_s(steps):
    tree, reference = product.make_holder_tree(4, 100, room=2), ReferenceTree()
    out = np.zeros(4, np.int64)
    for kind, *arguments in steps:
        if kind == "insert":
            root, prompt, engine, stamp = arguments
            product.insert(tree, np.int64(root), np.array(prompt, np.int64), len(prompt), engine, stamp)
            reference.insert(root, prompt, engine, stamp)
        elif kind == "look":
            root, prompt = arguments
            _, shared = product.look(tree, np.int64(root), np.array(prompt, np.int64), len(prompt), 0, out)
            _, wanted, held = reference.match(root, prompt)
            assert shared == wanted
            assert out.tolist() == [held.get(e, 0) for e in range(4)]
        elif kind == "evict":
            product.evict(tree, np.array(arguments[0], np.int64), arguments[1])
            reference.evict(dict(enumerate(arguments[0])), arguments[1])
        else:
            product.drop_engine(tree, arguments[0])
            reference.drop_engine(arguments[0])
        check(tree)
        assert shape(tree) == reference_shape(reference)


@given(st.lists(st.tuples(prompts, st.integers(0, 3)), max_size=25), st.randoms())
def test_counted_paths_come_and_go(requests, random):
    tree = product.make_holder_tree(4, 1 << 60, room=2)
    live = []
    for prompt, engine in requests:
        node, _ = product.insert(tree, np.int64(-1), np.array(prompt, np.int64), len(prompt), engine, 0)
        product.count_path(tree, node, engine)
        live.append((node, prompt, engine))
        random.shuffle(live)
        if random.random() < 0.4:
            node, _, engine = live.pop()
            product.discount_path(tree, node, engine)
        check(tree)
        for e in range(4):
            distinct = {tuple(p[: i + 1]) for _, p, at in live if at == e for i in range(len(p))}
            assert tree.held[e] == len(distinct)
    for node, _, engine in live:
        product.discount_path(tree, node, engine)
    check(tree)
    assert tree.num_nodes == 0
