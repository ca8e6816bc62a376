"""The experiment that says what keeps decode below reading: which runs it compares, and what it concludes."""

from __future__ import annotations

import pytest

from kvbench.speed import bounds as bounds_module
from kvbench.speed.attention import decode_probe
from kvbench.speed.bounds import bounds
from kvbench.speed.memory import Memory
from kvbench.speed.probes import Timing

from .sizes import TINY


def run(monkeypatch, random_s: float, cached_s: float):
    """Its rows, and the tables that it gave to decode, where blocks anywhere and one block took so many seconds."""
    seconds, tables = {}, []

    def make(memory, cache, found, threads):
        probe = decode_probe(memory, cache, found, threads)
        seconds[probe] = cached_s if (found == 0).all() else random_s
        tables.append(found)
        return probe

    monkeypatch.setattr(bounds_module, "decode_probe", make)
    found = bounds(Memory(TINY), [1], lambda probes: {p: Timing(seconds.get(p, 1.0), 0, 3, 0, p.work) for p in probes})
    return found.rows, tables


@pytest.mark.parametrize(("random_s", "bound"), [(1.1, "instructions"), (2.0, "memory")])
def test_the_slower_of_both_is_the_bound(monkeypatch, random_s, bound):
    rows, _ = run(monkeypatch, random_s, 1.0)
    assert len({tuple(row[:2]) for row in rows}) == len(rows) == 8
    assert {row[-1] for row in rows} == {bound}
    assert {row[5] for row in rows} == {f"{1 / random_s:.2f}"}


def test_the_same_blocks_anywhere_in_order_and_one_of_them(monkeypatch):
    _, tables = run(monkeypatch, 1.0, 1.0)
    for anywhere, ordered, one in zip(tables[::3], tables[1::3], tables[2::3], strict=True):
        assert list(ordered.ravel()) == list(range(ordered.size))
        assert len(set(anywhere.ravel())) == anywhere.size
        assert list(anywhere.ravel()) != sorted(anywhere.ravel())
        assert not one.any()
        assert one.shape == ordered.shape == anywhere.shape
