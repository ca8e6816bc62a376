"""From names, files and flags to a configuration with nothing left open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.bench import scenarios
from kvbench.bench.configure import Configured, configure
from kvbench.bench.keys import key_tree
from kvbench.bench.scenarios import scenario_descriptions, scenario_names, scenario_path
from kvbench.bench.system import System, build_system
from kvbench.core.errors import UsageError
from kvbench.engine.rules import rules_of
from kvbench.scheduler.presets import ALIASES, PRESETS, find_preset


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text('num_prompts = 7\npreset = "sglang"\n[arrivals]\nrate = 3\n[cache]\nblocks = 500\n')
    return str(path)


def changed(*texts: str, target: str | None = None, trace: str | None = None) -> Configured:
    return configure(target, trace, [("--set", text) for text in texts])


def system(*texts: str) -> System:
    return build_system(changed(*texts).config)


def write_run(tmp_path: Path, of: Configured) -> str:
    """A run.json as a run leaves it, of the parts that matter here."""
    document = {
        "kind": "kvbench.run", "schema": 1, "run": of.name, "fingerprint": "f" * 64,
        "config": build_system(of.config).config.tree(), "given": of.given,
    }  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document).replace("Infinity", '"inf"'))
    return str(path)


# ---------------------------------------------------------------- layers


def test_flags_lie_over_the_file_and_the_file_over_the_preset(scenario):
    configured = changed("arrivals.rate=9", "cache.memory_utilization=0.5", target=scenario)
    config = configured.config
    assert configured.name == "small"
    assert config["num_prompts"] == 7
    assert config["arrivals.rate"] == 9
    assert config["cache.kind"] == "radix"
    assert config["cache.memory_utilization"] == 0.5
    assert config.where["cache.kind"] == "preset sglang-0.5.23"
    assert config["preset"] == "sglang-0.5.23"


def test_a_flag_may_choose_another_preset_than_the_file(scenario):
    config = changed("preset=vllm-0.19", target=scenario).config
    assert config["cache.kind"] == "hash"
    assert config["cache.free_order"] == "tail"
    assert config["cache.blocks"] == 500


def test_what_was_given_is_what_lies_above_the_preset(scenario):
    assert changed("tp=2", target=scenario).given == {
        "num_prompts": 7,
        "preset": "sglang",
        "arrivals": {"rate": 3.0},
        "cache": {"blocks": 500},
        "tp": 2,
    }


def test_a_trace_replaces_the_workload_of_the_target_and_nothing_else(scenario):
    configured = changed(target=scenario, trace="some/trace.jsonl")
    config = configured.config
    assert configured.name == "trace"
    assert config["trace.path"] == str(Path("some/trace.jsonl").resolve())
    assert config["num_prompts"] == 0
    assert config.where["arrivals.rate"] == "default"
    assert config["cache.blocks"] == 500


def test_the_request_rate_of_a_trace_stretches_it():
    config = configure(None, "t.jsonl", [("--request-rate", "arrivals.rate=5")]).config
    assert config["trace.rate"] == 5
    assert config.where["arrivals.rate"] == "default"
    assert configure(None, None, [("--request-rate", "arrivals.rate=5")]).config["arrivals.rate"] == 5


@pytest.mark.parametrize(
    ("text", "trace", "message"),
    [
        ("lengths.prompt=5", "t.jsonl", "lengths.prompt has no effect on a trace"),
        ("arrivals.rate=5", "t.jsonl", "arrivals.rate has no effect on a trace; trace.rate"),
        ("trace.rate=5", None, "trace.rate needs a trace"),
    ],
)
def test_a_key_that_nothing_would_read_is_an_error(text, trace, message):
    with pytest.raises(UsageError, match=message):
        changed(text, trace=trace)


def test_keys_that_hold_for_a_trace_too():
    changed(
        "arrivals.concurrency=5",
        "arrivals.process=closed",
        "lengths.max_tokens=9",
        "num_prompts=3",
        trace="t",
    )


# ---------------------------------------------------------------- run.json


def test_a_run_is_run_again_with_the_same_resolved_configuration(tmp_path, scenario):
    first = changed("device=l40s", target=scenario)
    again = configure(write_run(tmp_path, first))
    assert again.config.values == build_system(first.config).config.values
    assert build_system(again.config).settings == build_system(first.config).settings
    assert (again.name, again.given, again.fingerprint) == ("small", first.given, "f" * 64)


def test_a_change_starts_from_what_was_given_so_that_open_sizes_are_closed_anew(tmp_path):
    path = write_run(tmp_path, changed("device=l40s", "preset=vllm"))
    again = build_system(configure(path, None, [("--device", "device=h200")]).config)
    assert again.settings == build_system(changed("device=h200").config).settings
    other = build_system(configure(path, None, [("--preset", "preset=sglang")]).config)
    assert other.settings.cache.kind == "radix"


def test_a_run_of_phases_keeps_them(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text('[[phase]]\nname = "a"\nnum_prompts = 3\n[phase.arrivals]\nrate = 2\n')
    first = configure(str(path))
    assert first.config.phases == ({"name": "a", "num_prompts": 3, "arrivals.rate": 2.0},)
    assert configure(write_run(tmp_path, first)).config.phases == first.config.phases


# ---------------------------------------------------------------- presets and open sizes


def test_a_rule_reaches_the_scheduler_under_the_name_of_its_key():
    asked = {"retract_decode_steps": 7, "waiting_refresh_interval": 3, "watermark": 0.25, "drop_ended_each_step": True}
    settings = system(*(f"scheduler.{name}={str(value).lower()}" for name, value in asked.items())).settings
    rules = rules_of(settings, prefill_first=False)
    assert {name: getattr(rules, name) for name in asked} == asked
    assert rules.watermark_blocks == (settings.cache.num_blocks + 1) // 4


@pytest.mark.parametrize("name", [*PRESETS, *ALIASES])
def test_presets_set_known_keys_to_values_that_pass(name):
    preset = find_preset(name, "here")
    tree = key_tree()
    texts = [f"{key}={str(value).lower()}" for key, value in preset.values.items()]
    assert tree.assignments(texts, "preset").values == preset.values
    assert preset.meaning


@pytest.mark.parametrize(
    ("device", "seqs", "tokens", "chunk"),
    [("h100", 1024, 8192, 8192), ("l40s", 256, 2048, 4096), ("rtx-4090", 256, 2048, 2048)],
)
def test_sizes_follow_the_memory_of_the_device(device, seqs, tokens, chunk):
    vllm, sglang = system(f"device={device}"), system(f"device={device}", "preset=sglang")
    assert vllm.settings.scheduler.max_num_seqs == seqs
    assert vllm.config["scheduler.max_num_batched_tokens"] == tokens
    assert sglang.settings.scheduler.chunked_prefill_size == chunk
    assert system(f"device={device}", "scheduler.max_num_seqs=7").settings.scheduler.max_num_seqs == 7


def test_free_order_is_that_of_the_allocator():
    assert system("preset=sglang", "block_tokens=1").settings.cache.free_order == "append"
    assert system("preset=sglang").settings.cache.free_order == "sorted-front"
    assert system("preset=vllm-0.19").settings.cache.free_order == "tail"
    assert system("preset=vllm").settings.cache.free_order == "unhashed-first"


def test_chunks_can_be_switched_off_under_both_schedulers():
    off = "scheduler.enable_chunked_prefill=false"
    assert system("preset=sglang", off).settings.scheduler.chunked_prefill_size == 0
    assert system(off).settings.scheduler.enable_chunked_prefill is False


def test_blocks_are_what_the_memory_budget_leaves():
    budget = system().budget
    assert system().settings.cache.num_blocks == budget.num_blocks
    assert system().config["cache.blocks"] == budget.num_blocks
    assert system("cache.blocks=123").settings.cache.num_blocks == 123


def test_the_model_closes_its_length_and_types():
    assert system("model=qwen3-8b").settings.max_model_len == 40960
    assert system("dtype=fp16").config["kv_dtype"] == "fp16"
    assert system("dtype=fp8").config["kv_dtype"] == "bf16"
    with pytest.raises(UsageError, match="beyond the 40960 positions"):
        system("model=qwen3-8b", "max_model_len=50000")


def test_costs_and_clients_reach_the_engine():
    settings = system(
        "costs.tokenize_us_per_token=1.5", "arrivals.concurrency=8", "arrivals.process=closed", "path=step"
    ).settings
    assert settings.tokenize_ns_per_token == 1500
    assert (settings.concurrency, settings.closed_loop, settings.fast) == (8, True, False)
    with pytest.raises(UsageError, match=r"needs arrivals\.concurrency"):
        system("arrivals.process=closed")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["overlap=true", "batching=static"], "set overlap = false or batching = continuous"),
        (["clock=measured", "tp=2"], "the measured clock runs one model on this CPU"),
        (["scheduler.policy=lpm"], "lpm is not a rule of scheduler.discipline = token-budget; choose fcfs"),
        (["preset=sglang", "cache.free_order=tail"], "choose auto, append, sorted-front"),
        (["cache.kind=none", "cache.eviction=lfu"], "needs cache.kind = radix or hash"),
        (["cache.eviction=lfo"], r"one of lru, lfu, .*, random, or FILE\.py:FUNCTION; got 'lfo'"),
        (["cache.eviction=mine.py:"], r"or FILE\.py:FUNCTION"),
        (["model=deepseek-v3"], "does not fit h100.*try"),
        (["model=llama-3.1-80b"], "the nearest is 'llama-3.1-8"),
        (["device=h1000"], "the nearest is 'h100'"),
        (["preset=vlm"], "the nearest is vllm"),
        (["tp=3"], "tp 3 does not divide"),
    ],
)
def test_what_cannot_run_is_one_line(texts, message):
    with pytest.raises(UsageError, match=message) as error:
        system(*texts)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- targets


def test_every_scenario_of_the_checkout_is_a_configuration():
    assert "chat" in scenario_names()
    for name in scenario_names():
        configured = configure(name)
        assert configured.name == name
        assert scenario_descriptions()[name]
        build_system(configured.config)


def test_an_installed_folder_goes_before_the_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(scenarios, "PACKAGE", tmp_path / "kvbench")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "a.toml").touch()
    assert scenario_names() == ["a"]
    (tmp_path / "kvbench" / "workloads" / "deep").mkdir(parents=True)
    (tmp_path / "kvbench" / "workloads" / "deep" / "b.toml").touch()
    assert scenario_names() == ["deep/b"]
    assert scenario_path("deep/b").name == "b.toml"
    with pytest.raises(UsageError, match="unknown scenario c; the nearest is deep/b"):
        scenario_path("c")


def test_a_model_path_is_relative_to_the_file_that_names_it(tmp_path):
    (tmp_path / "m").mkdir()
    path = tmp_path / "a.toml"
    path.write_text('model = "./m/config.json"\n')
    assert configure(str(path)).config["model"] == str(tmp_path / "m" / "config.json")


@pytest.mark.parametrize("name", PRESETS)
def test_every_rule_of_a_preset_reaches_the_engine(name):
    settings = system(f"preset={name}").settings
    parts = {"scheduler": settings.scheduler, "cache": settings.cache}
    for key, value in PRESETS[name].values.items():
        section, _, rule = key.partition(".")
        if section in parts and hasattr(parts[section], rule) and (value is False or value not in (0, "auto")):
            assert (key, getattr(parts[section], rule)) == (key, value)


def test_tlru_wants_a_threshold_and_a_tree():
    asked = ("preset=sglang", "cache.eviction=tlru")
    with pytest.raises(UsageError, match="tlru_threshold is above"):
        system(*asked)
    with pytest.raises(UsageError, match=r"needs cache\.kind = radix"):
        system("preset=vllm", "cache.eviction=tlru", "cache.tlru_threshold=100")
    rules = system(*asked, "cache.tlru_threshold=100").settings.cache
    assert (rules.eviction, rules.tlru_threshold) == ("tlru", 100)


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.csv.gz", "x"])
def test_a_run_of_a_trace_has_its_name_without_what_packs_it(tmp_path, name):
    assert configure(None, trace=str(tmp_path / name)).name == "x"
