import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.jit import entry
from kvbench.costs import tables as t
from kvbench.costs.axes import Grid, Line, axis_points, sample_line
from kvbench.costs.roofline import roofline, roofline_times

from ..reference import cost as reference
from .steps import deployment, price, price_chunks

REPO = Path(__file__).resolve().parents[2]

STEPS = [
    [1, 0, 0, 0, 0],
    [8192, 0, 0, 0, 0],
    [777, 12345, 200, 150_000, 1 << 20],
    [0, 0, 1, 1, 0],
    [0, 0, 9999, 1 << 33, 0],
    [300_000, 300_000, 0, 0, 0],
]

DENSE = roofline(deployment()).tables
EXPERTS = roofline(deployment("h20", "deepseek-v3", dtype="fp8", tp=8)).tables


@entry
def _step(tables, query):
    return t.step_ns(tables, query, np.zeros(t.NUM_RESOURCES, np.int64))


def _plain_tables(**change):
    """Tables in which everything but the changed one is free."""
    line, grid = Line(0, np.zeros(2)), Grid(0, 0, np.zeros((2, 2)), np.zeros((2, 2)))
    parts = {"linear": line, "communication": line, "head": line, "prefill": grid, "decode": grid} | change
    return t.build_tables(**parts, overheads=t.Overheads(0.0, 0.0, 0.0))


chunk = st.tuples(st.integers(1, 200_000), st.integers(0, 200_000))
decode = st.tuples(st.integers(1, 20_000), st.integers(1, 1 << 34))


@settings(max_examples=150, deadline=None)
@given(st.lists(chunk, max_size=4), decode, st.integers(0, 1 << 40), st.sampled_from([DENSE, EXPERTS]))
def test_equals_the_reference_to_the_nanosecond(chunks, batch, copies, tables):
    fields = tables.read()
    assert price_chunks(tables, chunks, [batch])[0] == reference.Step(fields, chunks, *batch).resources()
    step = (*(chunks[0] if chunks else (0, 0)), *batch, copies)
    out, totals = price(tables, [step])
    assert out[0].tolist() == reference.Step(fields, chunks[:1], *batch, copies).resources()
    assert totals[0] == out[0].sum()


def test_a_step_without_tokens_costs_only_its_copies():
    out, totals = price(DENSE, [[0, 0, 0, 0, 1 << 20]])
    assert out[0, t.COPY] == totals[0] > 0


def test_chunks_may_come_in_any_order():
    chunks = [(1, 0), (8191, 77), (513, 100_001), (4096, 12), (3, 3)]
    assert price_chunks(DENSE, chunks)[0] == price_chunks(DENSE, chunks[::-1])[0]


def test_decode_may_be_set_again():
    once, again = (price_chunks(DENSE, [(100, 5)], b) for b in ([(7, 900)], [(64, 64_000), (7, 900)]))
    assert once[0] == again[0]
    assert once[1].tolist() == again[1].tolist()
    query = once[1]
    assert query[t.NEW_TOKENS] == 107
    assert query[t.NUM_SEQUENCES] == 8
    assert query[t.NUM_PREFILL] == 1
    assert query[t.DECODE_CONTEXT_MAX] == 900


def test_every_entry_of_the_query_is_read_or_declared_missing():
    """Raising an entry changes the step unless it is a missing dimension; chunks are only counted."""
    tables = roofline_times(deployment()).tables(experts=t.ExpertTimes(1.0, 1.0, 1.0))
    base = np.full(t.QUERY_SIZE, 100.0)
    base[t.GRAPH_BUCKET] = 0.0
    unread = set()
    for index in range(t.QUERY_SIZE):
        raised = base.copy()
        raised[index] = 1e9
        if _step(tables, raised) == _step(tables, base):
            unread.add(index)
    missing = roofline(deployment()).missing
    assert unread == {getattr(t, name.upper()) for name in missing} | {t.NUM_PREFILL, t.OUTSIDE}


def test_axis_points():
    assert axis_points(0, 5).tolist() == [1, 2, 4, 8]
    assert axis_points(1, 4).tolist() == [1, 1.5, 2, 3, 4]
    assert axis_points(2, 1).tolist() == [1, 1.25, 1.5, 1.75, 2]
    assert axis_points(5, 131072)[-1] == 131072


def test_points_are_met_and_the_last_stretch_goes_on():
    line = sample_line(lambda x: 1000 * x * x, 2, 64)
    tables = _plain_tables(linear=line)
    counts = [1, 5, 32, 48, 64]
    out, _ = price(tables, [[n, 0, 0, 0, 0] for n in counts])
    assert out[:, t.LINEAR].tolist() == [1000 * n * n for n in counts]
    slope = 1000 * (64**2 - 56**2) / 8
    out, _ = price(tables, [[640, 0, 0, 0, 0]])
    assert out[0, t.LINEAR] == 1000 * 64**2 + slope * 576


def test_the_larger_bound_counts():
    compute, memory = np.array([[10.0, 20], [30, 40]]), np.array([[25.0, 25], [25, 25]])
    tables = _plain_tables(prefill=Grid(0, 0, compute, memory))
    out, _ = price(tables, [[1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [2, 1, 0, 0, 0]])
    assert out[:, t.PREFILL_ATTENTION].tolist() == [25, 30, 40]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"linear": Line(0, np.array([1.0]))}, "'linear': needs two or more points"),
        ({"head": Line(0, np.array([1.0, -1.0]))}, "'head': times must be finite and not negative"),
        ({"communication": Line(0, np.array([1.0, np.nan]))}, "'communication': times must be finite"),
        ({"decode": Grid(0, 0, np.ones((2, 2)), np.ones((2, 3)))}, "'decode': .* different shapes"),
        ({"prefill": Grid(0, 0, np.ones(4), np.ones(4))}, "'prefill': needs two or more points on each of 2"),
    ],
)
def test_wrong_tables_are_named(change, text):
    with pytest.raises(UsageError, match=text):
        _plain_tables(**change)


@pytest.mark.jit_off
def test_the_same_without_jit():
    """A process of plain Python prices the same steps to the same nanosecond."""
    code = (
        "from tests.costs.test_tables import *\nfor tables in (DENSE, EXPERTS): print(price(tables, STEPS)[0].tolist())"
    )
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO, env=environment, check=True
    )
    assert done.stdout.splitlines() == [str(price(tables, STEPS)[0].tolist()) for tables in (DENSE, EXPERTS)]
