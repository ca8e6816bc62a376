"""The same code compiled: a choice of the other tests."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(os.environ.get("KVBENCH_TEST_JIT") == "1", reason="this is the second run")


LONG = pytest.mark.skipif("KVBENCH_LONG" not in os.environ, reason="compiles for minutes; KVBENCH_LONG=1 runs it")


def environment(**more: str) -> dict[str, str]:
    env = os.environ | {"PYTHONPATH": str(ROOT), "KVBENCH_TEST_JIT": "1"} | more
    if "NUMBA_DISABLE_JIT" not in more:
        env.pop("NUMBA_DISABLE_JIT", None)
    return env


def pytest_again(least: int, *arguments: str, **more: str) -> None:
    """At least so many tests passed: what was skipped or found nothing to run has proved nothing."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout[-300:]
    assert int(passed[1]) >= least, done.stdout[-300:]


INNER = """
import dis, importlib, pkgutil, types
import kvbench.verify
from kvbench.core.jit import _Lazy

def functions(module):
    for value in vars(module).values():
        inside = vars(value).values() if isinstance(value, type) else [value]
        for one in inside:
            one = getattr(one, "__func__", getattr(one, "fget", one))
            if isinstance(one, types.FunctionType) and one.__module__ == module.__name__:
                yield one

def is_inner(value):
    return isinstance(value, _Lazy) and "no_cpython_wrapper" in value._options

seen = 0
for found in pkgutil.walk_packages(kvbench.verify.__path__, "kvbench.verify."):
    for function in functions(importlib.import_module(found.name)):
        told = list(dis.get_instructions(function))
        for first, second in zip(told, told[1:]):
            if first.opname != "LOAD_GLOBAL":
                continue
            value = function.__globals__.get(first.argval)
            member = getattr(value, str(second.argval), None) if isinstance(value, types.ModuleType) else None
            assert not is_inner(value), (function.__qualname__, first.argval)
            assert not is_inner(member), (function.__qualname__, second.argval)
            seen += 1
assert seen > 1000
"""


def test_python_calls_no_inner_function():
    """Compiled, such a call would crash; without jit nothing tells it from any other."""
    done = subprocess.run([sys.executable, "-c", INNER], cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]


@LONG
def test_recordings_of_routers_compiled():
    pytest_again(6, "tests/verify/test_golden.py", "-k", "recorded and (dyn_ or sgl_ or ps_ or vllmr_)")


def test_recordings_and_costs_compiled():
    pytest_again(30, "tests/prefix/test_radix_golden.py", "tests/costs/test_tables.py", "tests/prefix/test_optimum.py")


def test_kv_writes_and_copies_compiled():
    """Raw addresses and vectors, where the plain path has NumPy: the same bits."""
    pytest_again(100, *(f"tests/kernels/test_{name}.py" for name in ("quantise", "kv_write", "kv_copy", "limits")))


def test_eviction_policies_compiled():
    """Policies against plain Python, and those of a user's file with what numba says of them."""
    least, chosen = (18, "long_churn") if "KVBENCH_LONG" in os.environ else (3, "long_churn and (slru or cost)")
    pytest_again(least, "tests/prefix/test_eviction.py", "-k", chosen)
    pytest_again(15, "tests/engine/test_own_policy.py", "-k", "not command_line")


def test_the_model_compiled():
    """Float32 KV alone: other types are compiled in tests of the attention kernels."""
    files = ("tests/kernels/test_linear.py", "tests/kernels/test_elementwise.py", "tests/model")
    pytest_again(30, *files, "-k", "linear or elementwise or plain_model or recorded or float32")


def test_attention_compiled():
    """Every test of vectors; attention with float32 and bf16 KV (`kvbench kernels --check` compiles all)."""
    pytest_again(50, "tests/kernels/test_simd.py", "tests/kernels/test_attention.py")


def test_a_real_model_says_the_same_whatever_the_cache_does():
    """Logits of a compiled model through the compiled engine; all variations: `kvbench verify tokens`."""
    variations = ("--kv-dtype", "float32", "--kv-dtype", "bf16", "--only", "vllm hash block 16 tight chunked serial")
    command = [sys.executable, "-m", "kvbench", "verify", "tokens", "-q", *variations]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "2 runs in exact numerics: 2 say the same" in done.stdout


@LONG
@pytest.mark.parametrize("only", ["block 64 files back", "push block 16", "pull block 16"])
def test_a_real_model_says_the_same_whatever_moves(only):
    """Host memory, page files, and KV from one engine to another."""
    command = [sys.executable, "-m", "kvbench", "verify", "tokens", "-q", "--kv-dtype", "float32", "--only", only]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@LONG
def test_replays_of_traces_compiled():
    """Known rates, and every whole trace: a replay finds what a run finds."""
    pytest_again(
        10, "tests/offline/test_replay.py", "tests/offline/test_equal_to_runs.py", "-k", "conversation or trace"
    )


def test_trace_info_compiled():
    pytest_again(10, "tests/bench/test_trace_info.py")


SET_BEAMS = ("--set", "cache.copy_on_write=true", "--set", "beam.width=2")

FLUSH = ("--set", "flush=[{at_s=1.5}]")

SERIAL = ("--set", "overlap=false")
"""The calendar path."""

# Small, with everything that takes memory away: evictions, preemptions, flushes, samples, sessions.
LOADS = {
    "sglang": ("--preset", "sglang", "--set", "block_tokens=1", "--set", "cache.blocks=4000", *FLUSH),
    "vllm-serial": ("--preset", "vllm", *SERIAL, "--set", "cache.blocks=260", *FLUSH),
    "sglang-serial": ("--preset", "sglang", *SERIAL, "--set", "block_tokens=1", "--set", "cache.blocks=4000", *FLUSH),
    "vllm": ("--preset", "vllm", "--set", "cache.blocks=260", *FLUSH),
    "beams": ("--preset", "vllm", "--set", "cache.blocks=220", *SET_BEAMS),
}
RARELY = ("sglang-serial", "vllm", "beams")
CROWD = ("--num-prompts", "120", "--request-rate", "60", "--set", "max_model_len=3000", "--steps")


def run_chat(folder: Path, load: str, **more: str) -> dict[str, bytes]:
    """The CSV files of one run in a process of its own."""
    command = [sys.executable, "-m", "kvbench", "run", "chat", *LOADS[load], *CROWD, "-o", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env=environment(**more), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {name: (folder / name).read_bytes() for name in ("requests.csv", "summary.csv", "steps.csv")}


@pytest.mark.parametrize("load", ["sglang", "vllm-serial", *(pytest.param(load, marks=LONG) for load in RARELY)])
def test_compiled_and_plain_python_give_the_same_bytes(tmp_path, load):
    plain = run_chat(tmp_path / "plain", load, NUMBA_DISABLE_JIT="1")
    compiled = run_chat(tmp_path / "compiled", load)
    assert compiled == plain
    rows = csv.DictReader(plain["requests.csv"].decode().splitlines())
    assert any(row["preemptions"] != "0" for row in rows)  # else the load is no load


def test_no_index_of_the_tree_is_out_of_bounds():
    pytest_again(10, "tests/prefix/test_radix_golden.py", NUMBA_BOUNDSCHECK="1")


@LONG
@pytest.mark.parametrize("load", LOADS)
def test_no_index_is_out_of_bounds(tmp_path, load):
    """Compiled with bounds checks, and again the same bytes. (Plain Python objects to most such indices too.)"""
    checked = run_chat(tmp_path / "checked", load, NUMBA_BOUNDSCHECK="1")
    assert checked == run_chat(tmp_path / "plain", load, NUMBA_DISABLE_JIT="1")
