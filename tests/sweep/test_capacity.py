"""The search for the capacity against a system whose capacity is known."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbench.cli import call
from kvbench.core.journal import FINISHED, REFUSED
from kvbench.metrics.slo import percentile_of_all
from kvbench.report.capacity import CapacityReport, bursts, doubt, sentence
from kvbench.sweep.capacity import Capacity, Point, Scale, search

from ..runs import record

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
    assert out.splitlines()[-1].endswith("nothing broke.")  # an engine that never queues
    assert "ttft <= 200, tpot <= 50 ms" in out
    assert "device       h100" in out
    assert max(map(len, out.splitlines())) <= 100
    assert "kvbench: 8: kept" in err
    assert call([*line, "--set", "slo.e2el=0.5", "-q"]) == 0
    last = " ".join(capsys.readouterr().out.split("\n\n")[-1].split())
    assert "does not keep these promises even at" in last
    assert last.endswith("the first to break is E2EL.")


def test_a_percentile_is_promised_by_itself(fake_engine, capsys, tmp_path):
    plot = tmp_path / "tail.svg"
    line = ["capacity", "bursty", "--num-prompts", "40", "--slo", "ttft.p90:0.001 itl.p50:9000", "--seeds", "2"]
    assert call([*line, "--json", "-q", "--plot", str(plot)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["promises"] == ["ttft.p90:0.001", "itl.p50:9000"]
    assert document["first_broken"] == "TTFT p90"
    assert document["low"] is None
    assert len(document["seeds"]) == 1  # what no load keeps is kept under no seed
    assert all(point["promises"]["ttft.p90:0.001"] > 0.001 for point in document["points"])
    assert ">TTFT p90</text>" in plot.read_text()


@pytest.mark.parametrize("slo", ["ttft:200", "ttft.p100:3", "ttft.p99", "queue.p99:3", "ttft.p99:0"])
def test_a_promise_that_is_none_is_one_line(slo, capsys):
    assert call(["capacity", "chat", "--slo", slo]) == 2
    assert "write it as ttft.p99:500" in capsys.readouterr().err


TRACE = "".join(
    f'{{"timestamp": {1000 * (i // 10)}, "input_length": 100, "output_length": 5, "hash_ids": [{i}]}}\n'
    for i in range(100)
)


def test_a_trace_starts_at_its_rate_and_its_bursts_are_told(fake_engine, capsys, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(TRACE)
    line = ["capacity", "--trace", str(trace), "--json"]
    assert call([*line, "--slo", "ttft.p99:0.001"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["points"][0]["load"] == 11.0  # 99 gaps in 9 s
    assert document["poisson"]["load"] == 11.0
    assert "Not the bursts decide" in document["bursts"]
    assert err.count("broke TTFT p99") == len(document["points"]) + 1
    assert call([*line, "--slo", "ttft.p99:1e6".replace("1e6", "1000000"), "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["seeds"]) == 1  # nothing in it is drawn
    assert call([*line, "--slo", "ttft.p99:1000000", "-q", "--arrivals", "poisson", "--seeds", "2"]) == 0
    drawn = json.loads(capsys.readouterr().out)
    assert len(drawn["seeds"]) == 2
    assert drawn["poisson"] is None


def report(**changed) -> CapacityReport:
    point = {"load": 2.0, "share": 1.0, "met": True, "figures": {}, "served": 2.0, "broke": "", "promises": {}}
    above = {**point, "load": 2.1, "met": False, "broke": "TTFT p99"}
    brackets = {0: (2.0, 2.1), 1: (2.2, 2.3), 2: (2.1, 2.2)}
    return CapacityReport(**{"record": record(), "over": "rate", "share": 0.99, "promises": (), "brackets": brackets,
                             "points": (point, above), **changed})  # fmt: skip


def test_the_answer_is_a_sentence():
    assert sentence(report()).endswith(
        "carries 2.1 requests/s (2 .. 2.2 over 3 seeds) under these promises; the first to break is TTFT p99."
    )
    assert doubt(report()) == bursts(report()) == ""
    kept = {"load": 2.1, "met": True}
    assert bursts(report(poisson=kept)).startswith("The bursts of the trace decide: at 2.1 requests/s")


def test_a_rate_that_brings_no_more_load_ends_the_search():
    """Sessions that think ask no faster; the answer says that the rate was not served."""
    rate = search(RATES, lambda load: Point(load, 1.0, True, {}, served=min(load, 3.0)))
    assert (rate.low, rate.high) == (16.0, None)
    found = report(brackets={0: (16.0, None)}, points=tuple(map(vars, rate.points)))
    assert "carries 3 requests/s, all that this workload asks for" in sentence(found)
    assert "NOT SUSTAINED: 3 of 16 requests/s were served" in doubt(found)
    assert doubt(report(over="concurrency", brackets={0: (16.0, None)}, points=tuple(map(vars, rate.points)))) == ""


@pytest.mark.parametrize("percentile", [50, 90, 99, 99.9])
def test_what_did_not_finish_is_endless(percentile):
    times = np.arange(1, 1001) * 1_000_000
    table = journal(many=1000)
    assert percentile_of_all(times, table, percentile) == pytest.approx(np.percentile(times / 1e6, percentile))
    table.status[:20] = REFUSED
    assert (percentile_of_all(times, table, percentile) == np.inf) == (percentile > 98)


def journal(many: int):
    return SimpleNamespace(status=np.full(many, FINISHED))
