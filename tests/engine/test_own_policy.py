"""A user's policy out of a file: the example, what it gives, and one line for everything that may be wrong with it."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kvbench.cli import call
from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.prefix.eviction.own_file import find_policy
from kvbench.prefix.eviction.policies import POLICIES

from ..offline.test_replay import hash_hits, radix_hits, random_asks, replayed, settings
from ..reference.eviction import Policy, PolicyPool, PolicyTree
from .workloads import request_table

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "seldom_hit.py"
PLAIN_FILE = """
from kvbench.prefix.node import ACCESS, CREATED, WORD_B

def newest(nodes, node, now):
    return -nodes[node, CREATED]

def spared(nodes, node, now):
    return nodes[node, ACCESS] + 10**6 * (nodes[node, WORD_B] == 2)

def spared_on_insert(nodes, node, now):
    nodes[node, WORD_B] = nodes[node, CREATED] % 2

def spared_on_evict(nodes, node, now):
    keep = nodes[node, WORD_B] == 1
    nodes[node, WORD_B] = 2
    return not keep

def unknown_name(nodes, node, now):
    return nothing_of_that_name

def two(nodes, node):
    return 0

def text(nodes, node, now):
    return "soon"

def part(nodes, node, now):
    return nodes[node, ACCESS] / 2

def hook(nodes, node, now):
    return 0

def hook_on_evict(nodes, node, now):
    return nowhere
"""

pytestmark = pytest.mark.skipif(not EXAMPLE.exists(), reason="needs a checkout")


class SeldomHit(Policy):
    """The example, by the books."""

    def arrived(self, entry, now):
        entry.uses = 0

    def used(self, entry, now):
        entry.uses += 1

    def split(self, upper, lower):
        upper.uses = lower.uses

    def offered(self, entry):
        entry.rank = 1000 * entry.uses // entry.size()

    def choose(self, candidates, now):
        return min(candidates, key=lambda e: (e.rank, e.last_access))


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLAIN_FILE)
    return path


def replay(kind: str, name: str, num_blocks: int = 40) -> tuple[int, int]:
    """(hits, evicted) of a cache-only replay."""
    given = settings(kind, num_blocks, 4)
    given = replace(given, cache=replace(given.cache, eviction=name))
    got = replayed(request_table(random_asks(seed=4)), given)
    return got["hit_blocks"], got["evicted_blocks"]


def test_the_example_gives_what_it_says():
    asks, name = random_asks(seed=4), f"{EXAMPLE}:seldom_hit"
    assert replay("radix", name) == radix_hits(asks, 40, 4, PolicyTree(SeldomHit(40)))
    assert replay("hash", name) == hash_hits(asks, 40, 4, PolicyPool(41, SeldomHit(40)))


def test_a_policy_of_ones_own_equals_the_same_built_in(mine):
    for kind in ("radix", "hash"):
        assert replay(kind, f"{mine}:newest") == replay(kind, "filo") != replay(kind, "fifo")


def test_a_verdict_may_keep_a_node(mine):
    """Some are kept once, behind others: that is another order than lru."""
    assert replay("radix", f"{mine}:spared", 17) != replay("radix", "lru", 17)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:f", "nowhere.py: no such file; write it as my_file.py:my_policy"),
        ("mine.py:f", r"has no function f; it has newest, spared, .* a policy is a function of \(nodes, node, now\)"),
        ("mine.py:unknown_name", r"unknown_name\(nodes, node, now\) returns an int, .*'nothing_of_that_name'"),
        ("mine.py:two", r"two\(nodes, node, now\) returns an int, .*2 (positional )?arguments"),
        ("mine.py:text", r"text\(nodes, node, now\) returns an int"),
        ("mine.py:part", r"part\(nodes, node, now\) returns an int"),
        ("mine.py:hook", r"hook_on_evict\(nodes, node, now\) returns True or False, .*'nowhere'"),
        ("broken.py:f", "broken.py cannot be run: SyntaxError"),
        ("text.txt:f", "text.txt is not a Python file; its name has to end in .py"),
        ("lfo", "'lfo' is not known; try one of lru, lfu, .*, or my_file.py:my_policy"),
    ],
)
def test_what_is_wrong_is_one_line(mine, name, message):
    (mine.parent / "broken.py").write_text("def f(:\n")
    (mine.parent / "text.txt").write_text("def f(nodes, node, now):\n    return 1\n")
    with pytest.raises(UsageError, match=message) as error:
        find_policy(str(mine.parent / name) if ":" in name else name)
    assert "\n" not in str(error.value)


def test_a_compiled_function_is_taken_too(tmp_path):
    path = tmp_path / "jitted.py"
    path.write_text("from numba import njit\n\n@njit\ndef f(nodes, node, now):\n    return nodes[node, 4]\n")
    assert replay("radix", f"{path}:f") == replay("radix", "lru")


@pytest.mark.skipif(PLAIN, reason="without jit a policy may be any Python")
def test_what_numba_cannot_compile_is_one_line(tmp_path):
    path = tmp_path / "json_key.py"
    path.write_text("import json\n\ndef f(nodes, node, now):\n    return len(json.dumps({}))\n")
    with pytest.raises(UsageError, match="numba compiles it") as error:
        find_policy(f"{path}:f")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, name)
        for kind in ("radix", "hash")
        for name in [*POLICIES, "seldom_hit.py:seldom_hit"]
        if (kind, name) != ("hash", "tlru")  # it looks at whole conversations
    ],
)
def test_the_command_line_takes_it(kind, name, tmp_path, capsys):
    """A path is relative to where the command runs; what ran is in run.json as an absolute one."""
    shutil.copy(EXAMPLE, tmp_path)
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        changes = ["--set", f"cache.kind={kind}", "--set", "cache.blocks=60", "--set", f"cache.eviction={name}"]
        changes += ["--set", "cache.tlru_threshold=8192"] if name == "tlru" else []
        arguments = ["run", "chat", "--num-prompts", "30", "--cache-only", *changes]
        assert call(arguments) == 0, capsys.readouterr().err
        assert "hit" in capsys.readouterr().out
    finally:
        os.chdir(before)


def test_the_command_line_says_what_is_wrong(capsys):
    assert call(["run", "chat", "--num-prompts", "5", "--set", "cache.eviction=nowhere.py:f"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "nowhere.py: no such file" in lines[0]
