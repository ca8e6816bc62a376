"""A policy of one's own beside the built-in ones: one table, its place, wrong files in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvbench.cli import call
from kvbench.report.policy import Comparison, Row, policy_markdown, sentence
from kvbench.routing.settings import POLICIES
from kvbench.scheduler.rules import EVICTION

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXAMPLE = EXAMPLES / "seldom_hit.py"


def row(name: str, *hits: float) -> Row:
    return Row(
        name, tuple({"hit_rate": h, "hit_rate_optimum": 0.8, "hit_rate_infinite": 0.9, "ttft": 100 * h} for h in hits)
    )


def test_the_best_is_first_and_the_own_is_bold():
    found = Comparison(
        "cache.eviction", "/x/a|b.py:mine", ("w", "v"), {}, (row("/x/a|b.py:mine", 0.5, 0.6), row("lru", 0.7, 0.7))
    )
    lines = policy_markdown(found).splitlines()
    assert lines[2].startswith("| lru | 10.0 points | 70.0, 70 |")
    assert lines[3].startswith("| **mine** | 25.0 points |")
    assert lines[4] == "| optimum of this memory |  | 80.0 | 80.0 |"
    assert sentence(found) == "mine is number 2 of 2, 15.0 points behind lru."
    alone = Comparison("k", "a.py:m", ("w",), {}, (row("a.py:m", 0.8), row("lru", 0.7)))
    assert sentence(alone).startswith("m is first of 2, 0.0 points")


@pytest.mark.skipif(not EXAMPLE.exists(), reason="needs a checkout")
def test_the_command_runs_all_of_them(capsys, tmp_path):
    line = ["policy", f"{EXAMPLE}:seldom_hit", "--jobs", "1", "--set", "num_prompts=4", "-q"]
    assert call([*line, "--json", "-o", str(tmp_path / "policy.md")]) == 0
    document = json.loads(capsys.readouterr().out)
    ran = {p["policy"].rpartition(":")[2] for p in document["policies"]}
    assert ran | set(document["left_out"]) == {*EVICTION, "seldom_hit"}
    assert all(0 <= p["rag"]["hit_rate"] <= p["rag"]["hit_rate_optimum"] + 1e-9 for p in document["policies"])
    assert "radix" in document["left_out"]["tlru"]
    assert document["answer"] in (tmp_path / "policy.md").read_text()


def test_routers_are_ranked_by_their_tails():
    rows = [Row(name, tuple({"hit_rate": 0.5, "ttft": t} for t in tails)) for name, tails in ROUTERS.items()]
    found = Comparison("router.policy", "a.py:mine", ("w", "v"), {}, tuple(rows))
    assert [row.policy for row in found.ranked] == ["oracle", "a.py:mine", "random"]
    lines = policy_markdown(found).splitlines()
    assert lines[0].startswith("| policy | TTFT p99, times the best |")
    assert lines[3].startswith("| **mine** | 1.50 | 50.0, 10 | 50.0, 40 |")
    assert len([line for line in lines if line.startswith("|")]) == 5  # no bounds of one engine's memory
    assert sentence(found) == "mine is number 2 of 3: its TTFT p99 is 1.50 times the best one's."


ROUTERS = {"random": (50.0, 60.0), "a.py:mine": (10.0, 40.0), "oracle": (12.0, 20.0)}


@pytest.mark.skipif(not EXAMPLE.exists(), reason="needs a checkout")
def test_a_function_of_loads_is_compared_as_a_router(capsys):
    line = ["policy", f"{EXAMPLES / 'hits_unless_busy.py'}:hits_unless_busy", "--jobs", "1", "-q", "--json"]
    assert call([*line, "--set", "num_prompts=4"]) == 0
    document = json.loads(capsys.readouterr().out)
    ran = {p["policy"].rpartition(":")[2] for p in document["policies"]}
    assert ran | set(document["left_out"]) == {*POLICIES, "hits_unless_busy"}
    assert document["key"] == "router.policy"
    assert min(p["behind"] for p in document["policies"]) >= 1.0


def test_wrong_policies_are_one_line(capsys, tmp_path):
    (tmp_path / "p.py").write_text("def other(nodes, node, now):\n    return 1\n")
    for text in ("lru", str(tmp_path / "none.py:x"), f"{tmp_path / 'p.py'}:mine"):
        assert call(["policy", text]) == 2
    assert call(["policy", f"{tmp_path / 'p.py'}:other", "--set", "num_prompt=3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
