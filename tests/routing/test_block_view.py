"""The table of blocks by engine against a dict of sets, in any order of events, lost and repeated ones too."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.prefix.chain_hash import chain, root_hash
from kvbench.routing import block_view as product
from kvbench.routing.block_view import WORD_BITS


def contents(view):
    out = {}
    for row in view.table:
        if row[0] != 0:
            bits = [int(row[1 + w]) >> b & 1 for w in range(row.size - 1) for b in range(WORD_BITS)]
            out[int(row[0])] = {e for e, bit in enumerate(bits) if bit}
    return out


def chained(keys, root=0):
    content, out = root_hash(np.int64(root)), []
    for key in keys:
        content = chain(content, np.int64(key))
        out.append(int(content))
    return out


keys = st.lists(st.integers(1, 2), min_size=1, max_size=7)


@pytest.mark.parametrize("num", [3, 40])
@given(data=st.data())
def test_it_holds_what_a_dict_of_sets_holds(num, data):
    view, wanted = product.make_block_view(num, room=2), {}
    engines = st.sampled_from(sorted({0, 1, num // 2, num - 1}))
    for _ in range(data.draw(st.integers(1, 40))):
        kind, engine = data.draw(st.sampled_from(["stored", "stored", "stored", "removed", "drop"])), data.draw(engines)
        block = data.draw(st.sampled_from(chained(data.draw(keys))))
        if kind == "stored":
            product.stored(view, np.int64(block), engine)
            wanted.setdefault(block, set()).add(engine)
        elif kind == "removed":
            product.removed(view, np.int64(block), engine)
            wanted.get(block, set()).discard(engine)
        elif data.draw(st.integers(0, 4)) == 0:
            product.drop_engine(view, engine)
            for held in wanted.values():
                held.discard(engine)
        wanted = {b: held for b, held in wanted.items() if held}
        assert contents(view) == wanted
        assert view.num == len(wanted)
        prompt = data.draw(keys)
        out = np.full(num, -7, np.int64)
        product.held_prefix(view, root_hash(np.int64(0)), np.array(prompt, np.int64), len(prompt), out)
        names = chained(prompt)
        for e in range(num):
            has = [e in wanted.get(name, ()) for name in names] + [False]
            assert out[e] == has.index(False)
