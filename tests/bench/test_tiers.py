"""Tiers of a configuration: what auto comes to, and one line for what does not go together."""

from __future__ import annotations

import pytest

from kvbench.bench.system import build_system
from kvbench.bench.tiers import state_at_start
from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.report.pictures.gather import charts_of, read_named
from kvbench.tiers.rules import fragments_of

from .test_run import configured, run


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (("tiers.storage.blocks=10",), "storage lies behind a host"),
        (("tiers.host.ratio=1", "tiers.storage.bytes=10"), "is less than a block"),
        (("tiers.host.ratio=1", "links.host.up=0.0001"), "0.001 is the least"),
        (("tiers.host.blocks=60000", "cache.blocks=100", "check=true"), "there are 60,100; lower tiers.host.blocks"),
        (("tiers.host.blocks=900000000", "cache.blocks=100"), "of this machine's memory"),
        (("tiers.host.write=write_back",), "write_back has no host to write to"),
        (("tiers.host.bytes=10",), "is less than a block"),
        (("tiers.host.ratio=1", "tiers.storage.min_prefetch_tokens=100"), "is no multiple of block_tokens = 16"),
        (("tiers.host.ratio=1", "device=gb200"), "a tier needs a link"),
        (("tiers.host.ratio=1", "cache.kind=none"), "set cache.kind = hash or radix"),
        (("tiers.host.ratio=1", "tiers.host.blocks=9"), "leave one out"),
        (("tiers.host.ratio=1", "kv_dtype=fp8", "tiers.host.kv_dtype=bf16"), "wider than fp8"),
        (("tiers.host.ratio=1", "tiers.host.kv_dtype=int4", "tiers.storage.kv_dtype=fp8"), "wider than int4"),
        (("tiers.host.kv_dtype=int4",), "has no effect without a tier"),
        (("tiers.host.ratio=1", "links.host.convert=1e-12"), "0.001 is the least"),
        (("tiers.host.ratio=1", "cache.backup=true"), "leave cache.backup out"),
        (("tiers.host.ratio=1", "batching=static"), "continuous batching"),
        (("tiers.host.ratio=1", "tiers.host.write=write_back", "tiers.host.closed=yes"), "before those that they"),
    ],
)
def test_what_does_not_go_together_is_one_line(texts, words):
    with pytest.raises(UsageError, match=words) as error:
        build_system(configured(*texts).config)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("more", "state"),
    [
        ((), "cold"),
        (("tiers.host.state=warm",), "cold (host warm)"),
        (("tiers.storage.state=warm",), "cold"),  # there is none
        (
            ("tiers.storage.blocks=4000", "tiers.storage.state=warm", "tiers.host.state=warm"),
            "cold (host warm; storage warm)",
        ),
    ],
)
def test_a_warm_tier_is_no_cold_cache(more, state):
    """Runs of other states are not compared: a warm host must not pass for a first visit."""
    assert state_at_start(build_system(configured("tiers.host.ratio=1", *more).config).config) == state


@pytest.mark.parametrize(("preset", "load", "closed"), [("vllm", "whole", False), ("sglang", "layerwise", True)])
def test_rules_are_those_of_the_engine(preset, load, closed):
    system = build_system(configured(f"preset={preset}", "tiers.host.ratio=2", "cache.blocks=500").config)
    rules = system.settings.tiers
    assert (rules.host_blocks, rules.load, rules.closed) == (1000, load, closed)
    assert rules.layers == 32
    assert rules.block_fragments == 64
    assert system.config["tiers.host.load"] == load


def test_a_tier_may_hold_kv_in_fewer_bits():
    """The same memory holds more blocks, links carry fewer bytes, and the run says what such a hit is not."""
    one = ("tiers.host.ratio=2", "cache.blocks=500", "tiers.storage.bytes=3000000000")
    wide, narrow = (build_system(configured(*one, *more).config) for more in ((), ("tiers.host.kv_dtype=int4",)))
    assert wide.settings.tiers.block_bytes == wide.settings.cache.block_bytes == 2 << 20
    assert narrow.settings.cache.block_bytes == 2 << 20
    rules = narrow.settings.tiers
    assert rules.block_bytes == rules.store.block_bytes == (2 << 20) * 18 // 64  # 4 bits, and 16 for each 32 channels
    assert rules.host_blocks == 1000 * 64 // 18
    assert rules.store.blocks == 3_000_000_000 // rules.block_bytes
    mixed = build_system(configured(*one, "tiers.host.kv_dtype=fp8", "tiers.storage.kv_dtype=int4").config)
    assert mixed.settings.tiers.block_bytes == 1 << 20
    assert mixed.settings.tiers.store.block_bytes == rules.block_bytes
    requests = ("num_prompts=30", "sharing.groups=3", "sharing.prefix=2000", "cache.blocks=300")
    found = [run(configured("tiers.host.ratio=4", *requests, *more)) for more in ((), ("tiers.host.kv_dtype=fp8",))]
    written = [r.record.summary["write_amplification"] for r in found]
    assert 0 < written[1] < 0.6 * written[0]
    assert any("tiers hold KV as fp8" in text for text in found[1].record.notes)
    assert not any("tiers hold KV" in text for text in found[0].record.notes)


def test_without_a_size_there_is_no_tier():
    assert not build_system(configured("tiers.host.write=write_through").config).settings.tiers.on


def test_pieces_of_a_block():
    assert [fragments_of(x, 16, 32, 8, False) for x in ("layer_first", "page_first", "page_head")] == [64, 1024, 8192]
    assert fragments_of("layer_first", 16, 61, 1, True) == 61


def test_a_layout_is_converted_in_pieces_or_by_a_copy():
    def rules(*texts):
        return build_system(configured("tiers.host.ratio=2", "tiers.storage.blocks=900", *texts).config).settings.tiers

    pages = "tiers.host.layout=page_first"
    pieces, copy, slow = rules(pages), rules(pages, "tiers.host.convert=copy"), rules(pages, "links.host.convert=1")
    assert (pieces.block_fragments, copy.block_fragments, slow.block_fragments) == (1024, 1, 1024)
    half = build_system(configured().config).deployment.device.memory_bandwidth / 2
    for moved, plain in ((copy.host_link.up, pieces.host_link.up), (copy.host_link.down, pieces.host_link.down)):
        assert moved.ns_per_byte - plain.ns_per_byte == pytest.approx(1e9 / half)
    slow = rules(pages, "links.host.convert=1", "tiers.host.convert=copy")
    assert slow.host_link.up.ns_per_byte - pieces.host_link.up.ns_per_byte == pytest.approx(1.0)
    assert rules("tiers.host.convert=copy").block_fragments == 64  # layer_first is the device's own
    assert rules("links.storage.convert=5").store.up.ns_per_byte == pytest.approx(0.1 + 0.2)
    assert rules("links.storage.convert=5", pages).store.up.ns_per_byte == pytest.approx(0.1)


@pytest.mark.parametrize("state", ["warm", "prefilled"])
def test_a_cache_that_is_warm_on_the_device_has_a_host_behind_it(state):
    texts = (f"cache.state={state}", "check=true", "cache.blocks=400", "num_prompts=12", "tiers.host.ratio=2")
    summary = run(configured(*texts)).record.summary
    assert summary["finished"] == 12
    assert summary["host_written_blocks"] > 0


def test_pictures_over_the_host_s_size_and_by_tier(tmp_path):
    """Two sizes of a host: hits and tail over them, and each run's TTFT by the lowest tier that gave it anything."""
    scenario = [*("run", "tiers", "-q", "--num-prompts", "30", "--set", "cache.blocks=1500"), "--set"]
    for ratio in (1, 4):
        assert call([*scenario, f"tiers.host.ratio={ratio}", "-o", str(tmp_path / f"r{ratio}")]) == 0
    sources = read_named([tmp_path / "r1", tmp_path / "r4"], None)
    hits, tail, *by_tier = charts_of(sources, "tiers")
    assert (hits.key, tail.key, [chart.key for chart in by_tier]) == ("tiers-hits", "tiers-tail", ["tiers", "tiers"])
    assert hits.series[0].x.tolist() == [1500, 6000]
    assert hits.series[0].y.tolist() == [100 * folder.figure("hit_rate") for folder in sources.runs]
    assert tail.series[0].y.tolist() == [folder.figure("ttft", "p99") for folder in sources.runs]
    for chart, folder in zip(by_tier, sources.runs, strict=True):
        rows = {name: int(n.replace(",", "")) for name, n, *_ in chart.table}
        told = {name: int(folder.figure(f"requests_{name}")) for name in ("computed", "device", "host", "storage")}
        assert rows == {name: n for name, n in told.items() if n}
    assert call(["plot", str(tmp_path / "r1"), "--what", "tiers", "-q", "-o", str(tmp_path / "t.svg")]) == 0
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
