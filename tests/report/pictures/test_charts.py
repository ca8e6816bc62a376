"""What charts say: the numbers of the files, nothing else."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kvbench.cli.plot import WHAT
from kvbench.core.errors import UsageError
from kvbench.core.journal import NEVER, PARTIAL, PARTS
from kvbench.report.pictures.chart import GREY, PHASE, Axis, axis, duration, short
from kvbench.report.pictures.figure import to_png
from kvbench.report.pictures.folders import read_folder, read_sources
from kvbench.report.pictures.gather import KINDS, charts_of, one_kind, read_named
from kvbench.report.pictures.labels import MOST_LINES
from kvbench.report.pictures.page import to_html
from kvbench.report.pictures.phases import PHASES
from kvbench.report.pictures.svg import standalone

from .made import (
    many_requests,
    many_rows,
    write_advice,
    write_curve,
    write_fidelity,
    write_rates,
    write_rows,
    write_run,
)

MS = 1e6


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "base", run="chat")
    write_run(root / "slow", slow=3, run="chat", config={"cache": {"blocks": 80}})
    write_run(root / "real", run="chat", clock="measured", config={"cache": {"blocks": 80}})
    write_rates(root / "rates")
    write_curve(root / "curve")
    write_fidelity(root / "fidelity")
    write_advice(root / "advice")
    return root


OF_SEVERAL = {"experts", "devices", "engines", "fleet", "tiers"}
"""Only of runs with several engines, devices or tiers; see tests/bench/test_experts, test_fleet and test_tiers."""


def test_a_cdf_holds_the_quantiles_of_the_files(place):
    (ttft, *_) = one_kind(read_named([place / "base"], None), "cdf")
    journal = many_rows(400)
    times = (journal.first_token_ns - journal.arrival_ns) / MS
    line = ttft.series[0]
    assert line.y[0] == 0
    assert line.y[-1] == 100
    np.testing.assert_allclose(line.x, np.quantile(times, line.y / 100), rtol=1e-9)
    assert ttft.table[0][:2] == ("chat", "400")
    assert ttft.table[0][2] == duration(float(np.quantile(times, 0.5)))
    assert [rule.at for rule in ttft.rules] == [30.0]


def test_a_spectrum_is_thin_where_no_interval_exists(place):
    ttft = next(c for c in one_kind(read_named([place / "base"], None), "spectrum") if c.key == "spectrum-ttft")
    solid, thin = ttft.series
    assert solid.x[-1] == thin.x[0] == pytest.approx(0.025 ** (1 / 400))
    assert solid.x[-1] > 0.99  # 368 samples are enough for p99
    assert thin.x[-1] == pytest.approx(1 - 1 / 400)
    assert "Thin" in ttft.note


def test_itl_is_the_distribution_of_all_gaps(place):
    run = read_folder(place / "base")
    journal = many_rows(400)
    gaps = np.repeat(journal.itl_gap_ns, journal.itl_count) / MS
    shares, values = run.itl
    np.testing.assert_allclose(values, np.quantile(gaps, shares), rtol=1e-9)
    assert (shares[0], shares[-1]) == (0, 1)
    itl = next(c for c in one_kind(read_named([place / "base"], None), "cdf") if c.key == "cdf-itl")
    assert itl.table[0][1] == f"{gaps.size:,}"
    assert itl.table[0][2] == duration(float(np.quantile(gaps, 0.5)))


def test_a_folder_without_the_gaps_has_no_picture_of_them(place, tmp_path):
    shutil.copytree(place / "base", tmp_path / "old")
    (tmp_path / "old" / "itl.csv").unlink()
    keys = [c.key for c in one_kind(read_named([tmp_path / "old"], None), "cdf")]
    assert keys == ["cdf-ttft", "cdf-tpot", "cdf-e2el"]


def test_means_by_phase_add_up_to_the_latency(place):
    r = read_folder(place / "base").requests
    for chart, column in zip(
        one_kind(read_named([place / "base"], None), "phases"), ("ttft_ms", "e2el_ms"), strict=True
    ):
        assert chart.rows == ("all", "slowest 10 %", "slowest 1 %")
        for row, size in enumerate((400, 40, 4)):
            mean = np.sort(r[column])[::-1][:size].mean()
            assert max(bar.end for bar in chart.bars if bar.row == row) == pytest.approx(mean)
            assert chart.table[row][-1] == duration(float(mean))


def test_the_parts_of_a_bar_add_up_to_its_request(place):
    (chart,) = one_kind(read_named([place / "base"], None), "timeline")
    assert len(chart.rows) == 40
    assert "40 of 400 sequences" in chart.note
    r = read_folder(place / "base").requests
    for row, name in enumerate(chart.rows):
        bars = [bar for bar in chart.bars if bar.row == row]
        assert bars[-1].end - bars[0].start == pytest.approx(r["e2el_ms"][int(name)])
        assert all(a.end == b.start for a, b in pairwise(bars))
    slowest = str(int(np.argmax(r["ttft_ms"])))
    assert slowest in chart.rows


def test_stretches_of_time_keep_the_integral_of_the_steps(place):
    (chart,) = one_kind(read_named([place / "base"], None), "occupancy")
    run = read_folder(place / "base")
    steps = run.steps
    used = chart.series[0]
    end_s = (steps["start_ms"] + steps["duration_ms"]).max() / 1000
    whole = (steps["used_blocks"] * steps["duration_ms"]).sum() / 1000
    assert used.y.mean() * end_s == pytest.approx(whole)
    assert (chart.series[1].base == used.y).all()
    assert [rule.at for rule in chart.rules] == [100]


def test_the_batch_stacks_prefill_on_decode_and_shows_who_waits(place):
    (chart,) = one_kind(read_named([place / "base"], None), "batch")
    assert [line.name for line in chart.series] == ["decode", "prefill", "waiting"]
    assert (chart.series[1].y >= chart.series[0].y).all()


def test_hit_rates_weigh_prompt_tokens(place):
    (chart,) = one_kind(read_named([place / "base"], None), "hits")
    assert chart.series[0].y[0] == 0
    assert chart.series[0].y[-1] == pytest.approx(64)
    run = read_folder(place / "base").requests
    assert chart.table[0][1] == f"{100 * run['cached_tokens'].sum() / run['prompt_tokens'].sum():.2f} %"


def test_the_first_of_several_folders_is_the_grey_baseline(place):
    sources = read_named([place / "base", place / "slow"], None)
    (chart,) = one_kind(sources, "ratios")
    assert sources.runs[0].baseline
    assert one_kind(sources, "cdf")[0].series[0].colour == GREY
    at = chart.rows.index("TPOT p50")
    a, b = (read_folder(place / name).figure("tpot", "p50") for name in ("base", "slow"))
    assert chart.series[0].x[at] == pytest.approx(b / a)
    other = read_named([place / "base", place / "slow"], place / "slow")
    assert other.runs[0].path == place / "slow"
    assert other.runs[0].baseline
    assert charts_of(read_named([place / "base"], None), "ratios") == []


def test_clocks_never_meet_in_silence(place):
    sources = read_named([place / "slow", place / "real"], None)
    for kind in ("cdf", "spectrum", "hits", "ratios"):
        for chart in one_kind(sources, kind):
            assert "MODELLED AND MEASURED" in chart.note
    assert {run.label for run in sources.runs} == {"chat (modelled)", "chat (measured)"}
    assert "MODELLED" not in one_kind(read_named([place / "base", place / "slow"], None), "cdf")[0].note


def test_labels_are_the_settings_that_differ(place):
    assert [run.label for run in read_named([place / "base", place / "slow"], None).runs] == ["blocks 100", "blocks 80"]
    assert [run.label for run in read_named([place / "rates"], None).runs] == ["rate 4", "rate 8", "rate 16"]


def test_a_curve_joins_the_loads_of_one_system(place):
    ttft, tpot = one_kind(read_named([place / "rates"], None), "curve")
    assert len(ttft.series) == 1
    assert [row[1] for row in ttft.table] == ["4", "8", "16"]
    runs = read_sources([place / "rates"]).runs
    assert tpot.series[0].y.tolist() == [run.figure("tpot", "p99") for run in runs]
    assert [rule.name for rule in ttft.rules] == ["SLO 30 ms"]


def test_seeds_are_meaned_and_settings_are_not(tmp_path):
    points = [(blocks, seed, rate) for blocks in (50, 60) for seed in (0, 1) for rate in (1.0, 2.0)]
    for i, (blocks, seed, rate) in enumerate(points):
        config = {"cache": {"blocks": blocks}, "seed": seed, "arrivals": {"rate": rate}}
        write_run(tmp_path / f"r{i}", 100, 1 + i, False, config, run="chat", seed=seed)
    ttft, tpot = one_kind(read_named([tmp_path], None), "curve")
    assert [line.name for line in ttft.series] == ["blocks 50", "blocks 60"]
    found = [run.figure("tpot", "p99") for run in read_sources([tmp_path]).runs]
    means = [(found[at] + found[at + 2]) / 2 for at in (0, 1, 4, 5)]
    assert [float(y) for line in tpot.series for y in line.y] == pytest.approx(means)


def test_a_sweep_keeps_its_runs_one_folder_deeper(tmp_path):
    for i in (1, 2):
        write_run(tmp_path / "points" / f"p{i}", 30, i, False, {"arrivals": {"rate": float(i)}})
    head = "run,clock,cache.blocks,seed,devices,hit_rate,hit_rate_optimum,hit_rate_infinite,folder,error"
    rows = [f"t,modelled,{b},{s},1,{h},0.9,0.9,points/p1," for b, s, h in ((9, 0, 0.2), (9, 1, 0.4), (99, 0, 0.5))]
    (tmp_path / "sweep.csv").write_text("\n".join([head, *rows]) + "\n")
    sources = read_named([tmp_path], None)
    assert [run.path.name for run in sources.runs] == ["p1", "p2"]
    (chart,) = one_kind(sources, "misses")
    np.testing.assert_allclose(next(line for line in chart.series if line.style == "joined").y, [70, 50])


def test_a_search_for_the_capacity_is_a_curve_too(tmp_path):
    point = {"load": 1.0, "met": True, "output_throughput": 10.0, "p99_ttft_ms": 20.0, "p99_tpot_ms": None}
    points = [point, {**point, "load": 2.0, "output_throughput": 18.0, "p99_ttft_ms": 400.0}]
    document = {"schema": 1, "run": "chat", "over": "rate", "slo": "ttft:200", "points": points}
    (tmp_path / "capacity.json").write_text(json.dumps(document))
    (chart,) = one_kind(read_named([tmp_path / "capacity.json"], None), "curve")
    assert chart.series[0].y.tolist() == [20.0, 400.0]
    assert [rule.at for rule in chart.rules] == [200.0]
    assert "does not say whether" in chart.note


def test_a_miss_ratio_curve_has_its_bounds(place):
    (chart,) = one_kind(read_named([place / "curve"], None), "misses")
    lines = {line.name: line for line in chart.series}
    assert list(filter(None, lines)) == ["lru", "fifo", "optimum", "infinite cache"]
    np.testing.assert_allclose(lines["lru"].y, [90, 50, 20])
    np.testing.assert_allclose(lines["optimum"].y, [70, 30, 20])
    assert lines["fifo"].x.tolist() == [100, 1000]
    assert chart.x.scale == "log"


def test_a_run_has_one_colour_and_one_name_everywhere(place):
    sources = read_named([place / "rates"], None)
    found: dict[str, set[int]] = {}
    for kind in KINDS:
        for chart in charts_of(sources, kind):
            lines = [(s.name, s.colour) for s in chart.series if s.colour < PHASE and not chart.run]
            for name, colour in [*lines, *([chart.run] if chart.run else [])]:
                if name.startswith("rate "):
                    found.setdefault(name, set()).add(colour)
    assert set(found) == {"rate 4", "rate 8", "rate 16"}
    assert [len(colours) for colours in found.values()] == [1, 1, 1]
    curve = one_kind(sources, "curve")[0].series[0]
    assert curve.dots == tuple(colour for (colour,) in found.values())


def test_no_name_is_that_of_a_folder(tmp_path):
    for i in range(3):  # differ in more than a label tells
        config = {"arrivals": {"rate": float(i + 1)}, "cache": {"blocks": 100 + i, "kind": "hash"}, "max_len": i}
        write_run(tmp_path / f"folder{i}", 30, config=config)
    labels = [run.label for run in read_named([tmp_path], None).runs]
    assert labels == ["rate 1", "rate 2", "rate 3"]
    again = read_named([write_run(tmp_path / "x", 9), write_run(tmp_path / "y", 9)], None)
    assert [run.label for run in again.runs] == ["small", "small #2"]


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([6.8, 7.3], 6.8, 7.3),
        ([1.0, 494.0], 1, 1000),
        ([8.9, 145.0], 5, 200),
        ([0.0, 0.0], 0, 1),
        ([5.0, 5.0], 4.97, 5.03),
        ([0.002, 900.0], 0.001, 1000),
        ([61.2, 97.0], 60, 100),
    ],
)
def test_ticks_enclose_the_data_and_the_axis_starts_at_it(values, low, high):
    found = axis("x", values)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-3)
    for most in range(2, 15):
        ticks = [value for value, _ in found.ticks(most)]
        assert ticks == sorted(ticks)
        assert (ticks[0], ticks[-1]) == pytest.approx((found.low, found.high))
        assert 2 <= len(ticks) <= most
    inner = [value for value, _ in found.scaled(0.137, "other").round_ticks(6)]
    assert all(found.low * 0.137 <= value <= found.high * 0.137 for value in inner)


def test_a_long_tail_does_not_make_a_wall(tmp_path):
    journal = many_rows(400)
    gaps = journal.itl_gap_ns.copy()
    gaps[0] = 10**10
    write_rows(tmp_path / "run", replace(journal, itl_gap_ns=gaps), many_requests(400), None, False)
    itl = next(c for c in one_kind(read_named([tmp_path / "run"], None), "cdf") if c.key == "cdf-itl")
    assert itl.x.high <= 20
    assert "the slowest took 10 s" in itl.note


def test_many_runs_are_chosen_and_the_chart_says_so(tmp_path):
    for i in range(MOST_LINES + 3):
        write_run(tmp_path / f"r{i}", 20, steps=False, config={"arrivals": {"rate": float(i + 1)}})
    chart = one_kind(read_named([tmp_path], None), "cdf")[0]
    assert len(chart.series) == MOST_LINES
    assert f"{MOST_LINES} of {MOST_LINES + 3} runs are drawn" in chart.note
    assert {chart.series[0].name, chart.series[-1].name} == {"rate 1", f"rate {MOST_LINES + 3}"}
    assert "1 of 9 runs are drawn" in one_kind(read_named([tmp_path], None), "timeline")[0].note


def test_every_chart_is_a_well_formed_picture_with_words_beside_it(place):
    names = ("base", "slow", "rates", "curve", "fidelity", "advice")
    sources = read_named([place / name for name in names], None)
    charts = [chart for kind in KINDS for chart in charts_of(sources, kind)]
    assert {chart.key.partition("-")[0] for chart in charts} == set(KINDS) - OF_SEVERAL
    for chart in charts:
        root = ET.fromstring(standalone([chart]))
        texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]
        assert texts == [chart.heading]
        assert next(root.iter("{http://www.w3.org/2000/svg}desc")).text == chart.said
        assert chart.table
        assert {len(row) for row in chart.table} == {len(chart.header)}
        assert not re.search(r"nan|inf[^i]", standalone([chart]).replace("infinite", ""))


def test_png_has_the_same_bytes_twice(place):
    sources = read_named([place / "base", place / "slow", place / "curve"], None)
    for kind in ("ratios", "occupancy"):
        chart = one_kind(sources, kind)[0]
        picture = to_png([chart])
        assert picture == to_png([chart])
        assert picture.startswith(b"\x89PNG")


def test_a_run_in_which_nothing_finished_still_has_a_page(tmp_path):
    write_rows(tmp_path / "none", rows_of_nobody(), many_requests(5), None, True, complete=False)
    sources = read_named([tmp_path / "none"], None)
    page = to_html(sources, "t")
    assert "Interrupted, so a partial result: small." in page
    assert 'id="cdf"' not in page
    assert not re.search(r"\bnan\b", page)


def rows_of_nobody():
    never = np.full(5, NEVER)
    ends = {
        "scheduled_ns": never,
        "first_token_ns": never,
        "finish_ns": never,
        "parts_ns": np.zeros((0, len(PARTS)), int),
    }
    none = np.zeros(0, np.int64)
    return many_rows(5, steps=False, status=np.full(5, PARTIAL), itl_gap_ns=none, itl_count=none, **ends)


def test_names_of_kinds_and_parts_are_one_list_each():
    assert tuple(KINDS) == WHAT
    assert {name.replace("tokenise", "tokenize") for name, _ in PHASES} == set(PARTS)


def test_ticks_are_few_round_and_inside():
    assert [text for _, text in Axis("t", "log", "ms", 10, 2000).ticks(4)] == ["10 ms", "100 ms", "2 s"]
    assert [text for _, text in Axis("t", "linear", "%", 0, 100).ticks()] == ["0%", "20%", "40%", "60%", "80%", "100%"]
    assert [text for _, text in Axis("p", "tail", "", 0, 0.995).ticks()] == ["p0", "p50", "p90", "p99"]
    assert axis("x", [3.0, 200.0]).scale == "log"
    assert axis("x", []).ticks()
    assert axis("x", [0.0]).high > 0
    assert (duration(0.02), duration(1500), duration(2.5), short(2_500_000)) == ("20 µs", "1.5 s", "2.5 ms", "2.5M")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda p: (p / "run.json").unlink(), "holds no run.json and no grid.csv"),
        (lambda p: (p / "requests.csv").unlink(), "no such file"),
        (lambda p: (p / "summary.csv").write_text("a,b\n1,2\n"), "not a table of kvbench: it has no column schema"),
        (lambda p: (p / "requests.csv").write_text(""), "has no column request_id"),
        (lambda p: _replace(p / "run.json", '"schema": 1', '"schema": 9'), "schema 9, this version reads 1"),
        (lambda p: _replace(p / "summary.csv", ",1,modelled", ",9,modelled"), "schema 9, this version reads 1"),
        (lambda p: _replace(p / "requests.csv", "ttft_ms", "first_ms"), "has no column ttft_ms"),
        (lambda p: _replace(p / "requests.csv", "\n0,", "\n0,0,0,"), "line 2 has not as many cells"),
        (lambda p: _replace(p / "steps.csv", "\n0.", "\nx."), "column start_ms: could not convert"),
        (lambda p: (p / "run.json").write_text("{"), "not valid JSON"),
    ],
)
def test_a_spoilt_folder_is_one_clear_line(tmp_path, spoil, said):
    folder = write_run(tmp_path / "run", 20)
    spoil(folder)
    with pytest.raises(UsageError, match=said) as error:
        read_sources([folder])
    assert "\n" not in str(error.value)


def _replace(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_other_files_are_refused(tmp_path, place):
    (tmp_path / "x.json").write_text('{"points": 3}')
    (tmp_path / "x.csv").write_text("a,b\n")
    (tmp_path / "x.txt").write_text("")
    (tmp_path / "empty").mkdir()
    for name, said in (
        ("x.json", "not the JSON of `kvbench capacity --json` or `kvbench advise"),
        ("x.csv", "no column run"),
        ("x.txt", "give a run's folder"),
        ("none", "no such file or folder"),
        ("empty", "holds no run.json"),
    ):
        with pytest.raises(UsageError, match=said):
            read_sources([tmp_path / name])
    with pytest.raises(UsageError, match="is not one of the runs"):
        read_named([place / "base"], place / "slow")
    shutil.copytree(place / "base", tmp_path / "old")
    (tmp_path / "old" / "steps.csv").unlink()
    with pytest.raises(UsageError, match="run with --steps"):
        one_kind(read_named([tmp_path / "old"], None), "batch")
