"""The system of the measured clock: what it refuses, what its table and its files say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvbench.bench import measured
from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.core.errors import UsageError
from kvbench.report.table import run_table

from ..engine.digest_model import DigestModel


def configured(*changes: str):
    return configure("chat", changes=[("--set", text) for text in ("clock=measured", *changes)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["cache.blocks=100000000"], "100,000,000 blocks of KV need .* are free here; lower cache.blocks"),
        (["measured.kv_gib=4000"], "lower cache.blocks or measured.kv_gib, or take a smaller model"),
        (["measured.model=huge"], "unknown model size 'huge'"),
        (["cache.state=warm"], "use a first .*phase.* with exclude = true"),
        (["block_tokens=512"], "the kernels take block_tokens of 1 to 256"),
        (["batching=static"], "paged continuous batching"),
        (["tiers.host.ratio=1", "links.host.up=8"], "links.host.up is of a modelled link"),
        (["tiers.host.ratio=1", "tiers.host.state=warm"], "set tiers.host.state = cold"),
        (["pd.prefill=1", "pd.decode=1", "links.kv.gb_per_s=8"], "links.kv.gb_per_s is of a modelled link"),
        (["tiers.host.bytes=1e15"], "GiB beside the device's KV"),
    ],
)
def test_what_cannot_run_is_one_line(changes, message):
    with pytest.raises(UsageError, match=message) as error:
        run(configured(*changes))
    assert "\n" not in str(error.value)


def test_more_than_the_machine_has_is_said_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(measured, "available_bytes", lambda: 600 << 20)
    with pytest.raises(UsageError, match=r"0.59 GiB are free here"):
        build_system(configured().config)


def test_memory_is_a_key_with_a_safe_default():
    system = build_system(configured("block_tokens=16").config)
    assert system.settings.cache.num_blocks == (1 << 29) // system.budget.block_bytes == 8190
    assert build_system(configured("cache.blocks=77").config).settings.cache.num_blocks == 77
    assert system.settings.cache.unregister_unwritten
    assert system.settings.tokenize_ns_per_token == system.settings.detokenize_ns == 0


def test_a_model_can_be_named_as_any_other():
    assert measured.model_name(configured("model=tiny").config) == "tiny"
    assert measured.model_name(configured("model=qwen3-8b", "measured.model=small").config) == "small"


@pytest.fixture
def quick_model(monkeypatch):
    """The real path, with a model that is quick as plain Python."""

    def paged(config, settings, model):
        device = DigestModel(settings.cache.num_blocks, settings.block_tokens)
        device.warm_up = lambda temperature: None
        return device

    monkeypatch.setattr(measured, "load_model", lambda config: None)
    monkeypatch.setattr(measured, "paged_model", paged)


def test_the_table_says_what_ran(quick_model):
    result = run(configured("num_prompts=6", "lengths.prompt=20", "lengths.output=6", "cache.blocks=400"))
    table = run_table(result.record)
    assert max(map(len, table.splitlines())) <= 100
    assert "clock        measured" in table
    assert "times are those of this CPU" in table
    assert "cache.unregister_unwritten = true on this clock" in table
    assert "host         " in table
    hashes = result.document["measured"]["token_hashes"]
    assert len(hashes) == 6
    assert json.loads(json.dumps(result.document))["measured"]["device_s"] > 0
    assert np.all(result.journal.finish_ns > 0)


def test_what_is_prefilled_is_computed(quick_model):
    """Shared prefixes are hit in the first step, and their KV is right: the same tokens as without."""
    changes = ("num_prompts=5", "lengths.prompt=20", "lengths.output=6", "cache.blocks=400", "arrivals.rate=inf")
    cold, filled = (run(configured(*changes, f"cache.state={state}")) for state in ("cold", "prefilled"))
    assert filled.counters.matched_tokens > cold.counters.matched_tokens
    assert filled.document["measured"]["token_hashes"] == cold.document["measured"]["token_hashes"]


def test_what_was_asked_for_and_is_not_used_is_said():
    config = build_system(configured("device=h200", "model=qwen3-8b").config).config
    notes = " ".join(measured.measured_notes(config, build_system(configured().config).settings))
    assert "device = h200 and model = qwen3-8b: of the modelled clock, and not used here" in notes
    config = build_system(configured("model=tiny").config).config
    assert "not used here" not in " ".join(measured.measured_notes(config, build_system(configured().config).settings))
