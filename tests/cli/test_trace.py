"""`kvbench trace`: what is printed, what is written, and that nothing is half-written."""

from __future__ import annotations

import gzip
import json

import pytest

from kvbench.cli import call
from kvbench.workload.options import TraceOptions
from kvbench.workload.trace import load_trace

from ..workload.examples import EXAMPLES, example, weka
from .test_show import modules_after


@pytest.fixture
def trace(tmp_path):
    return example(tmp_path, "mooncake")


def test_info_fits_the_width_and_names_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "x.csv"
    path.write_bytes(EXAMPLES["burstgpt"] + b"200,GPT-4,-1,5,4,API log\n")
    assert call(["trace", "info", str(path), "-q"]) == 0
    out = capsys.readouterr().out
    assert "burstgpt; sha256" in out
    assert "1 bad rows left out" in out
    assert "whole blocks" in out
    assert max(map(len, out.splitlines())) <= 100


def test_info_of_several_as_json(tmp_path, trace, capsys):
    session = tmp_path / "s.json"
    session.write_text(json.dumps(weka()))
    assert call(["trace", "info", str(trace), str(session), "--json", "-q"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["format"], second["format"]) == ("mooncake", "weka")
    assert first["hit_rates"][-1]["block_tokens"] == 1024


def test_info_takes_the_keys_of_a_trace(trace, capsys):
    assert call(["trace", "info", str(trace), "--json", "-q", "--num-prompts", "1", "--set", "trace.time_scale=2"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["requests"] == 1
    assert call(["trace", "info", str(trace), "--set", "trace.colour=2"]) == 2
    assert "trace.colour" in capsys.readouterr().err


@pytest.mark.parametrize("packed", [False, True])
def test_convert_and_back(tmp_path, trace, capsys, packed):
    own = tmp_path / ("own.jsonl.gz" if packed else "own.jsonl")
    back = tmp_path / "back.jsonl"
    assert call(["trace", "convert", str(trace), "-o", str(own)]) == 0
    assert (own.read_bytes()[:2] == b"\x1f\x8b") == packed
    assert call(["trace", "convert", str(own), "-o", str(back), "--to", "mooncake"]) == 0
    assert "lost" not in capsys.readouterr().err
    found = [load_trace(path)[0].fingerprint() for path in (trace, own, back)]
    assert len(set(found)) == 1
    if packed:
        first = own.read_bytes()
        call(["trace", "convert", str(trace), "-o", str(own)])
        assert own.read_bytes() == first
        assert gzip.decompress(first).startswith(b'{"kvbench_requests": 1')


def test_convert_names_what_is_lost(tmp_path, capsys):
    source, out = example(tmp_path, "weka"), tmp_path / "out.jsonl"
    assert call(["trace", "convert", str(source), "-o", str(out), "--to", "mooncake"]) == 0
    said = capsys.readouterr().err
    assert "lost: that some requests wait for one that is not the one before in their session" in said
    assert "read it with trace.block_tokens=4" in said
    assert len(load_trace(out, TraceOptions(block_tokens=4))[0]) == 5


def test_a_wrong_trace_leaves_no_file(tmp_path, capsys):
    path, out = tmp_path / "x", tmp_path / "out"
    path.write_bytes(EXAMPLES["mooncake"] + b"{")
    assert call(["trace", "convert", str(path), "-o", str(out)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:3: is not JSON" in err
    assert err.count("\n") == 1
    assert not out.exists()
    assert call(["trace", "convert", str(path), "-o", str(out), "--skip-bad-rows"]) == 0
    assert len(load_trace(out)[0]) == 2


def test_places_that_cannot_be_written(tmp_path, trace, capsys):
    for where, said in ((tmp_path, "is a folder"), (tmp_path / "no" / "x", "its folder does not exist")):
        assert call(["trace", "convert", str(trace), "-o", str(where)]) == 2
        assert said in capsys.readouterr().err


def test_fit_writes_a_workload_that_runs(tmp_path, capsys):
    path, out = tmp_path / "x.csv", tmp_path / "fitted.toml"
    rows = [f"{100_000 + 7 * i},GPT-4,{100 + i % 9},{5 + i % 3},0,API log" for i in range(40)]
    path.write_text("\n".join(("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", *rows)))
    assert call(["trace", "fit", str(path), "-o", str(out), "-q"]) == 0
    shown = capsys.readouterr().out
    assert "gaps of arrivals" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert out.read_text().startswith("# Fitted to x.csv (")
    assert call(["run", str(out), "--cache-only", "--json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 40


def test_help_is_quick():
    assert not {"numpy", "numba", "pandas", "tokenizers"} & modules_after(["trace", "--help"])
