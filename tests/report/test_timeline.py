"""The trace of a run, by the rules of Chrome's trace-event format."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from kvbench.core.journal import CANCELLED, NEVER, PARTIAL, REFUSED, STEP_COLUMNS, Journal
from kvbench.report import timeline
from kvbench.report.timeline import sampling, timeline_json

from ..runs import journal, record, requests
from .pictures.made import many_requests, many_rows


def read(rows: Journal, table) -> dict:
    return json.loads("".join(timeline_json(record(), rows, table)))


def check(document: dict) -> list[dict]:
    """Every rule that a viewer relies on."""
    events = document["traceEvents"]
    names = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    open_spans = defaultdict(list)
    busy = defaultdict(float)
    for e in events:
        assert {"ph", "ts", "name", "pid", "tid"} <= set(e)
        assert e["pid"] in processes
        if e["ph"] == "M":
            continue
        assert (e["pid"], e["tid"]) in names
        if e["ph"] == "X":  # events of one thread do not overlap
            assert e["dur"] >= 0
            assert e["ts"] >= busy[e["pid"], e["tid"]] - 1e-6
            busy[e["pid"], e["tid"]] = e["ts"] + e["dur"]
        elif e["ph"] == "b":
            open_spans[e["cat"], e["id"]].append(e["name"])
        elif e["ph"] == "e":
            assert open_spans[e["cat"], e["id"]].pop() == e["name"]
        elif e["ph"] == "C":
            assert all(isinstance(v, int) for v in e["args"].values())
        else:
            assert (e["ph"], e["s"]) == ("i", "t")
    assert not any(open_spans.values())
    return events


def test_requests_are_spans_with_their_phases():
    rows = many_rows(60)
    document = read(rows, many_requests(60))
    events = check(document)
    mine = [(e["ph"], e["name"], e["ts"]) for e in events if e.get("id") == 9]
    at = [int(a[9]) / 1000 for a in (rows.arrival_ns, rows.queued_ns, rows.scheduled_ns, rows.first_token_ns)]
    end = int(rows.finish_ns[9]) / 1000
    names = [
        "request 9",
        "tokenise",
        "tokenise",
        "queue",
        "queue",
        "prefill",
        "prefill",
        "decode",
        "decode",
        "request 9",
    ]
    assert mine == list(
        zip("bbebebebee", names, [at[0], at[0], at[1], at[1], at[2], at[2], at[3], at[3], end, end], strict=True)
    )
    facts = next(e["args"] for e in events if e.get("id") == 19)
    assert facts["preemptions"] == 1
    assert facts["time_preempted_ms"] == 10.0
    assert document["otherData"]["clock"] == "modelled"
    assert document["otherData"]["sampled"].startswith("no")


def test_steps_counters_and_instants_are_those_of_the_journal():
    rows = many_rows(60)
    events = check(read(rows, many_requests(60)))
    steps = [e for e in events if e.get("cat") == "step"]
    assert len(steps) == rows.steps.shape[0]
    assert {e["name"] for e in steps} == {"decode", "prefill", "mixed"}
    blocks = [e["args"] for e in events if e["ph"] == "C" and e["name"] == "blocks"]
    assert [b["used"] for b in blocks] == rows.steps[:, STEP_COLUMNS.index("used_blocks")].tolist()
    assert {e["name"] for e in events if e["ph"] == "C"} == {"blocks", "queue", "running"}
    evicted = sum(e["args"]["blocks"] for e in events if e["name"] == "eviction")
    assert evicted == rows.steps[:, STEP_COLUMNS.index("evicted_blocks")].sum() > 0
    assert sum(e["args"]["sequences"] for e in events if e["name"] == "preemption") == 3


def test_each_link_has_a_track_and_more_where_it_moves_several_at_once():
    """link, kind, start, end, bytes, failed: two over link 1 at once, then one over each."""
    moves = np.array([[1, 1, 50, 400, 8, 0], [1, 1, 60, 300, 8, 0], [1, 0, 400, 500, 4, 1], [0, 3, 10, 20, 2, 0]])
    rows = replace(many_rows(5), moves=moves, link_names=("host to storage", "host to device"))
    events = [e for e in check(read(rows, many_requests(5))) if e["pid"] == timeline.LINKS]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert sorted(tracks.values()) == ["host to device", "host to device (2)", "host to storage"]
    moved = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"], e["args"]) for e in events if e["ph"] == "X"]
    assert moved == [
        ("host to storage", "store", 0.01, 0.01, {"bytes": 2, "failed": False}),
        ("host to device", "load", 0.05, 0.35, {"bytes": 8, "failed": False}),
        ("host to device (2)", "load", 0.06, 0.24, {"bytes": 8, "failed": False}),
        ("host to device", "backup", 0.4, 0.1, {"bytes": 4, "failed": True}),
    ]


def test_places_are_no_more_than_run_at_once():
    rows = many_rows(60)
    events = check(read(rows, many_requests(60)))
    places = {e["tid"] for e in events if e.get("cat") == "place"}
    starts, ends = rows.scheduled_ns, rows.finish_ns
    at_once = max(((starts <= t) & (ends > t)).sum() for t in starts)
    assert len(places) == at_once


def test_what_did_not_run_to_its_end():
    rows = journal()
    events = check(read(rows, requests()))
    assert next(e for e in events if e["name"] == "request 2 refused")["ph"] == "i"
    cut = [e for e in events if e.get("id") == 3]
    assert cut[0]["args"]["status"] == "partial"
    assert cut[-1]["ts"] == rows.finish_ns.max() / 1000
    assert {PARTIAL, REFUSED} <= set(rows.status.tolist())


def test_a_cancelled_one_ends_where_it_was():
    rows = many_rows(3)
    status, first, scheduled = rows.status.copy(), rows.first_token_ns.copy(), rows.scheduled_ns.copy()
    status[1], first[1], scheduled[1] = CANCELLED, NEVER, NEVER
    events = check(read(many_rows(3, status=status, first_token_ns=first, scheduled_ns=scheduled), many_requests(3)))
    assert [e["name"] for e in events if e.get("id") == 1] == [
        "request 1", "tokenise", "tokenise", "queue", "queue", "request 1"
    ]  # fmt: skip
    assert not any(e["name"] == "request 1" for e in events if e.get("cat") == "place")


def test_a_large_run_is_sampled_and_says_so(monkeypatch):
    monkeypatch.setattr(timeline, "MOST_REQUESTS", 20)
    monkeypatch.setattr(timeline, "MOST_STEPS", 50)
    rows = many_rows(60)
    document = read(rows, many_requests(60))
    events = check(document)
    assert str(sampling(rows)).startswith("sampled: one of 3 of 60 sequences and one of 3 of 120 steps")
    assert document["otherData"]["sampled"] in str(sampling(rows))
    assert len({e["id"] for e in events if e["ph"] == "b"}) == 20
    assert len([e for e in events if e.get("cat") == "step"]) == 40
    assert sum(e["args"]["blocks"] for e in events if e["name"] == "eviction") == rows.steps[:, 11].sum()


@pytest.mark.parametrize("n", [0, 1])
def test_the_smallest_runs(n):
    rows = many_rows(n, steps=False)
    events = check(read(rows, many_requests(n)))
    assert len([e for e in events if e["ph"] == "b"]) == 5 * n
    assert np.array_equal(rows.steps.shape, (0, len(STEP_COLUMNS)))
