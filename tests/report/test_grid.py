"""Tables, CSV and lines of a grid made by hand."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from kvbench.report.curves import Line, horizontal, lines_of, lowest, short_number
from kvbench.report.grid import Grid, GridRow, grid_csv, grid_document, grid_table, miss, run_figures
from kvbench.report.pictures.ends import apart
from kvbench.report.table import WIDTH

from ..runs import record

COUNTED = {"answers": False, "warm_up": 0.25, "prompts_with_answers": 0, "refused": 3}


def curve() -> Grid:
    rows = []
    for capacity, optimum in (("1000", 0.5), ("20000", 0.75)):
        for policy, hit in (("lru", 0.25), ("mru", 0.125)):
            bounds = {"hit_rate_tokens_optimum": optimum, "hit_rate_tokens_infinite": 0.75}
            rows.append(GridRow((capacity, policy), {"hit_rate_tokens": hit, "hit_blocks": 3, **bounds, **COUNTED}))
    return Grid("t", ("cache.blocks", "cache.eviction"), {}, tuple(rows), True, "lru", 16)


def runs() -> Grid:
    figures = run_figures(record())
    rows = (GridRow(("1", "true"), figures), GridRow(("2", "true"), {}, "no, it\ncannot"))
    return Grid("t", ("tp", "cache.unregister_unwritten"), {"tp": "devices"}, rows, False, "lru", 16)


def test_a_miss_ratio_curve_has_policies_as_columns():
    lines = grid_table(curve()).splitlines()
    assert lines[2].split() == ["blocks", "lru", "mru", "optimum", "infinite"]
    assert [line.split() for line in lines[4:6]] == [
        ["1,000", "75.00", "87.50", "50.00", "25.00"],
        ["20,000", "75.00", "87.50", "25.00", "25.00"],
    ]
    said = " ".join(lines[7:])
    assert "exact for such a cache, a bound for every policy" in said
    assert "3 sequences, which an engine refuses" in said
    assert "prompts alone enter the cache" in said
    assert "the first 25 % of the requests fill the cache and are not counted" in said


def test_without_an_axis_of_policies_the_column_is_the_policy():
    one = replace(curve(), keys=("cache.blocks",), rows=(GridRow(("1000",), curve().rows[0].figures),), policy="fifo")
    assert grid_table(one).splitlines()[2].split() == ["blocks", "fifo", "optimum", "infinite"]


def test_other_grids_have_a_row_for_each_point():
    text = grid_table(runs())
    assert text.splitlines()[0].split()[:4] == ["tp", "unregister_unwritten", "hit", "%"]
    assert "-" in text.splitlines()[3].split()
    assert "a bound, exact only where requests do not overlap" in " ".join(text.split())
    cache = replace(curve(), keys=("cache.blocks", "block_tokens"))
    assert "hit blocks" in grid_table(cache).splitlines()[0]


def test_no_table_is_wider_than_a_page():
    keys = ("scheduler.max_num_batched_tokens", "scheduler.max_num_seqs", "trace.path")
    values = ("8192", "/a/very/long/path/" + "x" * 100, "y")
    wide = replace(runs(), keys=keys, rows=(GridRow(values, runs().rows[0].figures),))
    assert max(map(len, grid_table(wide).splitlines())) <= WIDTH
    assert "hit %" in grid_table(wide)


def test_equal_last_parts_are_written_out():
    both = replace(curve(), keys=("cache.state", "other.state"))
    assert grid_table(both).split()[:2] == ["cache.state", "other.state"]


def test_csv_has_full_keys_and_every_figure():
    first, second = csv.DictReader("".join(grid_csv(runs())).splitlines(keepends=True))
    assert (first["run"], first["tp"], first["cache.unregister_unwritten"]) == ("t", "1", "true")
    assert first["hit_rate"] == "0.137143"
    assert first["p99_ttft_ms"]
    assert first["fingerprint"] == record().fingerprint
    assert not {"seed", "schema", "overlap", "complete", "statuses"} & set(first)
    assert (second["hit_rate"], second["error"]) == ("", r"no, it\x0acannot")


def test_the_document_holds_the_same():
    document = grid_document(runs())
    assert document["points"][0]["grid"] == {"tp": "1", "cache.unregister_unwritten": "true"}
    assert document["points"][0]["cached_tokens"] == 96
    assert document["points"][1]["error"]
    assert document["complete"] is True


def test_a_miss_is_what_is_not_hit():
    assert miss({"a": 0.25}, "a") == 0.75
    assert miss({"a": None}, "a") is None
    assert miss({}, "a") is None


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize(
    ("axes", "over"),
    [
        ({"cache.eviction": ("lru", "mru")}, None),
        ({"seed": ("1",)}, None),
        ({"seed": ("1", "2"), "cache.blocks": ("5", "6")}, "cache.blocks"),
        ({"cache.blocks": ("5",), "seed": ("1", "2")}, "seed"),
        ({"arrivals.rate": ("1", "inf"), "tp": ("1", "2")}, "tp"),
    ],
)
def test_the_axis_to_draw_over(axes, over):
    assert horizontal(axes) == over


def test_a_line_for_each_combination_in_order_of_x():
    backwards = replace(curve(), rows=curve().rows[::-1])
    lines = lines_of(backwards, "cache.blocks", lambda row: row.figures["hit_rate_tokens"])
    assert lines == [
        Line("mru", ((1000.0, 0.125), (20000.0, 0.125)), 0),
        Line("lru", ((1000.0, 0.25), (20000.0, 0.25)), 1),
    ]


def test_lines_that_are_the_same_are_one_and_points_without_a_figure_none():
    (line,) = lines_of(curve(), "cache.blocks", lambda row: None if row.values[0] == "1000" else 1.0)
    assert line == Line("lru, mru", ((20000.0, 1.0),), 0)
    assert lines_of(curve(), "cache.blocks", lambda _: None) == []


def test_the_lowest_of_lines():
    lines = [Line("a", ((1, 5), (2, 3))), Line("b", ((1, 4), (3, 9)))]
    assert lowest(lines, "c") == Line("c", ((1, 4), (2, 3), (3, 9)))


@pytest.mark.parametrize(
    ("heights", "placed"),
    [
        ([0.5, 0.9], [0.5, 0.9]),
        ([0.5, 0.5, 0.5], [0.4, 0.5, 0.6]),
        ([0.55, 0.5, 0.9], [0.575, 0.475, 0.9]),
        ([0.0, 0.0], [0.0, 0.1]),
        ([0.5, 0.5, 0.62, 0.62], [0.41, 0.51, 0.61, 0.71]),
        ([], []),
    ],
)
def test_names_move_apart(heights, placed):
    assert apart(heights, 0.1) == pytest.approx(placed)


def test_numbers_on_an_axis():
    assert list(map(short_number, (0.5, 500, 1000, 2_500_000))) == ["0.5", "500", "1k", "2.5M"]
