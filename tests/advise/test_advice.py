"""The right lever for a planted cause, what hurts is told as such, and what the command prints and writes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from kvbench.advise.advice import Question, advise, alike_as_one
from kvbench.advise.evidence import evidence_of
from kvbench.advise.levers import options_for
from kvbench.advise.option import Option, do_not_clash, together, within
from kvbench.bench.run import run
from kvbench.bench.system import build_system
from kvbench.cli import call
from kvbench.metrics.slo import Promise
from kvbench.report.advice import Advice, Effect, LeverLine, advice_table

from .planted import BOTH, HEALTHY, PLANTED, planted


def advice(changes: tuple[str, ...], *promises: Promise, budget: int = 4, seeds: int = 1) -> Advice:
    question = Question(
        configure=lambda more: planted(changes, *more),
        command=lambda name, keys: f"kvbench {name} {' '.join(keys)}".strip(),
        promises=promises,
        seeds=tuple(range(seeds)),
        budget=budget,
        jobs=1,
    )
    return advise(question, lambda done, total: None)


@pytest.mark.parametrize(
    ("name", "lever"),
    [
        ("prefill-stalls", "step target"),
        ("prefixes-again", "prefix cache"),
        ("memory-limits", "more blocks"),
        ("places-limit", "more at once"),
        ("idle-device", "overlap"),
        ("kv-bandwidth", "KV in 8 bits"),
    ],
)
def test_the_right_lever_comes_first(name, lever):
    found = advice(PLANTED[name])
    assert found.symptoms[0].name == name
    assert found.best is not None
    assert lever in found.best.lever  # perhaps with a second one beside it
    assert found.best.ratio < 0.98
    assert found.best.changes[0] in advice_table(found)


def test_too_much_load_is_answered_by_devices():
    found = advice(PLANTED["too-much-load"], budget=10)
    assert found.symptoms[0].name == "too-much-load"
    assert found.best.devices > 1
    assert "twice the devices" in advice_table(found)


def test_a_healthy_run_is_left_alone():
    found = advice(HEALTHY, seeds=2)
    assert found.symptoms == found.levers == ()
    assert advice_table(found).endswith("Nothing is wrong: no symptom reaches its threshold.")


def test_kept_promises_need_no_lever():
    found = advice(PLANTED["places-limit"], Promise("ttft", 99, 1e6))
    assert found.symptoms
    assert found.levers == ()
    assert "Every promise is kept. Seen all the same" in " ".join(advice_table(found).split())


def test_a_broken_promise_is_what_levers_are_judged_by():
    found = advice((*PLANTED["places-limit"], "slo.ttft=60", "slo.tpot=1000"), budget=3)
    assert found.broken == ("ttft",)
    assert found.target == ("ttft.p99",)
    assert found.best.keeps
    assert found.best.kept == 1.0 > found.kept
    helping = [line.keeps for line in found.levers if line.verdict == "better"]
    assert helping == sorted(helping, reverse=True)  # what keeps the promise comes first


def test_a_lever_that_misleads_is_told_to_hurt():
    """Fewer at once spares memory and lengthens the queue."""
    found = advice(PLANTED["memory-limits"], budget=24)
    worse = {line.lever for line in found.levers if line.verdict == "worse"}
    assert worse
    assert {line.verdict for line in found.levers[-len(worse) :]} <= {"worse", "not run"}


def test_two_causes_are_answered_by_two_levers_together():
    found = advice(BOTH["memory-limits", "idle-device"], budget=5)
    assert {s.name for s in found.symptoms} >= {"memory-limits", "idle-device"}
    pair = next(line for line in found.levers if "+" in line.lever)
    assert len(pair.changes) >= 2
    assert pair.lever.count("+") == 1


def test_seeds_are_pairs_and_a_workload_without_draws_has_one():
    fixed = ("num_prompts=12", "arrivals.process=all-at-once", "lengths.prompt=64", "lengths.output=20")
    found = advice((*fixed, "scheduler.max_num_seqs=2"), budget=1, seeds=3)
    assert found.seeds == (0,)
    assert found.levers[0].verdict == "better"
    drawn = advice(PLANTED["places-limit"], budget=1, seeds=5)
    effect = next(e for e in drawn.levers[0].effects if e.metric == "ttft.p99")
    assert effect.low <= effect.ratio <= effect.high < 1


def test_what_cannot_run_says_why():
    """80 GB of weights leave nothing for twice the memory."""
    found = advice((*PLANTED["places-limit"], "step_times="), budget=24)
    assert all(line.error or line.effects for line in found.levers)


def test_options_within_a_budget_take_turns_and_combine():
    a, b, c = (Option(lever, (f"{key}=1",)) for lever, key in (("a", "x"), ("a", "y"), ("b", "x")))
    assert within([a, b, c], 2) == [a, c]
    assert within([a, b, c], 9) == [a, b, c]
    assert do_not_clash(a, b)
    assert not do_not_clash(a, c)
    assert together(b, c).changes == ("y=1", "x=1")
    assert within([], 3) == []


@pytest.mark.parametrize("preset", ["vllm", "sglang"])
def test_every_option_is_a_configuration_that_can_be_built(preset):
    system = build_system(planted((f"preset={preset}",)).config)
    configured = planted((*HEALTHY, "num_prompts=4"))
    shown = evidence_of(run(configured, None, True), build_system(configured.config, True))
    options = options_for(PLANTED, system, replace(shown, preempted=0.1, running=9.0))
    assert len({option.keys for option in options}) == len(options) > 6
    for option in options:
        build_system(planted((f"preset={preset}", *option.changes)).config)


def test_the_command_prints_writes_and_its_best_runs(capsys, tmp_path):
    sets = [word for text in PLANTED["places-limit"] for word in ("--set", text)]
    line = ["advise", "chat", *sets, "--set", "sessions.turns=1", "--jobs", "1", "--budget", "2", "--seeds", "1"]
    out = tmp_path / "out"
    assert call([*line, "--goodput", "ttft:100", "-o", str(out)]) == 0
    text, err = capsys.readouterr()
    assert max(map(len, text.splitlines())) <= 100
    assert "the number of sequences at once is the limit" in text
    assert "wrote advice.json, advice.csv, best.toml" in err
    document = json.loads((out / "advice.json").read_text())
    assert document["broken"] == ["ttft"]
    assert not document["healthy"]
    assert document["levers"][0]["command"].startswith("kvbench ab chat --goodput ttft:100 --set")
    rows = list(csv.DictReader((out / "advice.csv").read_text().splitlines()))
    assert {row["lever_verdict"] for row in rows} >= {"better"}
    assert call(["run", str(out / "best.toml"), "--json", "-q"]) == 0
    again = json.loads(capsys.readouterr().out)
    effect = next(e for e in document["levers"][0]["effects"] if e["metric"] == "ttft.p99")
    assert again["p99_ttft_ms"] == pytest.approx(effect["after"])


def test_wrong_input_is_one_line(capsys):
    assert call(["advise"]) == 2
    assert call(["advise", "chat", "--goodput", "tfft:100"]) == 2
    assert call(["advise", "chat", "--slo", "ttft:100"]) == 2
    assert call(["advise", "measured"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_changes_of_the_very_same_figures_are_one_answer():
    def line(lever: str, change: str, after: float) -> LeverLine:
        effects = (Effect("ttft.p99", "ms", 1.0, after, after, None, None, "better"),)
        return LeverLine(lever, (change,), "", 1.0, "", "better", effects=effects)

    lines = [line("a", "x=1", 0.5), line("a", "x=2", 0.5), line("b", "y=1", 0.5), line("a + b", "x=1", 0.5)]
    found = alike_as_one([*lines, line("a", "x=3", 0.6)])
    assert [(one.lever, one.changes, one.alike) for one in found] == [
        ("a", ("x=1",), ("x=2",)),
        ("b", ("y=1",), ()),  # another lever: what it costs differs
        ("a", ("x=3",), ()),
    ]
    failed = [LeverLine("c", (f"z={i}",), "", 1.0, "", "not run", error="no") for i in range(2)]
    assert alike_as_one(failed) == failed


def test_a_change_that_nobody_feels_is_none():
    found = advice(PLANTED["places-limit"], budget=6)
    small = [e for line in found.levers for e in line.effects if e.ratio and abs(e.ratio - 1) < 0.02]
    assert small
    assert not {e.verdict for e in small} & {"better", "worse"}
