"""A recording of a cache alone gives blocks back to a pool of nobody's, far more than it has."""

from __future__ import annotations

import numpy as np

from kvbench.core.jit import entry
from kvbench.memory import pool as product


@entry
def give(pool, row, start, stop):
    product.ring_give(pool, row, start, stop)


def test_a_ring_takes_more_than_it_holds_and_writes_nothing_else():
    for order in ("append", "sorted-front"):
        pool = product.make_pool(2, order)
        around = np.zeros(64, np.int32)
        pool_ring = around[31:33]
        fields = pool.read() | {"ring": pool_ring}
        give(product.BlockPool(*fields.values()), np.arange(1, 21, dtype=np.int32), 0, 20)
        assert pool_ring.all()
        assert np.count_nonzero(around) == 2
