"""Recordings of the real engines through the product's code; and whether a difference would be seen."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from kvbench.core.errors import KvbenchError, UsageError
from kvbench.engine.integrity import check_integrity
from kvbench.scheduler.presets import RECORDED
from kvbench.verify.golden import ABSENT, COMPONENTS, differences, verify, verify_files, why_unknown
from kvbench.verify.recording import Recording, read_recording
from kvbench.verify.scheduler_stream import SchedulerStream

from ..recordings import CHOICE, chosen_recordings, recording_name, recording_params

ONE_EACH = {
    "v1_scheduler": "vllm_sched_04_cache_preempt",
    "v1_kv_cache_manager": "vllm_kvmgr_00",
    "scheduler": "sglang_sched_04_chat_evict",
    "radix_cache": "sglang_radix_07_lru_p16",
    "radix_cache_request_level": "sglang_reqlevel_07_lru_p4",
    "schedule_policy_and_prefill_adder": "sglang_policy_01_lpm_p1",
    "placement": "place_05_mixtral",
    "ascend_policy": "ascend_01_lognormal",
    "transfer_plan": "transfer_05_scaleup",
    "replica_choice": "dispatch_01",
    "eplb_state": "timeline_00_vllm_sync",
    "eplb_manager": "timeline_06_sglang_chunk",
    "eplb_updator": "timeline_08_ascend",
    "pd_nixl_pull": "vllm_pd_15_mix_small",
    "pd_queues": "sglang_pd_17_mix_p16",
    "kv_router": "dyn_00_default",
    "kv_router_hash": "dyn_05_hash",
    "local_cpu_backend": "lmcache_cpu_01_lfu_24",
    "cpu_offload_manager": "vllm_offmgr_01_lru_t2_pos_32",
    "hiradix_cache": "hicache_04_write_back_p16_priority",
    "offloading_connector": "vllm_offconn_02_aborts",
    "simple_cpu_offload_connector": "vllm_simpleconn_00_lazy",
}
"""A stream of every component."""

NOT_MODELLED = ("sgl_13_prefix_hash_http",)
"""It refuses everything: a text has no tokens."""

EXPERTS = {
    "placement": "out deepseek p2l 0 3",
    "ascend_policy": "out 0 table 0 1 1",
    "transfer_plan": "out vllm ranks 0 sends 0 1",
    "replica_choice": "out sglang static_map 1 2",
    "eplb_state": "counter",
    "eplb_manager": "p2l 0 3",
    "eplb_updator": "iter_after",
}
"""Where a number lies in a row of a component whose rows are nested, or not below `out`."""


def load(name: str) -> Recording:
    return read_recording(CHOICE / f"{name}.jsonl.gz")


def test_the_list_of_versions_is_that_of_the_recordings():
    headers = [read_recording(path).header for path in chosen_recordings("*")]
    for engine, versions in RECORDED.items():
        assert {h["version"] for h in headers if h["engine"] == engine.lower()} == set(versions)


@pytest.mark.parametrize("path", recording_params("*"))
def test_every_recorded_value_is_equal(path):
    verdict = verify(read_recording(path))
    assert bool(verdict.unknown) == (recording_name(path) in NOT_MODELLED)
    if verdict.unknown:
        return
    assert verdict.differences == (), verdict.where
    assert verdict.agreed == verdict.steps > 0


@pytest.mark.parametrize("path", [*recording_params("vllm_sched_*"), *recording_params("sglang_sched_*")])
def test_the_engine_is_sound_all_the_way(path):
    recording = read_recording(path)
    stream = COMPONENTS[recording.header["component"]](recording.header, recording.rows)
    assert isinstance(stream, SchedulerStream)
    for number, row in enumerate(recording.rows):
        stream.step(row)
        if number % 20 == 0:
            check_integrity(stream.engine)


def test_there_is_a_stream_of_every_component():
    assert set(ONE_EACH) == set(COMPONENTS)


@pytest.mark.parametrize("name", ["sgl_03_th08_4w", "ps_07_session", "smg_06_consistent", "vllmr_06_chat"])
def test_another_choice_of_a_router_is_found(name):
    recording = load(name)
    rows = list(copy.deepcopy(recording.rows))
    number = len(rows) // 2
    while "worker" not in rows[number].get("out", {}) or (name[:3] == "smg" and not _was_seen(rows, number)):
        number += 1
    out = rows[number]["out"]
    out["worker"] += 1 if out["worker"] == 0 else -1
    verdict = verify(Recording(recording.name, recording.header, tuple(rows), recording.last))
    assert verdict.agreed == number
    assert [d.field for d in verdict.differences] == ["worker"]


def _was_seen(rows: list[Any], number: int) -> bool:
    return any(row.get("key") == rows[number]["key"] for row in rows[:number])


@pytest.mark.parametrize("component", EXPERTS)
def test_one_wrong_number_of_a_load_balancer_is_found(component):
    recording = load(ONE_EACH[component])
    *path, last = [int(part) if part.isdigit() else part for part in EXPERTS[component].split()]
    rows = list(copy.deepcopy(recording.rows))
    number = next(n for n, row in enumerate(rows) if n >= 2 and (component != "eplb_manager" or "p2l" in row))
    inner: Any = rows[number]
    for part in path:
        inner = inner[part]
    inner[last] += 1
    verdict = verify(Recording(recording.name, recording.header, tuple(rows), recording.last))
    assert verdict.agreed == number
    assert len(verdict.differences) >= 1
    assert verify(recording).passed


@pytest.mark.parametrize("component", sorted(set(COMPONENTS) - set(EXPERTS)))
def test_one_wrong_value_is_found_where_it_is(component):
    recording = load(ONE_EACH[component])
    number = len(recording.rows) // 2
    while all(_change(value) is None for value in recording.rows[number].get("out", {}).values()):
        number += 1
    changed = spoiled(recording, number)
    verdict = verify(changed)
    assert not verdict.passed
    assert verdict.agreed == number
    assert verdict.where.startswith(f"line {number + 2}, ")
    (difference,) = verdict.differences
    out = changed.rows[number]["out"]
    assert difference.recorded == out[difference.field] != difference.kvbench == original(recording, number, difference)


def spoiled(recording: Recording, number: int) -> Recording:
    """With one recorded number of one step changed."""
    rows = list(copy.deepcopy(recording.rows))
    out = rows[number]["out"]
    name = next(name for name, value in out.items() if _change(value) is not None)
    out[name] = _change(out[name])
    return Recording(recording.name, recording.header, tuple(rows), recording.last)


def _change(value: Any) -> Any:
    """The same with its last number one more; None where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value + 1
    if isinstance(value, str) and value.isdigit():
        return str(int(value) + 1)
    if isinstance(value, list) and value and (last := _change(value[-1])) is not None:
        return [*value[:-1], last]
    return None


def original(recording: Recording, number: int, difference: Any) -> Any:
    return recording.rows[number]["out"][difference.field]


@pytest.mark.parametrize(
    ("name", "where", "field", "value"),
    [
        ("vllm_sched_04_cache_preempt", "header", "version", "0.33.0"),
        ("vllm_kvmgr_00", "header", "version", "0.33.0"),
        ("vllm_sched_04_cache_preempt", "params", "scheduler_reserve_full_isl", False),
        ("sglang_sched_01_lpm_ample", "params", "schedule_policy", "fcfs"),
        ("sglang_sched_02_dfs_weight", "params", "schedule_policy", "lpm"),
        ("sglang_sched_14_lpm_dup_inbatch", "params", "in_batch_deprioritize_threshold", 10**6),
        ("sglang_sched_09_noradix_ignore_eos", "params", "ignore_eos", False),
        ("sglang_sched_12_slru_small", "params", "eviction_policy", "mru"),
        ("sglang_policy_04_dfs-weight_p16", "params", "schedule_policy", "lpm"),
        ("sglang_reqlevel_06_fifo_p1", "params", "policy", "filo"),
        ("sglang_radix_12_priority_p16", "params", "policy", "lru"),
    ],
)
def test_another_rule_does_not_pass(name, where, field, value):
    recording = load(name)
    (recording.header if where == "header" else recording.header["params"])[field] = value
    assert verify(recording).differences


def test_a_wrong_summary_is_a_difference():
    recording = load(ONE_EACH["radix_cache"])
    recording.last["summary"]["evicted"] += 1
    verdict = verify(recording)
    assert (verdict.agreed, verdict.steps) == (len(recording.rows), len(recording.rows))
    assert verdict.where == f"line {len(recording.rows) + 2}, the summary"
    assert [d.field for d in verdict.differences] == ["summary"]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("component", "attention_backend", "component attention_backend is unknown"),
        ("version", "0.7.3", "vllm 0.7.3 is unknown for v1_scheduler; known: vllm 0.19.0 and 0.33.0"),
        ("engine", "sglang", "sglang 0.19.0 is unknown for v1_scheduler"),
    ],
)
def test_an_unknown_stream_is_reported(field, value, words):
    recording = load(ONE_EACH["v1_scheduler"])
    recording.header[field] = value
    verdict = verify(recording)
    assert not verdict.passed
    assert words in verdict.unknown
    assert verdict.agreed == 0


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("async_scheduling", True, "parameter async_scheduling = True is not modelled; only False is"),
        ("num_spec_tokens", 3, "parameter num_spec_tokens is unknown"),
    ],
)
def test_a_parameter_that_is_not_modelled_is_reported(name, value, words):
    header = load(ONE_EACH["v1_scheduler"]).header
    header["params"][name] = value
    assert words in why_unknown(header)


def test_ratios_that_do_not_follow_from_the_settings_are_reported():
    recording = load(ONE_EACH["scheduler"])
    recording.header["params"]["init_new_token_ratio"] += 0.01
    with pytest.raises(UsageError, match="init_new_token_ratio"):
        verify(recording)


@pytest.mark.parametrize(
    ("line", "old", "new", "error", "words"),
    [
        (20, '"op":"', '"op":"un', KvbenchError, ":20: operation un"),
        (3, '"id"', '"name"', UsageError, ":3: no field 'id'"),
        (4, '"n_new":', '"n_new":"1', KvbenchError, ":4: "),
        (4, '"id":"q', '"id":"z', KvbenchError, ":4: cannot be replayed (KeyError"),
    ],
)
def test_a_row_that_cannot_be_replayed_is_named(tmp_path, line, old, new, error, words):
    lines = as_lines(load("vllm_kvmgr_00"))
    lines[line - 1] = lines[line - 1].replace(old, new, 1)
    if new.endswith('"1'):
        lines[line - 1] = lines[line - 1].replace(new, new + '","x":', 1)
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(error) as raised:
        verify_files([tmp_path / "a.jsonl"])
    assert words in str(raised.value)


def as_lines(recording: Recording) -> list[str]:
    objects = [recording.header, *recording.rows, recording.last]
    return [json.dumps(o, separators=(",", ":")) for o in objects]


def test_an_absent_field_is_its_default():
    assert differences({"a": 1, "b": []}, {"a": 1, "retracted": [], "idle": False}) == ()
    (found,) = differences({"a": 1}, {"a": 1, "retracted": ["r1"]})
    assert (found.field, found.recorded, found.kvbench) == ("retracted", ABSENT, ["r1"])
    (found,) = differences({"a": 1, "slots": [[0, 4]]}, {"a": 1})
    assert (found.recorded, found.kvbench) == ([[0, 4]], ABSENT)


def test_progress_counts_the_streams(tmp_path):
    for name in ("vllm_kvmgr_00", "sglang_radix_07_lru_p16"):
        (tmp_path / f"{name}.jsonl.gz").write_bytes((CHOICE / f"{name}.jsonl.gz").read_bytes())
    seen: list[tuple[int, int]] = []
    verdicts = verify_files(sorted(tmp_path.iterdir()), lambda done, total: seen.append((done, total)))
    assert [v.name for v in verdicts] == ["sglang_radix_07_lru_p16", "vllm_kvmgr_00"]
    assert seen == [(0, 2), (1, 2), (2, 2)]
