"""The search for the capacity against a system whose capacity is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli import call
from kvbench.report.capacity import answer, doubt
from kvbench.sweep.capacity import Capacity, Point, Scale, search

RATES = Scale(start=1.0, least=1e-3, most=1e6, whole=False, precision=0.02)


def found(scale: Scale, capacity: float) -> Capacity:
    return search(scale, lambda load: Point(load, float(load <= capacity), load <= capacity, {}))


@given(st.floats(2e-3, 5e5))
def test_the_bracket_holds_the_capacity_of_a_rate(capacity):
    result = found(RATES, capacity)
    assert result.low <= capacity < result.high
    assert result.high / result.low <= 1.021
    assert len({point.load for point in result.points}) == len(result.points) < 45


@given(st.integers(1, 300), st.integers(8, 400))
def test_the_bracket_of_whole_loads_is_exact(capacity, most):
    result = found(Scale(8, 1, most, True, 0), capacity)
    assert result.low == min(capacity, most)
    assert result.high == (None if capacity >= most else capacity + 1)


def test_loads_that_all_meet_or_none():
    assert found(RATES, 1e9).low == 1e6
    assert found(RATES, 1e9).high is None
    nothing = found(RATES, 0)
    assert (nothing.low, nothing.high) == (None, 1e-3)


def test_a_search_needs_a_promise_and_leaves_the_load_open(fake_engine, capsys):
    assert call(["capacity", "chat"]) == 2
    assert call(["capacity"]) == 2
    assert call(["capacity", "chat", "--goodput", "ttft:200", "--request-rate", "3"]) == 2
    assert call(["capacity", "chat", "--goodput", "tfft:200"]) == 2
    assert "names are ttft, tpot, e2el" in capsys.readouterr().err


@pytest.mark.parametrize("over", ["rate", "concurrency"])
def test_the_command_tells_what_it_tried(fake_engine, capsys, over):
    line = ["capacity", "--over", over, "--num-prompts", "12", "--goodput", "ttft:200", "tpot:50", "chat"]
    assert call(line) == 0
    out, err = capsys.readouterr()
    assert "still meet the SLOs" in out  # an engine that never queues
    assert "ttft:200 tpot:50" in out
    assert max(map(len, out.splitlines())) <= 100
    assert f"kvbench: {'1' if over == 'rate' else '8'}: 100.00 % kept ttft:200 tpot:50" in err
    assert call([*line, "--set", "slo.e2el=0.5", "-q"]) == 0
    assert "no " + over + " meets the SLOs" in capsys.readouterr().out


def test_a_rate_that_brings_no_more_load_ends_the_search():
    """Sessions that think ask no faster; the answer says that the rate was not served."""
    rate = search(RATES, lambda load: Point(load, 1.0, True, {}, served=min(load, 3.0)))
    assert (rate.low, rate.high) == (16.0, None)
    said = answer("rate", rate.low, rate.high, RATES.most) + doubt("rate", 3.0, rate.low)
    assert "twice the rate brings no more load" in said
    assert "NOT SUSTAINED: 3 of 16 requests/s were served" in said
    assert doubt("rate", 15.0, 16.0) == doubt("concurrency", 3.0, 16.0) == ""
