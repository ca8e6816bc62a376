"""Links against exact fractions, and the table of operations under random openings, ends and aborts."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.core.jit import entry
from kvbench.core.units import NEVER_NS
from kvbench.costs.links import transfer_ns as _transfer_ns
from kvbench.memory import links as product
from kvbench.memory import operations
from kvbench.memory.operations import (
    BACKUP,
    DRAINING,
    ENDED,
    FAILED,
    FREE_ROW,
    LOAD,
    MOVING,
    NOBODY,
    OP_COUNT,
    OP_END,
    OP_FIRST,
    OP_HEARERS,
    OP_STATE,
    OP_TARGET_COUNT,
    OP_TARGET_FIRST,
    RESERVED,
)
from kvbench.memory.pool import make_pool

from ..reference.links import Move, fair, fifo


@entry
def open_row(ops, kind, source, target):
    return operations.open_row(ops, kind, NOBODY, 0, source, target)


@entry
def begin(links, ops, row, link, num_bytes, fragments, work, now):
    product.begin(links, ops, row, link, num_bytes, fragments, work, now)


@entry
def end_next(links, ops):
    return product.end_next(links, ops)


@entry
def attach(ops, row, pool, table, start, stop, of_target):
    if of_target:
        operations.attach_target(ops, row, pool, table, start, stop)
    else:
        operations.attach(ops, row, pool, table, start, stop)


@entry
def leave(ops, row, pool):
    operations.detach(ops, row, pool)
    operations.detach_target(ops, row, pool)
    return operations.heard(ops, row)


@entry
def abort(ops, row):
    operations.abort(ops, row)


@entry
def transfer_ns(rates, link, num_bytes, fragments):
    return _transfer_ns(rates, link, num_bytes, fragments)


@pytest.mark.parametrize("plain", [fifo, fair])
@given(
    moves=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 100)), min_size=1, max_size=25),
    links=st.integers(1, 3),
    half_duplex=st.booleans(),
)
def test_operations_end_when_fractions_say(plain, moves, links, half_duplex):
    """Some links, each with a queue of its own, or all with one. Virtual time is late by less than 1 ns a neighbour."""
    table, ops = product.make_links(), operations.make_operations()
    for i in range(links):
        product.add_link(table, 0, 0, 1, fair=plain is fair, beside=0 if half_duplex and i else -1)
    queues: list[list[Move]] = [[] for _ in range(links)]
    now, rows, ended = 0, {}, []

    def end_until(time: int) -> None:
        while table.next_ns <= time:
            at = table.next_ns
            row = end_next(table, ops)
            assert ops.rows[row, OP_END] == at
            ended.append((at, rows.pop(row)))
            leave(ops, row, pool)

    pool = make_pool(4, "tail")
    for number, (gap, work) in enumerate(moves):
        now += gap
        end_until(now)
        row = open_row(ops, BACKUP, 0, -1)
        move = Move(number, now, work)
        queues[0 if half_duplex else number % links].append(move)
        rows[row] = move
        begin(table, ops, row, number % links, work, 1, work, now)
    end_until(NEVER_NS - 1)
    assert table.next_ns == NEVER_NS
    assert ops.open == 0
    for queue in queues:
        plain(queue)
    times = [at for at, _ in ended]
    assert times == sorted(times)
    for at, move in ended:
        late = Fraction(at) - move.end
        assert late == 0 if plain is fifo else -1 < late < len(moves)
    assert table.busy_ns.sum() == sum(work for _, work in moves)


@given(st.data())
def test_rows_and_blocks_of_the_table(data):
    """Rows are used again, blocks move together, and each block counts the operations that touch it."""
    ops, links, pool = operations.make_operations(), product.make_links(), make_pool(40, "tail")
    product.add_link(links, 0, 0, 1)
    reserved: dict[int, tuple[list[int], list[int]]] = {}
    moving: dict[int, tuple[list[int], list[int]]] = {}
    aborted: set[int] = set()
    now = 0
    for _ in range(data.draw(st.integers(1, 60))):
        what = data.draw(st.sampled_from(["open", "begin", "abort", "end"]))
        if what == "open":
            row = int(open_row(ops, LOAD, 0, data.draw(st.integers(-1, 1))))
            assert row not in reserved
            assert row not in moving
            pieces = [data.draw(st.lists(st.integers(1, 40), max_size=30)) for _ in range(2)]
            for piece, of_target in zip(pieces, (False, True), strict=True):
                attach(ops, row, pool, np.array([0, *piece], np.int32), 1, 1 + len(piece), of_target)
            reserved[row] = (pieces[0], pieces[1])
        elif what == "begin" and reserved:
            row = data.draw(st.sampled_from(sorted(reserved)))
            begin(links, ops, row, 0, 8, 1, data.draw(st.integers(0, 9)), now)
            moving[row] = reserved.pop(row)
        elif what == "abort" and (reserved or moving):
            row = data.draw(st.sampled_from(sorted({*reserved, *moving})))
            abort(ops, row)
            if row in reserved:
                assert ops.rows[row, OP_STATE] == FAILED
                _leave(ops, row, pool)
                del reserved[row]
            else:
                assert ops.rows[row, OP_STATE] == DRAINING
                aborted.add(row)
        elif what == "end" and moving:
            now = int(links.next_ns)
            row = int(end_next(links, ops))
            assert ops.rows[row, OP_STATE] == (FAILED if row in aborted else ENDED)
            aborted.discard(row)
            del moving[row]
            _leave(ops, row, pool)
        _check(ops, pool, reserved | moving, aborted)


def _leave(ops, row, pool) -> None:
    """Both ends hear of it; the row goes with the last of them."""
    hearers = int(ops.rows[row, OP_HEARERS])
    assert [bool(leave(ops, row, pool)) for _ in range(hearers)] == [i == hearers - 1 for i in range(hearers)]


def _check(ops, pool, live, aborted) -> None:
    rows = ops.rows
    states = rows[:, OP_STATE]
    assert set(np.flatnonzero(states != FREE_ROW).tolist()) == set(live)
    assert all(states[row] in ((DRAINING,) if row in aborted else (RESERVED, MOVING)) for row in live)
    touched = np.zeros(41, np.int64)
    for row, pieces in live.items():
        ends = ((OP_FIRST, OP_COUNT), (OP_TARGET_FIRST, OP_TARGET_COUNT))
        for piece, (first, count) in zip(pieces, ends, strict=True):
            kept = ops.blocks[rows[row, first] : rows[row, first] + rows[row, count]]
            assert kept.tolist() == piece
            np.add.at(touched, piece, 1)
    assert pool.in_flight.tolist() == touched.tolist()


def test_what_moves_over_a_link_that_is_down_fails():
    ops, links = operations.make_operations(), product.make_links()
    product.add_link(links, 5, 0, 1)
    row = open_row(ops, BACKUP, 0, -1)
    begin(links, ops, row, 0, 10, 1, 15, 100)
    links.up[0] = 0
    assert links.next_ns == 115
    assert ops.rows[end_next(links, ops), OP_STATE] == FAILED


def test_a_transfer_takes_setup_fragments_and_bytes_rounded_once():
    links = product.make_links()
    product.add_link(links, 1000, 2.5, 0.25)
    assert [transfer_ns(links.rates, 0, *asked) for asked in ((0, 0), (10, 1), (10, 2), (3, 0))] == [
        1000,
        1005,
        1008,
        1001,
    ]
