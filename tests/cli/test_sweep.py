"""`kvbench sweep` from command line to files: parallel, resumed, interrupted, on a cluster."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.cli import call
from kvbench.report.grid import run_figures
from kvbench.sweep import task

SMALL = ["--num-prompts", "8", "--request-rate", "10", "--set", "lengths.prompt=60", "--set", "lengths.output=6"]
GRID = ["--grid", "block_tokens=8,16", "--grid", "cache.blocks=3000,4000"]
ALONE = ["--jobs", "1"]


def sweep(out: Path, *arguments: str) -> int:
    return call(["sweep", "chat", *SMALL, *arguments, "-o", str(out)])


@pytest.fixture
def runs(monkeypatch, fake_engine) -> list[int]:
    """Seeds of the points that really ran, over an engine that takes no time."""
    ran: list[int] = []
    real = task.run

    def counted(configured, *more):
        ran.append(configured.config["seed"])
        return real(configured, *more)

    monkeypatch.setattr(task, "run", counted)
    return ran


def test_one_tidy_file_a_folder_for_each_point_and_nothing_runs_twice(runs, tmp_path, capsys):
    assert sweep(tmp_path, *GRID, "--seeds", "2", *ALONE) == 0
    printed, err = capsys.readouterr()
    assert printed.split()[:3] == ["block_tokens", "blocks", "tokens/s/device"]
    assert len(printed.split("\n\n")[0].splitlines()) == 2 + 4
    assert err == f"kvbench: wrote sweep.csv and a folder for each point to {tmp_path}\n"
    assert sorted(runs) == [0] * 4 + [1] * 4
    first = (tmp_path / "sweep.csv").read_bytes()
    frame = pd.read_csv(tmp_path / "sweep.csv")
    assert frame[["block_tokens", "cache.blocks", "seed"]].values.tolist() == [
        [tokens, blocks, seed] for tokens in (8, 16) for blocks in (3000, 4000) for seed in (0, 1)
    ]
    for folder in frame.folder:
        assert {p.name for p in (tmp_path / folder).iterdir()} == {"requests.csv", "summary.csv", "itl.csv", "run.json"}
    runs.clear()
    assert sweep(tmp_path, *GRID, "--seeds", "2", *ALONE) == 0
    assert runs == []
    assert "8 of 8 points are there already" in capsys.readouterr().err
    assert (tmp_path / "sweep.csv").read_bytes() == first


def test_only_what_is_new_or_changed_is_run(runs, tmp_path, monkeypatch):
    assert sweep(tmp_path, *GRID, *ALONE) == 0
    runs.clear()
    assert sweep(tmp_path, "--grid", "block_tokens=8,16,32", "--grid", "cache.blocks=4000", *ALONE) == 0
    assert len(runs) == 1
    runs.clear()
    assert sweep(tmp_path, *GRID, "--num-prompts", "9", *ALONE) == 0
    assert len(runs) == 4
    runs.clear()
    assert sweep(tmp_path, *GRID, *ALONE, "--steps") == 0
    assert len(runs) == 4
    runs.clear()
    monkeypatch.setattr("kvbench.sweep.digest.code_digest", lambda: "other code")
    assert sweep(tmp_path, *GRID, *ALONE) == 0
    assert len(runs) == 4


def test_a_file_that_a_key_names_is_part_of_what_ran(runs, tmp_path):
    trace = tmp_path / "t.jsonl"
    rows = [{"timestamp": 1000 * i, "input_length": 600, "output_length": 3, "hash_ids": [0, i + 1]} for i in range(4)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["sweep", "--trace", str(trace), "--grid", "cache.blocks=3000,4000", *ALONE, "-o", str(tmp_path / "s")]
    assert call(command) == call(command) == 0
    assert len(runs) == 2
    trace.write_text(trace.read_text().replace("600", "601"))
    assert call(command) == 0
    assert len(runs) == 4
    figures = pd.read_csv(tmp_path / "s" / "sweep.csv")
    assert set(figures.prompt_tokens) == {4 * 601}


def test_rows_are_those_of_single_runs_and_fronts_are_marked(tmp_path, capsys):
    assert sweep(tmp_path, "--grid", "cache.blocks=1,62,3000", "--seeds", "2", *ALONE, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    changes = ["num_prompts=8", "arrivals.rate=10", "lengths.prompt=60", "lengths.output=6", "cache.blocks=3000"]
    alone = run(configure("chat", changes=[("code", text) for text in [*changes, "seed=1"]]))
    last = document["points"][-1]
    expected = run_figures(alone.record)
    assert {name: last[name] for name in expected} == expected
    assert last["throughput_per_device"] == expected["output_throughput"]
    frame = pd.read_csv(tmp_path / "sweep.csv")
    assert frame.error.str.contains("exceed the cache").tolist()[:2] == [True, True]
    short = frame["cache.blocks"] == 62
    assert (frame.finished[short] < frame.sequences[short]).any()  # refused the long ones: on no front
    assert frame.pareto_tpot.tolist() == frame.pareto_ttft.tolist() == [False] * 4 + [True] * 2


def test_ctrl_c_leaves_the_points_that_ended(runs, tmp_path, capsys, monkeypatch):
    counted = task.run

    def stopped_at_the_third(*arguments):
        if len(runs) == 2:
            raise KeyboardInterrupt
        return counted(*arguments)

    monkeypatch.setattr(task, "run", stopped_at_the_third)
    assert sweep(tmp_path, *GRID, *ALONE) == 130
    assert "stopped: 2 of 4 points; the same command goes on from there" in capsys.readouterr().err
    frame = pd.read_csv(tmp_path / "sweep.csv")
    assert len(frame) == 2
    assert not frame[["pareto_tpot", "pareto_ttft"]].any(axis=None)  # what is missing might be in front
    monkeypatch.setattr(task, "run", counted)
    assert sweep(tmp_path, *GRID, *ALONE) == 0
    assert len(runs) == 4
    assert "2 of 4 points are there already" in capsys.readouterr().err


def test_an_interrupted_sweep_averages_no_unequal_seeds(runs, tmp_path, capsys, monkeypatch):
    """Three of four runs: the second point has one seed of two, and its mean would be beside means over both."""
    counted = task.run
    monkeypatch.setattr(task, "run", lambda *more: counted(*more) if len(runs) < 3 else _stop())
    assert sweep(tmp_path, *GRID[:2], "--seeds", "2", *ALONE, "-q") == 130
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()[2:4]]
    whole, part = sorted(rows, key=lambda cells: "of" in cells)
    assert whole[-1] == "2"
    assert "-" not in whole
    assert part[1:] == ["-", "-", "-", "-", "1", "of", "2"]
    assert "interrupted: 3 of 4 runs" in out


def _stop():
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["summary.csv", "requests.csv"])
def test_a_table_that_was_cut_is_run_again(runs, tmp_path, name):
    """Also where whole rows are gone, which the file itself does not show."""
    assert sweep(tmp_path, *GRID, *ALONE) == 0
    path = next(tmp_path.glob(f"points/*/{name}"))
    whole = path.read_text()
    path.write_text("".join(whole.splitlines(keepends=True)[:-2]))
    runs.clear()
    assert sweep(tmp_path, *GRID, *ALONE) == 0
    assert len(runs) == 1
    assert path.read_text() == whole


def test_long_values_of_points_are_shown_whole(runs, tmp_path, capsys):
    policy = tmp_path / "a-policy-with-quite-a-long-name.py"
    policy.write_text("def a_function_with_a_long_name(record, now):\n    return now\n")
    value = f"{policy}:a_function_with_a_long_name"
    sweep(tmp_path / "s", "--grid", f"cache.eviction=lru,{value}", "--preset", "sglang", *ALONE, "-q")
    out = capsys.readouterr().out
    cells = [line[:24].strip() for line in out.splitlines()]
    assert value in "".join(cells)
    assert "..." not in out


def test_a_run_cut_short_is_no_point(fake_engine, tmp_path):
    fake_engine.interrupt_after = 3
    assert sweep(tmp_path, *GRID, *ALONE) == 130
    assert not list(tmp_path.glob("points/*"))


def test_a_fault_of_kvbench_at_one_point_costs_no_other(runs, tmp_path, capsys, monkeypatch):
    counted = task.run

    def fails_once(*arguments):
        found = counted(*arguments)
        if len(runs) == 2:
            raise IndexError("out of bounds")
        return found

    monkeypatch.setattr(task, "run", fails_once)
    assert sweep(tmp_path, *GRID, *ALONE) == 1
    assert "unexpected IndexError: out of bounds" in capsys.readouterr().err
    assert pd.read_csv(tmp_path / "sweep.csv").error.notna().sum() == 1


def test_a_worker_that_dies_loses_no_finished_point(tmp_path, capsys):
    """Two processes; the third point kills the one that runs it. The last run ends what is left."""
    policy = tmp_path / "policy.py"
    kills = f"import os\nif os.getpid() != {os.getpid()}:\n    os.kill(os.getpid(), 9)\n"
    lives = "def late(nodes, node, now):\n    return 0\n"
    policy.write_text(kills + lives)
    grid = ["--grid", f"cache.eviction=lru,fifo,{policy}:late", "--preset", "sglang"]
    assert sweep(tmp_path / "s", *grid, "--jobs", "2") == 1
    err = capsys.readouterr().err
    assert "a worker died" in err
    assert "the same command goes on from there" in err
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("s/points/*/run.json")}
    assert kept
    policy.write_text(lives)
    assert sweep(tmp_path / "s", *grid, *ALONE) == 0
    assert f"{len(kept)} of 3 points are there already" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    frame = pd.read_csv(tmp_path / "s" / "sweep.csv")
    assert frame.error.isna().all()
    assert len(frame) == 3


def test_a_point_that_kills_its_workers_is_given_up(runs, tmp_path):
    """And a task that a cluster runs again, because its answer was lost, finds what it wrote."""
    point = task.Task(0, configure("chat", changes=[("code", "num_prompts=8")]), tmp_path / "points" / "a", "digest")
    marks = task.attempts_file(point.folder)
    marks.parent.mkdir()
    marks.write_bytes(b"..")  # two processes that did not come back
    assert not task.run_task(point).error
    assert not marks.exists()
    assert task.run_task(point).figures == task.finished(point.folder, "digest", steps=False)
    assert len(runs) == 1
    other = replace(point, folder=tmp_path / "points" / "b")
    task.attempts_file(other.folder).write_bytes(b"...")
    found = task.run_task(other)
    assert "3 workers died while they ran it" in found.error
    assert not found.expected
    assert not other.folder.exists()


@pytest.mark.filterwarnings("default")  # those of distributed are not ours
def test_a_dask_cluster_gives_the_same(tmp_path, capsys):
    distributed = pytest.importorskip("distributed", reason="needs the extra `dask`")
    assert sweep(tmp_path / "here", *GRID, *ALONE) == 0
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path), silence_logs=50
    ) as cluster:
        address = ["--backend", "dask", "--address", cluster.scheduler_address]
        assert sweep(tmp_path / "there", *GRID, *address) == 0
        assert (tmp_path / "there" / "sweep.csv").read_bytes() == (tmp_path / "here" / "sweep.csv").read_bytes()
        assert sweep(tmp_path / "there", *GRID, *address) == 0
    assert "4 of 4 points are there already" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_ray_cluster_gives_the_same(tmp_path):
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    assert sweep(tmp_path / "here", *GRID, *ALONE) == 0
    try:
        assert sweep(tmp_path / "there", *GRID, "--backend", "ray", "--jobs", "2") == 0
    finally:
        ray.shutdown()
    assert (tmp_path / "there" / "sweep.csv").read_bytes() == (tmp_path / "here" / "sweep.csv").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "seed=1,2", "--seeds", "2"], "both name seeds"),
        (["--grid", "cache.blcks=1,2"], "unknown key cache.blcks; the nearest is cache.blocks"),
        (["--grid", "cache.blocks=1,2", *ALONE], "no point of the sweep could run"),
        (["--grid", "seed=1,2", "--address", "tcp://x:1"], "add --backend dask"),
        (["--grid", "seed=1,2", "--backend", "dask"], "--address tcp://host:8786"),
        (["--grid", "clock=modelled,measured", "--jobs", "2"], "runs one after another on this machine"),
        ([], "Missing option '--grid'"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(fake_engine, tmp_path, arguments, message, capsys):
    assert sweep(tmp_path, *arguments, "-q") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert message in err


def test_a_large_sweep_shows_its_fronts(fake_engine, tmp_path, capsys):
    assert sweep(tmp_path, "--grid", "cache.blocks=3000..3041+1", *ALONE, "-q") == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    frame = pd.read_csv(tmp_path / "sweep.csv")
    assert len(frame) == 42
    if not frame.pareto_tpot.all():
        assert "points are on none and only in sweep.csv" in " ".join(printed.split())


def test_designs_of_the_first_grid_are_drawn_beside_each_other(runs, tmp_path, capsys):
    picture = tmp_path / "where.svg"
    grid = ["--grid", "cache.blocks:block_tokens=3000:8,4000:16", "--grid", "arrivals.rate=5,10", *ALONE]
    assert sweep(tmp_path / "out", *grid, "--plot", str(picture)) != 0
    assert "promise something" in capsys.readouterr().err
    assert sweep(tmp_path / "out", *grid, "--plot", str(picture), "--set", "slo.ttft=2000") == 0
    assert "goodput/s" in capsys.readouterr().out
    text = picture.read_text()
    assert all(name in text for name in ("3000:8", "4000:16", "rate 5", "rate 10"))
    assert text.count("<circle") == 4
