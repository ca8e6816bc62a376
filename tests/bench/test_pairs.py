"""Keys of prefill and decode engines: what they make of a run, and what is wrong with them in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvbench.bench.configure import configure
from kvbench.bench.fleet_engines import fleet_of
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.report.run_json import to_text
from kvbench.report.timeline import timeline_json
from kvbench.workload.build import build_workload

pytestmark = pytest.mark.skipif(not PLAIN, reason="the same code; compiling all of it takes minutes")

PAIR = ("pd.prefill=1", "pd.decode=1")


def configured(*changes: str):
    return configure("chat", changes=[("--set", change) for change in ("num_prompts=12", *changes)])


def fleet(*changes: str):
    system = build_system(configured(*changes).config)
    return fleet_of(system, build_workload(system.config.tree())[0])


@pytest.mark.parametrize("preset", ["vllm", "sglang", "vllm-ascend", "vllm-ascend,pd.protocol=push"])
def test_a_run_says_where_the_first_token_went(preset):
    result = run(configured(*PAIR, *f"preset={preset}".split(",")))
    scalars, journal = result.record.summary.scalars, result.journal
    parts = [scalars[f"ttft_{name}_mean"][0] for name in ("before", "queue", "prefill", "transfer", "decode_queue")]
    ttft = (journal.first_token_ns - journal.arrival_ns).mean() / 1e6
    assert sum(parts) + scalars["ttft_first_step_mean"][0] == pytest.approx(ttft)
    assert scalars["transfers"][0] == 12
    assert result.document["pd"]["sides"]["decode"]["engines"] == 1
    assert (journal.columns["prefill_engine"] == 0).all()
    assert (journal.columns["decode_engine"] == 1).all()
    assert journal.part_names[-1] == "decode_queue"
    assert "TTFT is the sum of" in result.record.sections[-1].text


def test_a_side_has_keys_of_its_own():
    table = '{engines = 2, tp = 2, scheduler.max_num_seqs = 3, "cache.blocks" = 5000}'
    got = fleet("pd.prefill=1", f"pd.decode={table}", "cache.blocks=700")
    assert [s.role for s in got.settings] == ["prefill", "decode", "decode"]
    assert [s.cache.num_blocks for s in got.settings] == [700, 5000, 5000]
    assert got.settings[1].scheduler.max_num_seqs == 3
    assert got.pairs.devices == (1, 2)
    assert fleet(*PAIR, "pd.decode.tp=2").pairs.devices == (1, 2)


def test_the_link_is_that_of_each_device_and_unequal_ranks_send_smaller_pieces():
    one, two, both = (
        fleet(*PAIR, *more).pairs for more in ((), ("pd.decode.tp=2",), ("pd.decode.tp=2", "pd.prefill.tp=2"))
    )
    assert one.block_bytes == two.block_bytes == both.block_bytes == 16 * 131072
    assert two.block_fragments == 2 * one.block_fragments == 2 * both.block_fragments
    assert one.ns_per_byte == two.ns_per_byte == 2 * both.ns_per_byte == 1 / 50


def test_both_engines_keep_to_their_own_way():
    pull, push = fleet(*PAIR, "preset=vllm"), fleet(*PAIR, "preset=sglang")
    assert (pull.pairs.protocol, pull.pairs.layers) == ("pull", 0)
    assert (push.pairs.protocol, push.pairs.layers) == ("push", 1)
    assert fleet(*PAIR, "preset=sglang", "pd.transfer=layer").pairs.layers == 32
    assert [s.cache.kind for s in push.settings] == ["radix", "none"]
    assert push.settings[1].reserved_decode_tokens == 512


def test_a_key_chooses_what_vllm_on_ascend_does():
    mooncake, layerwise = (fleet(*PAIR, "preset=vllm-ascend", *more).pairs for more in ((), ("pd.protocol=push",)))
    assert (mooncake.protocol, mooncake.layers, mooncake.tells_unread) == ("pull", 0, False)
    assert (mooncake.lease_ns, mooncake.heartbeat_ns) == (480 * 10**9, -(10**9))
    assert (layerwise.protocol, layerwise.layers) == ("layerwise", 32)
    assert fleet(*PAIR, "preset=vllm-ascend", "pd.lease_s=20").pairs.lease_ns == 20 * 10**9
    fleet("preset=vllm-ascend", "fleet.replicas=2")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["pd.prefill=2"], "pd.prefill engines need pd.decode engines"),
        (["pd.lease_s=3"], "pd.lease_s has no effect without"),
        ([*PAIR, "pd.reserved_decode_tokens=4"], "has no effect under pd.protocol = pull"),
        ([*PAIR, "preset=sglang", "pd.failure=recompute"], "has no effect under pd.protocol = push"),
        ([*PAIR, "preset=sglang", "pd.protocol=pull"], "what engines with scheduler.discipline = token-budget do"),
        ([*PAIR, "pd.protocol=push", "pd.lease_s=3"], "no effect under pd.protocol = push with scheduler.discipline"),
        ([*PAIR, "pd.protocol=push", "pd.bootstrap_timeout_s=3"], "no effect under pd.protocol = push with scheduler"),
        ([*PAIR, "pd.protocol=push", "pd.first_token=prefill"], "its decode side computes the first token again"),
        ([*PAIR, "pd.protocol=push", "cache.kind=radix"], "set cache.kind = hash"),
        ([*PAIR, "pd.transfer=layer"], "needs pd.protocol = push"),
        ([*PAIR, "links.kv.gb_per_s=0"], "never moves any KV"),
        ([*PAIR, "links.kv.gb_per_s=1e-9"], "the least"),
        ([*PAIR, "overlap=true"], "set overlap = false"),
        ([*PAIR, "fleet.replicas=2"], "stands beside pd.prefill and pd.decode"),
        ([*PAIR, "batching=static"], "does not go with pd.prefill and pd.decode"),
        (["pd.prefill={engines=-1}", "pd.decode=1"], "a number of engines"),
        ([*PAIR, 'pd.fault=[{kind="fire"}]'], "kind is one of link-down"),
        ([*PAIR, 'pd.fault=[{kind="link-down", decode=1}]'], "there is no link 0 to 1"),
        (["pd.prefill={engines=1, num_prompts=3}", "pd.decode=1"], "num_prompts is one for both sides"),
    ],
)
def test_what_is_wrong_is_one_line(changes, message):
    with pytest.raises(UsageError) as error:
        fleet(*changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_json_runs_again(tmp_path):
    first = run(configured(*PAIR, "pd.decode={engines=2, scheduler.max_num_seqs=2}"))
    path = tmp_path / "run.json"
    path.write_text(to_text(first.document))
    again = run(configure(str(path)))
    np.testing.assert_array_equal(first.journal.finish_ns, again.journal.finish_ns)


def test_a_timeline_leads_from_prefill_to_decode():
    result = run(configured("pd.prefill=2", "pd.decode=1"), record_steps=True)
    events = json.loads("".join(timeline_json(result.record, result.journal, result.requests)))["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"engine 0, prefill", "engine 1, prefill", "engine 2, decode"} <= set(names.values())
    steps = [(e["pid"], e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") == "step"]
    for kind, role in (("s", "prefill"), ("f", "decode")):
        ends = [e for e in events if e["ph"] == kind]
        assert len({e["id"] for e in ends}) == 12
        assert all(role in names[e["pid"]] for e in ends)
        assert all(any(pid == e["pid"] and a <= e["ts"] < b for pid, a, b in steps) for e in ends)


@pytest.mark.parametrize("router", ["least-loaded", "power-of-two", "kv-aware", "scorers", "predicted-ttft", "oracle"])
def test_a_router_of_pairs_knows_the_prefill_engines(router):
    views = [f"router.policy={router}"] + (["router.load=reported"] if router != "oracle" else [])
    journal = run(configured("pd.prefill=2", "pd.decode=2", *views)).journal
    assert set(journal.columns["prefill_engine"].tolist()) <= {0, 1}
    assert set(journal.columns["decode_engine"].tolist()) == {2, 3}


def test_one_latent_of_mla_lies_on_every_rank_and_moves_once():
    """Ranks of a model with latent attention have the same KV: more of them send no more, over no faster a link."""
    model = ("model=deepseek-v3", "device=h200", "dtype=fp8", "tp=8", "max_model_len=4096")
    one, both = (
        fleet(*model, f"pd.prefill={{engines=1, tp={p}}}", f"pd.decode={{engines=1, tp={d}}}").pairs
        for p, d in ((16, 8), (8, 8))
    )
    assert one.block_bytes == both.block_bytes
    assert one.ns_per_byte == both.ns_per_byte == 1 / 50
    assert both.block_fragments == 61
    assert one.block_fragments == 2 * 61
