"""A server's command as keys: real flags of vLLM and SGLang, those that are unknown named, files that hold one."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.keys import key_tree
from kvbench.bench.server_command import read_command
from kvbench.bench.server_flags import ENGINES
from kvbench.cli import call
from kvbench.core.errors import UsageError

VLLM = (
    "vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 128 --block-size 32 --enable-prefix-caching "
    "--max_num_batched_tokens=4096 -tp 2 --kv-cache-dtype fp8 --gpu-memory-utilization 0.85"
)


def keys(text: str) -> dict[str, str]:
    return dict(change.split("=", 1) for _, change in read_command(text).changes)


def test_flags_of_vllm_are_keys():
    assert keys(VLLM) == {
        "preset": "vllm",
        "model": "llama-3.1-8b",
        "scheduler.max_num_seqs": "128",
        "block_tokens": "32",
        "cache.kind": "hash",
        "scheduler.max_num_batched_tokens": "4096",
        "tp": "2",
        "kv_dtype": "fp8",
        "cache.memory_utilization": "0.85",
    }
    config = configure("chat", changes=read_command(VLLM).changes).config
    assert (config["tp"], config["scheduler.max_num_seqs"]) == (2, 128)
    assert config.where["scheduler.max_num_seqs"] == "--from --max-num-seqs"


def test_flags_of_sglang_are_keys():
    text = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp-size 4 --chunked-prefill-size 4096"
    found = keys(f"{text} --mem-fraction-static 0.8 --disable-radix-cache --schedule-policy lpm --page-size 16")
    assert found == {
        "preset": "sglang",
        "block_tokens": "16",
        "model": "qwen3-32b",
        "tp": "4",
        "scheduler.chunked_prefill_size": "4096",
        "cache.memory_utilization": "0.8",
        "cache.kind": "none",
        "scheduler.policy": "lpm",
    }
    assert keys(f"{text} --chunked-prefill-size -1")["scheduler.enable_chunked_prefill"] == "false"
    assert keys(text)["block_tokens"] == "1"  # the engine's own page


@pytest.mark.parametrize(
    ("flag", "key", "value"),
    [
        ("--no-enable-prefix-caching", "cache.kind", "none"),
        ("--enable-prefix-caching=False", "cache.kind", "none"),
        ("--enforce-eager", "costs.graphs", "none"),
        ("--no-async-scheduling", "overlap", "false"),
        ("--max-model-len 32k", "max_model_len", "32000"),
        ("--max-model-len 32K", "max_model_len", "32768"),
        ("--quantization fp8", "dtype", "fp8"),
        ("-q fp8", "dtype", "fp8"),
    ],
)
def test_switches_sizes_and_types(flag, key, value):
    assert keys(f"vllm serve llama-3.1-8b {flag}")[key] == value


def test_what_is_not_modelled_is_named_and_what_does_not_matter_is_not():
    found = read_command(
        """vllm serve llama-3.1-8b --host 0.0.0.0 --speculative-config '{"n": 2}' --dtype float32 --port 80"""
    )
    assert [line.split()[1] for line in found.left_out] == ["--speculative-config", "--dtype"]
    assert "float32" in found.left_out[1]
    assert [key for _, key in found.changes] == ["preset=vllm", "model=llama-3.1-8b"]
    assert read_command("vllm serve somebody/unheard-of-9B").left_out[0].startswith("--from: --model somebody/unheard")


def test_a_file_may_be_a_script(tmp_path, capsys):
    script = tmp_path / "start.sh"
    script.write_text(
        "#!/bin/sh\n# vllm serve old --max-num-seqs 1\nexport X=1\n"
        "exec /opt/venv/bin/vllm serve llama-3.1-8b \\\n  --max-num-seqs 77 \\\n  --foo 3 > log 2>&1 &\n"
    )
    assert keys(str(script))["scheduler.max_num_seqs"] == "77"
    assert call(["config", "chat", "--from", str(script), "--device", "h200"]) == 0
    out, err = capsys.readouterr()
    assert "scheduler.max_num_seqs = 77    (--from --max-num-seqs)" in out
    assert err.splitlines() == [
        "kvbench: warning: --from: --foo is left out: kvbench does not know it, or does not model it"
    ]


def test_a_flag_on_the_command_line_wins_and_wrong_input_is_one_line(capsys):
    assert call(["config", "chat", "--from", VLLM, "--tp", "4", "--json"]) == 0
    assert '"value": 4' in capsys.readouterr().out.partition('"tp"')[2][:60]
    for text in ("tgi serve x", "no-such-file.sh", "vllm serve 'x"):
        assert call(["config", "chat", "--from", text]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert call(["config", "chat", "--from", "vllm serve llama-3.1-8b --block-size many"]) == 2
    assert "--from --block-size" in capsys.readouterr().err


def test_every_flag_names_a_key_that_exists():
    tree = key_tree()
    for engine in ENGINES.values():
        for flag, read in engine.flags.items():
            for value in ("auto", "fp8", "fcfs", "lru", "8", "llama-3.1-8b", "true"):
                try:
                    changes = read(value)
                except UsageError:
                    continue
                for change in changes:
                    tree.key_of(change.partition("=")[0], flag)
