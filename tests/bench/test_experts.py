"""Runs with experts over devices: keys, what is printed and written, and what must hold between configurations."""

from __future__ import annotations

import csv
import json
from dataclasses import fields, replace

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.replay import replay
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.experts.mixture import Mixture
from kvbench.report.experts import StepRow, paid_back
from kvbench.report.table import WIDTH, run_table

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")

SMALL = ["num_prompts=5", "model=olmoe-1b-7b", "max_model_len=500", "lengths.prompt=40", "lengths.output=8"]
SMALL += ["arrivals.rate=400", "cache.blocks=200"]
SPREAD = ["dp=2", "ep=2"]
EPLB = ["eplb.mode=dynamic-sync", "eplb.redundant=8", "eplb.interval=8", "eplb.window=4"]


def configured(*changes):
    return configure("batch-offline", changes=[("test", change) for change in (*SMALL, *changes)])


@pytest.fixture(scope="module")
def balanced():
    return run(configured(*SPREAD, *EPLB))


def test_the_table_says_what_ranks_and_experts_did(balanced):
    table = run_table(balanced.record)
    assert max(map(len, table.splitlines())) <= WIDTH
    assert "64 in 72 slots on 2 devices; load zipf 0.8; EPLB dynamic-sync by vllm" in table
    for words in ("2 step together", "waits for the slowest", "in dispatch and combine", "balance", "experts moved"):
        assert words in table.replace("\n             ", " ")


def test_files_hold_every_step_decision_and_rank(tmp_path):
    arguments = [part for change in (*SMALL, *SPREAD, *EPLB) for part in ("--set", change)]
    assert call(["run", "batch-offline", "-q", "-o", str(tmp_path), *arguments]) == 0
    texts = ((tmp_path / f"{n}.csv").read_text() for n in ("experts", "eplb", "ranks"))
    steps, moves, ranks = (list(csv.DictReader(text.splitlines())) for text in texts)
    assert len(ranks) == 2
    together = sum(float(step["length_ms"]) for step in steps)
    spent = sum(float(rank["busy_ms"]) + float(rank["wait_ms"]) for rank in ranks)
    assert spent == pytest.approx(2 * together)
    for step in steps:
        loads = [int(step["device_0"]), int(step["device_1"])]
        assert sum(loads) == pytest.approx(2 * float(step["mean_tokens"]))
        assert 0 < float(step["balancedness"]) <= 1
    requests = list(csv.DictReader((tmp_path / "requests.csv").read_text().splitlines()))
    assert {row["rank"] for row in requests} == {"0", "1"}
    assert moves
    figures = json.loads((tmp_path / "run.json").read_text())["ranks"]
    assert figures["decisions"] == len(moves)
    assert len(figures["balancedness"]) == 2 * 16
    assert figures["choices"] == 16 * sum(int(s["device_0"]) + int(s["device_1"]) for s in steps) // 16
    saved = sum(float(step["saved_ms"]) for step in steps)
    assert figures["saved_ns"] == pytest.approx(1e6 * saved, abs=1)
    assert figures["paid_back_after_steps"] is None  # eight steps
    assert all(float(step["saved_ms"]) == 0 for step in steps if step["decision"] == "0")
    assert all(int(move["bytes"]) > 0 and int(move["layers"]) == 16 for move in moves)
    assert call(["plot", str(tmp_path), "--what", "experts", "-o", str(tmp_path / "e.svg")]) == 0
    assert call(["plot", str(tmp_path), "--what", "devices", "-o", str(tmp_path / "d.svg")]) == 0


def test_a_move_is_paid_back_when_it_stays_so():
    def step(number, saved, pause):
        return StepRow(number, 0, 100, pause, False, 1.0, 1.0, int(number > 1), saved)

    pauses = [0, 0, 50, 0, 0, 60, 0, 0]
    assert paid_back([step(i, 20 * (i > 1), pauses[i]) for i in range(8)]) == 5
    assert paid_back([step(i, 10 * (i > 1), pauses[i]) for i in range(8)]) is None
    assert paid_back([step(i, 60 * (i > 1), pauses[i]) for i in range(8)]) == 0
    assert paid_back([step(i, 0, 0) for i in range(2)]) is None


def test_redundant_experts_take_the_memory_of_blocks():
    changes = [*SPREAD, "cache.blocks=0"]
    without = build_system(configured(*changes).config)
    with_them = build_system(configured(*changes, "eplb.redundant=64").config)
    expert = 3 * 2048 * 1024 * 2
    taken = with_them.budget.weights_bytes - without.budget.weights_bytes
    assert taken == 32 * 16 * expert
    block = without.budget.block_bytes
    assert without.budget.num_blocks - with_them.budget.num_blocks == pytest.approx(taken / block, abs=1)


def test_experts_on_their_way_take_the_memory_of_a_layer():
    changes = [*SPREAD, "cache.blocks=0", "eplb.redundant=8"]
    static, moving = (build_system(configured(*changes, f"eplb.mode={m}").config) for m in ("static", "dynamic-async"))
    layer = 36 * 3 * 2048 * 1024 * 2  # half of 72 slots
    assert moving.budget.reserved_bytes - static.budget.reserved_bytes == layer
    assert static.budget.num_blocks - moving.budget.num_blocks == pytest.approx(
        layer / static.budget.block_bytes, abs=1
    )


def test_experts_are_spread_over_all_devices_or_none():
    with pytest.raises(UsageError, match="tp x dp = 2, or over none"):
        build_system(configured("dp=2", "ep=4").config)
    with pytest.raises(UsageError, match="has no experts"):
        build_system(configured("dp=2", "ep=2", "model=llama-3.1-8b").config)
    with pytest.raises(UsageError, match=r"eplb\.redundant = 8 places experts, which ep = 1"):
        build_system(configured("dp=2", "eplb.redundant=8").config)
    with pytest.raises(UsageError, match="do not divide among ep 2"):
        build_system(configured(*SPREAD, "eplb.redundant=7").config)
    with pytest.raises(UsageError, match="batching = static runs one"):
        build_system(configured(*SPREAD, "batching=static").config)


def test_instances_behind_turns_are_as_many_runs(tmp_path):
    """Each with experts of its own: the split table, run by itself with the instance's seed, gives the same rows."""
    both = run(configured(*SPREAD, *EPLB, "fleet.replicas=2"))
    ranks, arrivals = both.journal.columns, both.journal.arrival_ns
    assert set(zip(ranks["engine"].tolist(), ranks["rank"].tolist(), strict=True)) == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for instance in range(2):
        mine = np.arange(instance, 5, 2)
        own = run(
            configured(*SPREAD, *EPLB, f"experts.seed={instance}"), workload=(taken(both.requests, mine), None)
        ).journal
        assert np.array_equal(own.arrival_ns, arrivals[mine])
        for name in ("scheduled_ns", "first_token_ns", "finish_ns"):
            assert np.array_equal(getattr(own, name), getattr(both.journal, name)[mine]), name
    files = section_files(both)
    assert files["experts.csv"].startswith("engine,step,")
    rows = list(csv.DictReader(files["ranks.csv"].splitlines()))
    assert [(row["engine"], row["rank"]) for row in rows] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert "2 of each of 2 step together" in run_table(both.record)


def taken(requests, which):
    """Some of the requests of an open loop."""
    columns = {
        f.name: value[which]
        for f in fields(requests)
        if isinstance(value := getattr(requests, f.name), np.ndarray) and value.shape == (len(requests),)
    }
    offset = requests.segment_offset
    pieces = np.concatenate([np.arange(offset[i], offset[i + 1]) for i in which])
    names = ("segment_stream", "segment_start", "segment_length")
    columns |= {name: getattr(requests, name)[pieces] for name in names}
    columns["segment_offset"] = np.concatenate([[0], np.cumsum(np.diff(offset)[which])])
    return replace(requests, **columns)


def test_what_fleets_of_ranks_cannot_do_is_told():
    restart = "fleet.event=[{at_s=0.01,engine=0,kind='restart'}]"
    with pytest.raises(UsageError, match="an instance that restarts would keep the places"):
        run(configured(*SPREAD, *EPLB, "fleet.replicas=2", restart))
    with pytest.raises(UsageError, match="--cache-only knows no ranks"):
        replay(configured(*SPREAD, "fleet.replicas=2"))


def test_tensor_parallel_devices_of_one_engine_hold_experts_too():
    result = run(configured("tp=2", "ep=2"))
    table = run_table(result.record)
    assert "1 step together" in table
    assert "64 in 64 slots on 2 devices" in table


def test_the_same_run_again_is_the_same_and_another_seed_is_not(balanced):
    again = run(configured(*SPREAD, *EPLB))
    files, other = section_files(balanced), section_files(run(configured(*SPREAD, *EPLB, "experts.seed=9")))
    assert section_files(again) == files
    assert other["experts.csv"] != files["experts.csv"]


def section_files(result):
    return next(section.files for section in result.record.sections if section.name == "ranks")


def test_load_follows_the_tenants_of_the_requests_that_run(monkeypatch):
    seen = []
    step = Mixture.step

    def checked(self, index, now, tokens, terms, by_domain=None):
        seen.append(by_domain.sum(0).tolist())
        assert by_domain.sum(1).tolist() == tokens.sum(0).tolist()
        return step(self, index, now, tokens, terms, by_domain)

    monkeypatch.setattr(Mixture, "step", checked)
    for overlap in ("true", "false"):
        result = run(
            configured(*SPREAD, "experts.drift=tenant", "sharing.tenants=3", "num_prompts=12", f"overlap={overlap}")
        )
        assert "3 tenants with their own" in run_table(result.record).replace("\n             ", " ")
    totals = np.sum(seen, axis=0)
    assert np.all(totals > 0)
    with pytest.raises(UsageError, match="all requests are of one tenant; set sharing"):
        run(configured(*SPREAD, "experts.drift=tenant"))


def test_the_command_tells_where_placing_anew_pays(capsys):
    arguments = ["experts", "--model", "olmoe-1b-7b", "--dtype", "bf16", "--ep", "4", "--steps", "2", "-q"]
    arguments += ["--set", "max_model_len=1000", "--redundant", "0,8"]
    assert call([*arguments, "--skew", "0,1.2", "--tokens", "2,600", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(c["skew"], c["tokens"], c["redundant"]) for c in cases] == [
        (skew, tokens, redundant) for skew in (0.0, 1.2) for tokens in (2, 600) for redundant in (0, 8)
    ]
    assert not cases[0]["pays"]
    assert cases[-1]["saved_ns"] > cases[-2]["saved_ns"] > 0
    assert cases[-1]["even_after"] > cases[-1]["even_before"] + 0.1
    assert cases[-1]["blocks"] < 1.0
    assert call([*arguments, "--skew", "0", "--tokens", "2"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH
    assert call([*arguments, "--skew", "much"]) == 2
    assert "write numbers with commas" in capsys.readouterr().err
