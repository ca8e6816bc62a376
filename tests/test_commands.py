"""Every command that the READMEs and docs/ print runs, in order, where a fresh clone is.

The engine is the real one; sizes are cut, so that the whole takes seconds. NOT_RUN lists what is not run, and why.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kvbench.cli import call

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_CLONE = ("examples", "workloads", "tests")

NOT_RUN = {
    "kernels": "measures compiled kernels of this machine: minutes; tests/speed runs them small",
    "run measured": "a model of 39M parameters in plain Python: tests/bench/test_measured.py runs a small one",
    "verify tokens": "a real model: tests/verify/test_tokens.py runs it small",
    "verify golden": "half a minute of recordings: tests/verify/test_golden.py runs them",
    "verify faults": "tests/verify/test_faults.py runs them",
    "verify fuzz": "tests/verify/test_fuzz.py runs it small",
    "record": "needs an engine; tests/verify/test_record.py rehearses it",
    "doctor": "says whether this machine can measure, which one that runs tests cannot",
    "run hit-ttft": "runs on the measured clock",
    "run chunk-stall": "runs on the measured clock",
    "experts": "58 layers of 256 experts in plain Python; tests/bench/test_experts.py runs a small one",
    "policy": "70 runs: tests/advise/test_policy.py runs it small",
    "validate": "needs tables of measured servers: tests/fidelity runs it on small ones",
    "calibrate": "needs measurements of a server: tests/fidelity runs it",
    "device": "needs a table of measured operators: tests/costs reads small ones",
}
"""First words of a command -> why no test of this file runs it."""

MEASURED = "--clock measured"
"""What stands in commands that a real model in plain Python would run: see `run measured`."""

FEW = {"run": "8", "ab": "8", "sweep": "4", "capacity": "12", "advise": "8"}
"""Command -> prompts it gets here."""

pytestmark = pytest.mark.skipif(not PAGES[0].exists(), reason="needs a checkout")


def shown(page: Path) -> list[str]:
    """Command lines of indented blocks, a continued one whole, without comments and pipes."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(r"^ {4,}(?:\$ )?kvbench (.*)$", text, re.M)
    return [re.sub(r"\s+(#|>|\|).*", "", line).strip() for line in lines]


def is_run(line: str) -> bool:
    words = " ".join(shlex.split(line))
    return MEASURED not in words and not any(words == start or words.startswith(f"{start} ") for start in NOT_RUN)


def smaller(line: str) -> list[str]:
    """The same command with few prompts and one worker."""
    arguments = without_a_number_of_prompts(shlex.split(line))
    command = arguments[0]
    from_file = any(a.endswith("run.json") for a in arguments)
    if command in FEW and not from_file:
        arguments += ["--num-prompts", FEW[command]]
    if command == "capacity":
        arguments += ["--seeds", "1", "--precision", "0.5"]
    if command in ("sweep", "advise"):
        arguments += ["--jobs", "1"]
    if command == "advise":
        arguments += ["--seeds", "1", "--budget", "1"]
    return arguments


def without_a_number_of_prompts(arguments: list[str]) -> list[str]:
    """A --set num_prompts would win over the few that they get here."""
    pairs = list(zip(arguments, [*arguments[1:], ""], strict=True))
    out = {i for i, pair in enumerate(pairs) if pair[0] == "--num-prompts" or pair[1].startswith("num_prompts=")}
    return [word for i, word in enumerate(arguments) if i not in out and i - 1 not in out]


@pytest.fixture
def clone(tmp_path, monkeypatch) -> Path:
    """What a clone holds, and the user's own traces that pages speak of."""
    for name in IN_CLONE:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "baseline.csv").symlink_to(ROOT / "results" / "baseline.csv")
    row = '{{"timestamp": {}, "input_length": {}, "output_length": 4, "hash_ids": [0, {}, {}]}}'
    rows = [row.format(500 * i, 1025 + i, i % 3 + 1, i + 9) for i in range(12)]
    (tmp_path / "conversation_trace.jsonl").write_text("\n".join(rows) + "\n")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "a.jsonl").write_text("\n".join(rows) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_runs_in_order(page, clone, capsys):
    for line in filter(is_run, shown(page)):
        code = call(smaller(line))
        assert code == 0, f"{page.name}: kvbench {line}\n{capsys.readouterr()}"
    capsys.readouterr()


def test_the_chinese_readme_shows_the_same_commands():
    assert shown(ROOT / "README.zh-CN.md") == shown(ROOT / "README.md")


def test_what_is_not_run_is_shown_somewhere_and_little_of_all():
    lines = [" ".join(shlex.split(line)) for page in PAGES for line in shown(page)]
    left_out = [line for line in lines if not is_run(line)]
    assert len(lines) > 25
    assert len(left_out) < len(lines) / 2
    assert all(reason for reason in NOT_RUN.values())
