"""`kvbench verify`: what it prints, and its exit codes."""

from __future__ import annotations

import gzip
import json

import pytest

from kvbench.cli import call
from tests.recordings import CHOICE

NAMES = ("vllm_kvmgr_00", "sglang_radix_07_lru_p16", "sglang_policy_04_dfs-weight_p16")


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / f"{name}.jsonl").write_bytes(gzip.decompress((CHOICE / f"{name}.jsonl.gz").read_bytes()))
    return tmp_path


def spoil(path, line: int, old: str, new: str) -> None:
    lines = path.read_text().splitlines(keepends=True)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    path.write_text("".join(lines))


def test_streams_that_agree(folder, capsys):
    assert call(["verify", "golden", str(folder)]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)
    assert "3 streams: 3 agree, 0 differ, 0 unknown" in out
    assert max(map(len, out.splitlines())) <= 100


def test_a_difference_is_exit_code_1_and_shown_side_by_side(folder, capsys):
    spoil(folder / "vllm_kvmgr_00.jsonl", 30, '"free":', '"free":9')
    assert call(["verify", "golden", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "1 differ" in out
    detail = out[out.index("vllm_kvmgr_00, line 30, operation 28") :].splitlines()
    assert detail[1].split() == ["field", "recorded", "kvbench"]
    name, recorded, own = detail[2].split()
    assert (name, recorded) == ("free", "9" + own)


def test_an_unknown_component_is_exit_code_1_and_not_skipped(folder, capsys):
    spoil(folder / "vllm_kvmgr_00.jsonl", 1, "v1_kv_cache_manager", "v2_kv_cache_manager")
    assert call(["verify", "golden", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "vllm_kvmgr_00 was not replayed: component v2_kv_cache_manager is unknown" in out.replace("\n  ", " ")


def test_traces_beside_recordings_are_named_and_the_rest_is_compared(folder, capsys):
    (folder / "trace.jsonl").write_text('{"timestamp": 0, "input_length": 3, "output_length": 1}\n')
    assert call(["verify", "golden", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "3 streams: 3 agree" in out
    assert "left out, no recordings: 1 (trace.jsonl)" in out
    assert call(["verify", "golden", str(folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["no_recordings"] == ["trace.jsonl"]
    assert len(document["streams"]) == 3


@pytest.mark.parametrize("where", ["nowhere", "."])
def test_no_recordings_is_exit_code_2(tmp_path, capsys, where):
    assert call(["verify", "golden", str(tmp_path / where)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


def test_a_file_that_is_cut_off_is_exit_code_2_with_its_line(folder, capsys):
    path = folder / "vllm_kvmgr_00.jsonl"
    path.write_text(path.read_text()[:20000])
    assert call(["verify", "golden", str(folder)]) == 2
    err = capsys.readouterr().err
    assert f"{path}:" in err
    assert "cut off" in err
    assert err.count("\n") == 1


def test_verify_alone_shows_what_there_is(capsys):
    assert call(["verify"]) == 0
    assert "golden" in capsys.readouterr().out
