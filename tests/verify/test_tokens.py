"""The proof by tokens, on a model in a few lines that is quick as plain Python; test_jitted runs it on a real one."""

from __future__ import annotations

import os

import pytest

from kvbench.cli import call
from kvbench.report.tokens_table import Outcome, tokens_report
from kvbench.verify.tokens import PLANTS, TokenProof
from kvbench.verify.variations import Variation, variations

from ..engine.digest_model import DigestModel

CAUGHT_BY = {
    "skip_copy": "vllm none block 16 tight forks shared",
    "wrong_block": "vllm hash block 16 tight chunked serial",
    "short_context": "vllm hash block 16 tight chunked serial",
    "skip_move": "vllm hash block 64 host back serial",
    "no_fence": "vllm hash block 16 tight backup",
    "keep_unwritten": "vllm hash block 4 tight urgent",
}


def digests(settings) -> DigestModel:
    return DigestModel(settings.cache.num_blocks, settings.block_tokens)


def named(name: str):
    return next(v for v in variations(True) if v.name == name)


@pytest.fixture(scope="module")
def proofs() -> dict[str, TokenProof]:
    return {}


def proof_of(proofs: dict[str, TokenProof], kv_dtype: str, plant: str = "") -> TokenProof:
    if (kv_dtype, plant) not in proofs:
        proofs[kv_dtype, plant] = TokenProof(kv_dtype, plant=plant, device_of=digests)
    return proofs[kv_dtype, plant]


@pytest.mark.parametrize(
    ("kv_dtype", "name"),
    [
        ("float32", "vllm hash block 16 tight chunked serial"),
        ("float32", "sglang radix block 4 tight whole overlap"),
        ("float32", "vllm hash block 4 tight forks shared"),
        ("float32", "sglang radix block 16 tight backup"),
        ("float32", "sglang radix block 1 tight chunked serial"),
        ("float32", "vllm hash block 64 ample whole overlap"),
        ("float32", "vllm hash block 16 files through serial"),
        ("float32", "sglang radix block 16 files back serial"),
        ("float32", "sglang radix block 16 files selective overlap"),
        ("float32", "sglang radix block 64 host back serial"),
        ("float32", "vllm pull block 16 whole"),
        ("float32", "sglang push block 64 chunk"),
        ("float32", "sglang push block 16 layer"),
        ("float32", "sglang push block 16 hits"),
        ("float32", "vllm pull block 16 failed"),
    ],
)
def test_the_same_tokens(proofs, kv_dtype, name):
    outcome = proof_of(proofs, kv_dtype).run(named(name))
    assert outcome.passed, outcome
    assert outcome.hit_rate > 0.05
    if not any(word in name for word in ("ample", "pull", "push")):
        assert outcome.evicted
    if any(word in name for word in ("host", "files", "pull", "push")):
        assert outcome.moved > 20


@pytest.mark.skipif(os.environ.get("KVBENCH_LONG") != "1", reason="five minutes: KVBENCH_LONG=1 runs it")
@pytest.mark.parametrize("name", [v.name for v in variations(True) if v.group == "visits" or "pu" in v.name])
def test_every_way_through_tiers_and_pairs(proofs, name):
    outcome = proof_of(proofs, "float32").run(named(name))
    assert outcome.passed, outcome
    assert outcome.moved > 5


def test_a_host_of_two_blocks_keeps_what_a_copy_continues(proofs):
    """Space for the next block of a prefix is never made by evicting the one before it (integrity says so)."""
    tiny = ("preset=sglang", "cache.kind=radix", "block_tokens=64", "cache.blocks=9", "overlap=false", "check=true")
    tiers = ("tiers.host.blocks=2", "tiers.storage.blocks=18", "tiers.storage.stop=wait_complete")
    chunks = ("scheduler.chunked_prefill_size=64", "tiers.storage.min_prefetch_tokens=64")
    outcome = proof_of(proofs, "float32").run(Variation("two blocks", (*tiny, *tiers, *chunks)))
    assert outcome.passed, outcome


def test_every_block_size_policy_and_depth_of_tiers_is_usual():
    usual = {tuple(v.name.split()[2:6]) for v in variations(False) if "host" in v.name or "files" in v.name}
    assert len(usual) == 3 * 3 * 2


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_noticed(proofs, plant):
    variation = named(CAUGHT_BY[plant])
    proof = proof_of(proofs, "float32", plant)
    if variation.group == "urgent":
        proof.run(named("vllm none block 4 ample urgent"))
    assert not proof.run(variation).passed


def test_unknown_names_are_one_line(capsys):
    for arguments, text in (
        (["--plant", "gremlin"], "no such fault; there are skip_copy"),
        (["--kv-dtype", "fp4"], "choose float32, bf16, int8, int4"),
        (["--only", "nothing like it"], "no variation's name holds that"),
    ):
        assert call(["verify", "tokens", *arguments]) == 2
        said = capsys.readouterr().err
        assert text in said
        assert said.count("\n") == 1


def test_every_variation_has_a_name_of_its_own():
    for everything in (False, True):
        names = [v.name for v in variations(everything)]
        assert len(set(names)) == len(names)


def test_the_table_fits():
    longest = max((v.name for v in variations(True)), key=len)
    lines = [
        Outcome(longest, "float32", 27, 25, 3, 1_000, 0.5, 1_234, 1_234, 123, 12_345, ""),
        Outcome(longest, "bf16", 0, 0, -1, 0, 0.0, 0, 0, 0, 0, "block 7 was written while it was being copied"),
    ]
    text = tokens_report(lines, {"float32": 0, "bf16": 27}, "exact")
    assert max(map(len, text.splitlines())) <= 100
    assert "25/27" in text
    assert "2 sequences differ, the first is 3" in text
    assert "bf16: block 7 was written" in " ".join(text.split())
