"""Scripts and format of recordings: kvbench's own code is recorded, and the plain references have to agree with it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from kvbench.cli import call
from kvbench.core.jit import PLAIN
from kvbench.verify.golden import verify_files
from kvbench.verify.record.adapting import Open, merged
from kvbench.verify.record.adapting import call as call_known
from kvbench.verify.record.recorder import SCRIPTS, record
from kvbench.verify.record.scripts import MOST_STEPS
from kvbench.verify.recording import find_recordings

from ..recordings import read_recording
from ..reference import test_sglang_golden, test_vllm_golden

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")

STREAMS, OPERATIONS = 4, 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded")
    for engine in SCRIPTS:
        record(engine, path, 7, STREAMS, OPERATIONS, rehearse=True)
    return path


def test_verify_golden_accepts_them(folder):
    verdicts = verify_files(find_recordings(folder)[0])
    assert len(verdicts) == sum(map(len, SCRIPTS.values())) * STREAMS
    assert [(v.name, v.differences, v.unknown) for v in verdicts if not v.passed] == []


@pytest.mark.parametrize("number", range(STREAMS))
def test_the_reference_scheduler_agrees(folder, number):
    for name in (f"vllm_sched_{number:02d}_*", f"vllm_sched_cadence_{number:02d}_*"):
        (path,) = folder.glob(name)
        test_vllm_golden.SchedulerReplay(path).run()


@pytest.mark.parametrize("number", range(STREAMS))
def test_the_reference_tables_agree(folder, number):
    test_vllm_golden.TablesReplay(folder / f"vllm_kvmgr_{number:02d}.jsonl").run()


@pytest.mark.parametrize("number", range(STREAMS))
def test_the_reference_tree_agrees(folder, number):
    (path,) = folder.glob(f"sglang_radix_{number:02d}_*")
    test_sglang_golden.test_radix_stream(path)


def test_the_scripts_reach_what_matters(folder):
    """Else the agreement of the tests above would say little."""
    summaries = {path.name: read_recording(path)[2] for path in folder.iterdir()}
    managers = [s["summary"] for name, s in summaries.items() if name.startswith("vllm_kvmgr")]
    assert all(sum(s[what] for s in managers) > 5 for what in ("evict", "hit", "fail", "full"))
    schedulers = [s["totals"] for name, s in summaries.items() if name.startswith("vllm_sched")]
    assert all(sum(s[what] for s in schedulers) > 5 for what in ("preempt", "evict", "hit"))
    trees = [s["summary"] for name, s in summaries.items() if name.startswith("sglang_radix")]
    assert all(min(s[what] for s in trees) > 5 for what in ("match_hit", "evicted", "locks"))
    rows = [row for path in folder.glob("vllm_*") for row in read_recording(path)[1]]
    seen = Counter(row.get("op", "step") for row in rows)
    assert min(seen[op] for op in "new get_computed allocate append free preempt reset_prefix_cache".split()) > 3
    reasons = {r[1] for row in rows for r in row.get("out", {}).get("finished", ())}
    assert reasons == {"stop", "length"}
    assert any("abort" in row for row in rows)


def test_a_script_is_its_seed(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        record("sglang", tmp_path / name, seed, 1, 100, rehearse=True)
    files = {p.parent.name: p.read_bytes() for p in tmp_path.rglob("*_00_*")}
    assert files["a"] == files["b"] != files["c"]


def test_rehearsed_files_say_so(folder):
    headers = [read_recording(path)[0] for path in folder.iterdir()]
    assert all("not from the engine" in header["notes"] for header in headers)


def test_schedulers_end(folder):
    for path in folder.glob("vllm_sched_*"):
        header, rows, last = read_recording(path)
        assert len(rows) < MOST_STEPS
        assert all(r["finish"] is not None for r in last["summary"])
        assert len(last["summary"]) == len(header["requests"])


def test_a_wrong_value_is_noticed(folder, tmp_path):
    """The recordings are sharp: a changed count does not pass."""
    path = next(folder.glob("vllm_kvmgr_00*"))
    lines = path.read_text().splitlines()
    row = json.loads(lines[20])
    row["out"]["free"] += 1
    lines[20] = json.dumps(row)
    (tmp_path / path.name).write_text("\n".join(lines))
    (verdict,) = verify_files(find_recordings(tmp_path)[0])
    assert [d.field for d in verdict.differences] == ["free"]


# ---------------------------------------------------------------- the command


@pytest.mark.parametrize("engine", SCRIPTS)
def test_an_engine_that_is_not_there(engine, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, engine, None)
    assert call(["record", "--engine", engine, "-o", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"--engine {engine}: {engine} cannot be imported here" in captured.err
    assert "--rehearse" in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_command_writes_and_names_the_next_one(tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    arguments = ["--streams", "1", "--operations", "60", "--rehearse", "--seed", "5"]
    assert call(["record", "--engine", "vllm", "-o", str(out), *arguments]) == 0
    assert f"kvbench verify golden {out}" in capsys.readouterr().out
    assert len(list(out.iterdir())) == 3
    assert call(["verify", "golden", str(out), "-q"]) == 0


def test_an_unknown_engine_is_exit_code_2(tmp_path, capsys):
    assert call(["record", "--engine", "trt", "-o", str(tmp_path)]) == 2
    assert "'vllm', 'sglang'" in capsys.readouterr().err


# ---------------------------------------------------------------- what adapters use


def test_a_call_leaves_out_what_a_version_does_not_know():
    assert call_known(lambda a, b=2: (a, b), a=1, c=3) == (1, 2)
    assert call_known(lambda **named: named, a=1, c=3) == {"a": 1, "c": 3}


def test_an_open_object_is_none_where_nothing_was_given():
    thing = Open(a=1)
    assert (thing.a, thing.b) == (1, None)
    assert not hasattr(thing, "__len__")


def test_ranges():
    assert merged([3, 4, 5, 9, 10, 2]) == [[3, 3], [9, 2], [2, 1]]
