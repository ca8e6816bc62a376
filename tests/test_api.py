"""The Python face: `kvbench.run`, `kvbench.load`, Parquet, and the notebook of the documentation."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

import kvbench
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.report.pictures.folders import read_folder

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["--num-prompts", "20", "--request-rate", "10", "--set", "cache.blocks=5000"]
KEYS = {"cache.blocks": 5000}
TABLES = ("requests", "steps", "summary")


def run_small(**more) -> kvbench.report.frames.RunFrames:
    return kvbench.run("chat", num_prompts=20, request_rate=10, set=KEYS, **more)


def test_a_run_from_python_is_the_run_of_the_command_line(fake_engine, tmp_path):
    assert call(["run", "chat", *SMALL, "-q", "--steps", "-o", str(tmp_path)]) == 0
    loaded, ran = kvbench.load(tmp_path), run_small(steps=True)
    for table in TABLES:
        assert_frame_equal(getattr(loaded, table), getattr(ran, table))
        assert_frame_equal(getattr(loaded, table), pd.read_csv(tmp_path / f"{table}.csv"))
    assert loaded.config == json.loads((tmp_path / "run.json").read_text())["config"]
    assert loaded.config["cache"]["blocks"] == ran.config["cache"]["blocks"] == 5000
    assert loaded.document["fingerprint"] == ran.document["fingerprint"]
    assert repr(ran) == f"<run chat, workload {ran.document['fingerprint'][:16]}>"


def test_values_of_any_kind_and_a_trace(fake_engine, tmp_path):
    trace = tmp_path / "t.jsonl"
    row = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]}
    trace.write_text(json.dumps(row) + "\n")
    keys = {"cache.blocks": np.int64(700), "overlap": True, "cache.eviction": "lru", "costs.step_overhead_us": 2.5}
    run = kvbench.run(trace=trace, preset="sglang", request_rate="inf", set=keys)
    assert run.requests.prompt_tokens.tolist() == [600]
    config = run.config
    assert (config["cache"]["blocks"], config["overlap"], config["costs"]["step_overhead_us"]) == (700, True, 2.5)
    lengths = {"distribution": "uniform", "min": 3, "max": 4}
    drawn = kvbench.run("chat", num_prompts=20, set={"lengths.output": lengths}).requests
    assert set(drawn.output_tokens) == {3, 4}


def test_parquet_gives_the_same_frames(fake_engine, tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    command = ["run", "chat", *SMALL, "-q", "--steps", "-o"]
    assert call([*command, str(tmp_path / "csv")]) == 0
    assert call([*command, str(tmp_path / "pq"), "--format", "parquet"]) == 0
    names = {p.name for p in (tmp_path / "pq").iterdir()}
    assert names == {"requests.parquet", "steps.parquet", "summary.csv", "itl.csv", "run.json"}
    for table in TABLES:
        assert_frame_equal(
            getattr(kvbench.load(tmp_path / "csv"), table), getattr(kvbench.load(tmp_path / "pq"), table)
        )
    assert_frame_equal(pd.read_parquet(tmp_path / "pq" / "requests.parquet"), kvbench.load(tmp_path / "csv").requests)
    from_csv, from_parquet = (read_folder(tmp_path / name) for name in ("csv", "pq"))
    assert from_csv.status.tolist() == from_parquet.status.tolist()
    for name in ("requests", "steps"):  # as `kvbench report` and `kvbench plot` read them
        first, second = getattr(from_csv, name), getattr(from_parquet, name)
        assert list(first) == list(second)
        assert all(np.array_equal(first[key], second[key], equal_nan=True) for key in first)


def test_tables_of_an_earlier_run_are_not_read_as_those_of_this_one(fake_engine, tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra `parquet`")
    command = ["run", "chat", *SMALL, "-q", "-o", str(tmp_path)]
    assert call([*command, "--steps", "--format", "parquet"]) == 0
    assert call([*command, "--num-prompts", "10"]) == 0
    assert len(kvbench.load(tmp_path).requests) == 10
    with pytest.raises(UsageError, match=r"holds no steps.csv; record steps with --steps"):
        _ = kvbench.load(tmp_path).steps


def test_parquet_without_pyarrow_is_said_before_anything_runs(fake_engine, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert call(["run", "chat", *SMALL, "-o", str(tmp_path / "x"), "--format", "parquet"]) == 2
    assert "pip install 'kvbench[parquet]'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_what_is_wrong_is_a_usage_error(fake_engine, tmp_path):
    with pytest.raises(UsageError, match=r"unknown key cache\.blcks; the nearest is cache\.blocks"):
        kvbench.run("chat", set={"cache.blcks": 1})
    with pytest.raises(UsageError, match="no option presset; the nearest is preset"):
        kvbench.run("chat", presset="vllm")
    with pytest.raises(UsageError, match=r"run\.json: no such file"):
        kvbench.load(tmp_path)
    with pytest.raises(UsageError, match="steps=True"):
        _ = run_small().steps


def test_an_interrupted_run_is_no_result(fake_engine):
    fake_engine.interrupt_after = 3
    with pytest.raises(KeyboardInterrupt):
        run_small()


def test_import_loads_nothing_heavy():
    code = "import sys, kvbench; kvbench.load; kvbench.run; print(*{'numpy', 'pandas', 'numba'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == ""


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="needs a checkout")
def test_the_notebook_runs():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "notebook.md").read_text(), re.M | re.S)
    assert len(blocks) > 4
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/notebook.md", "exec"), names)
    assert len(names["points"]) == 2
