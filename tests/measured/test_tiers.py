"""Tiers on the measured clock, on a model whose every token depends on all bytes that it attends to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import KvbenchError
from kvbench.measured.copies import Copies
from kvbench.measured.page_files import PageFiles
from kvbench.measured.run import MeasuredRun
from kvbench.memory.operations import LOAD, OP_KIND, OP_NUMBER
from kvbench.offline.warm import prepared
from kvbench.tiers.copies import EVICTED
from kvbench.tiers.rules import LinkRules, StoreRules, TierRules
from kvbench.tiers.state import ARRIVED_BLOCKS

from ..engine.compare import small_tables
from ..engine.digest_model import DigestModel
from ..engine.test_against_reference import LONG, PHASES, SYSTEMS
from ..engine.test_clients import plain
from ..engine.test_measured import JIT, check_tokens
from ..engine.test_runs import SGLANG, VLLM
from ..engine.test_tiers import revisits, stores, with_memory
from ..engine.workloads import request_table
from .clock import set_clock

DOCUMENTS = (0, 1, 2, 3, 0, 2, 4, 1, 3, 0, 4, 2)
STORE = StoreRules(150, block_bytes=32, min_prefetch_tokens=8, stop="wait_complete", batch_blocks=7)


def visits() -> list:
    """Documents that come back, each alone."""
    return [
        replace(plain(i, arrival_ns=i * 10**12, prompt=70 + 9 * d), prompt=[(50 + d, 0, 70 + 9 * d)])
        for i, d in enumerate(DOCUMENTS)
    ]


def run_of(system, rules: TierRules, folder: Path | None = None) -> MeasuredRun:
    rules = replace(rules, block_bytes=32, layers=2)
    kept = replace(system.cache, num_blocks=40)
    system = replace(system, cache=kept, tiers=rules, fast=False, check=True)
    device = DigestModel(40, system.block_tokens)
    return prepared(MeasuredRun(request_table(visits()), system, small_tables(), device, folder=folder))


HOST = TierRules(60, closed=False, load="whole")


@pytest.mark.parametrize("load", ["whole", "layerwise"])
@pytest.mark.parametrize("system", [VLLM, SGLANG], ids=["vllm", "sglang"])
def test_files_give_back_what_was_computed(system, load):
    run = run_of(system, replace(HOST, load=load, store=STORE))
    run.run()
    check_tokens(run)
    tiers = run.engine.tiers
    assert run.counters().evicted_blocks > 20
    assert tiers.host.counters[EVICTED] > 20
    assert tiers.counts[ARRIVED_BLOCKS] > 10
    assert run.moves.moved_bytes["load"] >= run.moves.moved_bytes["prefetch"] > 0
    assert run.journal().columns["cached_storage_tokens"].sum() > 100


def test_a_copy_takes_the_time_that_it_took(monkeypatch):
    """What is said to be measured is when operations end: 7 ms each, one after the other on their link."""
    monkeypatch.setattr(Copies, "_timed", lambda self, move: move() or 7_000_000)
    ends = []
    end = Copies.end

    def note(self, at):
        row = self._operations.rows[at]
        ends.append((int(row[OP_KIND]), int(row[OP_NUMBER]), run.world.links.next_ns))
        end(self, at)

    monkeypatch.setattr(Copies, "end", note)
    run = run_of(VLLM, HOST)
    run.run()
    check_tokens(run)
    loads = sum(kind == LOAD for kind, *_ in ends)
    waited = run.journal().columns["fetch_wait_ns"]
    assert loads > 0
    assert (waited > 0).sum() == loads
    assert waited.sum() >= 7_000_000 * loads
    assert (run.journal().parts_ns.sum(axis=1) == run.journal().finish_ns - run.journal().arrival_ns).all()
    host = run.counters().tiers
    assert host.busy_up_ns == 7_000_000 * loads


def test_a_layerwise_load_is_waited_for_in_the_step(monkeypatch):
    """Two layers: the load of the first is exposed, unless computing takes longer than what is left."""
    monkeypatch.setattr(Copies, "_timed", lambda self, move: move() or 50_000_000)
    run = run_of(SGLANG, replace(HOST, load="layerwise"))
    run.run()
    check_tokens(run)
    waited = run.journal().columns["fetch_wait_ns"]
    assert ((waited == 0) | (waited > 10_000_000)).all()
    assert (waited > 0).any()


@pytest.mark.parametrize("damage", ["byte", "short", "gone", "other"])
def test_a_broken_page_is_a_miss_told_once(tmp_path, monkeypatch, damage):
    """Every third page is damaged as it is written: what is asked for is computed instead."""
    write, written = PageFiles.write, []

    def damaged(self, slot, content, page):
        write(self, slot, content, page)
        written.append(slot)
        if len(written) % 3:
            return
        path = self.path(slot)
        raw = bytearray(path.read_bytes())
        if damage == "gone":
            path.unlink()
        elif damage == "other":
            path.write_bytes(bytes(raw[:8]) + b"another!" + bytes(raw[16:]))
        elif damage == "short":
            path.write_bytes(bytes(raw[:-1]))
        else:
            raw[-1] ^= 1
            path.write_bytes(bytes(raw))

    monkeypatch.setattr(PageFiles, "write", damaged)
    run = run_of(VLLM, replace(HOST, store=STORE), folder=tmp_path)
    run.run()
    check_tokens(run)
    told = run.moves.broken
    assert told
    assert len(told) == len(set(told)) or damage == "gone"
    assert run.engine.tiers.counts[ARRIVED_BLOCKS] > 0


def test_who_writes_under_a_copy_is_noticed(monkeypatch):
    """A load whose source is another copy's when it ends."""
    look = Copies.look

    def spoilt(self, opened):
        begun = look(self, opened)
        for copy in self._made.values():
            if begun and copy is not None and copy.kind == LOAD:
                copy.source.write(copy.source_ids[:1], np.zeros((1, 32), np.uint8))
        return begun

    monkeypatch.setattr(Copies, "look", spoilt)
    with pytest.raises(KvbenchError, match=r"slot \d+ of host memory was written while it was being loaded"):
        run_of(VLLM, HOST).run()


@pytest.mark.skipif(JIT, reason="the clock is one for plain Python")
@pytest.mark.parametrize("write", ["through", "selective", "back"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_random_workloads_say_what_they_would_say_alone(name, write, monkeypatch):
    """Documents that come back, cancels, priorities; tiers of every size, copies that take next to nothing or long."""

    @settings(max_examples=200 if LONG else 6, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(
        SYSTEMS[name](False),
        revisits(),
        st.sampled_from([12, 30, 300]),
        st.sampled_from(["lru", "s3fifo", "arc"]),
        st.sampled_from(["whole", "layerwise"]),
        st.booleans(),
        st.booleans(),
        stores(),
        st.sampled_from([10, 20_000, 300_000]),
        st.integers(0, 1 << 30),
    )
    def check(case, drawn, blocks, eviction, load, closed, overlap, store, longest_copy, seed):
        set_clock(monkeypatch, np.random.default_rng(seed), longest_copy)
        asks, tokens = drawn
        rules = TierRules(
            blocks,
            eviction=eviction,
            closed=closed and write != "back",
            load=load,
            min_offers=2 if write == "selective" else 1,
            writes_back=write == "back",
            layers=3,
            store=replace(store, down=LinkRules(), up=LinkRules()),
        )
        system = replace(with_memory(case[1], tokens), overlap=overlap, check=True, fast=False)
        cache = replace(system.cache, kind="radix" if name == "sglang" else "hash")
        system = replace(system, cache=cache, tiers=replace(rules, block_bytes=8 * system.block_tokens))
        device = DigestModel(system.cache.num_blocks, system.block_tokens)
        simulation = MeasuredRun(request_table(asks), system, small_tables(), device)
        try:
            simulation.run()
        except KvbenchError as error:
            if "did not get the blocks" in str(error):  # SGLang dies there too
                return
            raise
        check_tokens(simulation)

    check()


def test_storage_that_goes_out_is_computed_around():
    out = replace(STORE, outage_ns=(3_500_000_000_000, 7_500_000_000_000))
    whole, cut = (run_of(VLLM, replace(HOST, store=store)) for store in (STORE, out))
    for run in (whole, cut):
        run.run()
        check_tokens(run)
    assert 0 < cut.engine.tiers.counts[ARRIVED_BLOCKS] < whole.engine.tiers.counts[ARRIVED_BLOCKS]


def test_the_folder_of_a_run_goes_with_it(tmp_path):
    run = run_of(VLLM, replace(HOST, store=STORE))
    folder = Path(run._folder.name)
    run.run()
    assert not folder.exists()
    kept = run_of(VLLM, replace(HOST, store=STORE), folder=tmp_path)
    kept.run()
    assert len(list(tmp_path.iterdir())) > 20
