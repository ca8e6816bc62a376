"""The report on replayed recordings."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.report.golden_table import DETAILED, StreamLine, golden_report, side_by_side
from kvbench.report.table import WIDTH


def line(name: str = "s", agreed: int = 7, differences: tuple = (), unknown: str = "") -> StreamLine:
    return StreamLine(name, "vllm 0.33.0", 7, agreed, "line 9, step 7", differences, unknown)


def test_every_stream_has_a_line_with_its_steps_and_mismatches():
    text = golden_report([line("a"), line("b", 3, (("free", 1, 2), ("emitted", [], ["r"]))), line("c", 0, (), "no")])
    table = text.partition("\n\n")[0]
    rows = {row.split()[0]: row.split()[3:] for row in table.splitlines()}
    assert rows["a"] == ["7", "0"]
    assert rows["b"] == ["3", "of", "7", "2"]
    assert rows["c"] == ["0", "of", "7", "unknown"]
    assert "3 streams: 1 agree, 1 differ, 1 unknown; 10 steps agree" in text
    assert "b, line 9, step 7" in text
    assert "c was not replayed: no" in text


def test_nothing_is_wider_than_a_terminal():
    long = (("a_rather_long_field_name", list(range(200)), list(range(1, 201))),)
    text = golden_report([line("n" * 150, 3, long), line("m", 0, (), "word " * 60)])
    assert max(map(len, text.splitlines())) <= WIDTH


def test_files_that_are_no_recordings_are_named_in_one_line():
    last = golden_report([line("a")], ["trace.jsonl", "sub/b.jsonl.gz"]).splitlines()[-1]
    assert last == "left out, no recordings: 2 (trace.jsonl, sub/b.jsonl.gz)"
    many = golden_report([line("a")], [f"trace-{i}.jsonl" for i in range(1000)]).splitlines()[-1]
    assert many.startswith("left out, no recordings: 1,000 (trace-0.jsonl")
    assert len(many) <= WIDTH


def test_more_differing_streams_than_are_shown_are_counted():
    text = golden_report([line(f"s{i}", 3, (("free", 1, 2),)) for i in range(DETAILED + 3)])
    assert text.count("recorded") == DETAILED
    assert "3 more streams differ" in text


def test_what_a_file_says_moves_no_cursor():
    bad = "\x1b[2Jx"
    streams = [line(bad, 3, (("tokens", bad, [bad]),)), line("c", 0, (), f"component {bad} is unknown")]
    text = golden_report(streams, [bad])
    assert "\x1b" not in text


@pytest.mark.parametrize("at", [0, 100, 199])
def test_long_values_are_shown_where_they_part(at):
    recorded = list(range(100, 300))
    own = [*recorded[:at], 777, *recorded[at + 1 :]]
    _, _, row = side_by_side("t", [("free_queue", recorded, own)]).splitlines()
    assert str(recorded[at]) in row
    assert "777" in row
    assert len(row) <= WIDTH


def test_numbers_of_numpy_are_shown_as_numbers():
    assert "[3, 0.5]" in side_by_side("t", [("x", [], [np.int64(3), np.float64(0.5)])])
