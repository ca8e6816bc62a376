"""The paper's scenarios in small: who wastes what, and what forks save. From the command line down."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import Result, run
from kvbench.bench.system import build_system
from kvbench.core.errors import UsageError
from kvbench.report.csv_files import summary_csv
from kvbench.report.table import run_table

SHAREGPT, ALPACA = "paper-paged-attention", "paper-paged-attention-alpaca"


def small(name: str, *texts: str) -> Result:
    changes = ("num_prompts=24", "cache.blocks=300", *texts)
    return run(configure(name, None, [("here", text) for text in changes]))


def test_paging_holds_tokens_and_reservations_hold_room():
    shares = []
    for allocation in ("contiguous", "buddy", "oracle", "paged"):
        summary = small(SHAREGPT, f"cache.allocation={allocation}").record.summary
        parts = [summary[f"kv_{part}_share"] for part in ("tokens", "reserved", "internal", "external")]
        assert sum(parts) == pytest.approx(1)
        shares.append(parts[0])
    assert shares == sorted(shares)
    assert shares[0] < 0.25
    assert shares[-1] > 0.95


@pytest.mark.parametrize(("name", "low", "high"), [(SHAREGPT, 0.1, 0.45), (ALPACA, 0.03, 0.2)])
def test_more_samples_save_more_and_beams_save_most(name, low, high):
    options = ("lengths.samples=2", "lengths.samples=6", "beam.width=2", "beam.width=4")
    results = [small(name, "cache.copy_on_write=true", option, "lengths.output.max=300") for option in options]
    saved = [result.record.summary["saved_blocks_share"] for result in results]
    assert low < saved[0] < saved[1] < high
    assert 0.35 < saved[2] < 0.5 < saved[3]  # two beams save half at most
    assert all(result.record.summary["copied_blocks"] > 0 for result in results)


def test_a_run_says_what_was_shared():
    result = small(ALPACA, "cache.copy_on_write=true", "beam.width=3")
    table = run_table(result.record)
    assert "sharing" in table
    assert "% of the blocks without sharing saved" in table
    assert "beam search: 3 beams of every request" in table.replace("\n             ", " ")
    assert max(map(len, table.splitlines())) <= 100
    rows = "".join(summary_csv(result.record))
    for name in ("saved_blocks_share", "copied_blocks", "copied_bytes", "kv_tokens_share"):
        assert f",{name}," in rows
    assert result.record.summary["copied_bytes"] == result.record.summary["copied_blocks"] * 16 * 131072
    assert result.journal.sample.tolist() == [0] * 24
    assert "sharing" not in run_table(small(ALPACA).record)


def test_a_reservation_says_where_its_slots_go():
    table = run_table(small(ALPACA, "cache.allocation=buddy").record)
    assert "KV slots" in table
    assert "external (cache.allocation = buddy)" in table.replace("\n             ", " ")
    assert max(map(len, table.splitlines())) <= 100


def test_the_seed_of_beams_is_its_own():
    def copied(*texts: str) -> int:
        return int(small(ALPACA, "cache.copy_on_write=true", "beam.width=3", *texts).record.summary["copied_blocks"])

    assert copied() == copied("seeds.beam=0") != copied("seeds.beam=1")
    assert copied("beam.skew=0") > copied()  # all but one are forked anew in every step


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["preset=sglang", "cache.copy_on_write=true"], "cache.copy_on_write is a rule of vLLM"),
        (["beam.width=2"], "beam.width needs cache.copy_on_write = true"),
        (["cache.allocation=buddy"], "cache.allocation = buddy shares no blocks"),
        (["cache.kind=none", "cache.allocation=contiguous", "cache.blocks=10"], "reserves max_model_len = 131072"),
    ],
)
def test_what_does_not_go_together_is_one_line(texts, message):
    with pytest.raises(UsageError, match=message) as caught:
        build_system(configure("chat", None, [("here", text) for text in texts]).config)
    assert "\n" not in str(caught.value)
