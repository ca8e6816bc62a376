"""Text is never compared: the hit rate that each scenario of workloads/text really gets, as its comment says."""

from __future__ import annotations

import re

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.bench.scenarios import scenario_names, scenario_path

HIT_RATES = {
    "another-template": 69.11,
    "another-tokenizer": 69.11,
    "answer-retokenised": 87.31,
    "same-document-moved": 49.90,
    "thinking-stripped": 67.57,
}


def test_the_list():
    assert [name for name in scenario_names() if name.startswith("text/")] == [f"text/{name}" for name in HIT_RATES]


@pytest.mark.parametrize("name", HIT_RATES)
def test_the_hit_rate_is_the_one_in_the_comment(name):
    rate = run(configure(f"text/{name}")).record.summary["hit_rate"]
    assert round(100 * rate, 2) == HIT_RATES[name]
    (said,) = re.findall(r"hit rate: ([\d.]+) %", scenario_path(f"text/{name}").read_text("utf-8"))
    assert float(said) == HIT_RATES[name]
