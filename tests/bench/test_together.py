"""Mechanisms beside each other: what does not go together is one line, what does keeps its books."""

from __future__ import annotations

import csv

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.cli import call

PAIR = ("pd.prefill=1", "pd.decode=1")


def options(*keys: str) -> list[str]:
    return [word for key in keys for word in ("--set", key)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["chat", *options(*PAIR, "tiers.host.ratio=1")], "tiers.host.ratio does not go with pd.prefill"),
        (["chat", *options(*PAIR), "--cache-only"], "--cache-only leads requests through one cache"),
        (["tiers", *options("tiers.storage.bytes=99999999999999999999")], "must be at most 1e+15 bytes"),
        (
            ["chat", *options("lengths.prompt=1500", "sessions.turns=1", "cache.blocks=60", "sharing.groups=0",
                              "tiers.host.blocks=500", "tiers.host.state=warm")],
            "exceed the cache (60 blocks",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_line(line, said, capsys):
    assert call(["run", *line, "--num-prompts", "3", "-q"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("keys", [("tiers.host.state=warm",), ("tiers.storage.blocks=40000", "cache.blocks=1000")])
def test_no_run_finds_more_than_its_bound_in_all_tiers_together(keys):
    changes = [("--set", key) for key in ("num_prompts=12", "tiers.host.ratio=1", *keys)]
    summary = run(configure("tiers", changes=changes)).record.summary
    assert 0 < summary["hit_rate"] <= summary["hit_rate_optimum"] <= summary["hit_rate_infinite"] <= 1


def test_experts_that_nobody_asked_are_a_report(capsys):
    keys = options("arrivals.cancel_share=1", "arrivals.cancel_after_s=0")
    line = ["run", "batch-offline", "--num-prompts", "3", "--model", "olmoe-1b-7b", "--dp", "2", "--ep", "2", *keys]
    assert call([*line, "-q"]) == 0
    assert "3 cancelled" in capsys.readouterr().out


def test_no_part_of_a_time_is_negative_whoever_gives_up(tmp_path):
    keys = options("pd.prefill=1", "pd.decode=1", "arrivals.cancel_share=0.6", "arrivals.cancel_after_s=0.05")
    line = ["run", "summarise-long", "--num-prompts", "12", "--preset", "sglang", *keys, "-q"]
    assert call([*line, "-o", str(tmp_path / "run")]) == 0
    with (tmp_path / "run" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"cancelled", "finished"} <= {row["status"] for row in rows}
    for row in rows:
        parts = [float(value) for name, value in row.items() if name.startswith("time_") and value]
        assert min(parts) >= 0, row


def test_a_link_is_busy_for_the_whole_run_at_most():
    changes = [("--set", key) for key in ("num_prompts=20", "links.host.down=0.001")]
    summary = run(configure("tiers", changes=changes)).record.summary
    assert summary["host_link_down_busy"] == 1.0


def test_a_run_in_which_all_fails_is_no_success(capsys):
    drained = "fleet.event=[{kind='drain',engine=0},{kind='drain',engine=1}]"
    line = ["run", "chat", "--num-prompts", "4", "--replicas", "2", *options(drained), "-q"]
    assert call(line) == 1
    assert "nothing was measured: all 4 sequences failed" in capsys.readouterr().err


FLUSHED = ("num_prompts=3", "arrivals.process=constant", "arrivals.rate=0.5", "lengths.prompt=1", "lengths.output=3",
           "sharing.groups=1", "sharing.prefix=4096", "sessions.turns=1", "tiers.host.blocks=2000")  # fmt: skip


@pytest.mark.parametrize(
    "chunks", [("scheduler.max_num_batched_tokens=512",), ("preset=sglang", "scheduler.chunked_prefill_size=512")]
)
def test_what_was_computed_before_a_flush_is_no_hit_behind_it_in_a_tier_either(chunks):
    """The flush falls into the first prefill, which ends behind it: the second request is the first of new weights."""
    changes = [("--set", key) for key in (*FLUSHED, *chunks, "flush=[{at_s=2.05}]", "check=true")]
    found = run(configure("chat", changes=changes)).journal
    assert found.scheduled_ns[0] < 2_050_000_000 < found.first_token_ns[0]
    assert found.cached_tokens.tolist() == [0, 0, 4096]


SMALL = ("num_prompts=12", "arrivals.rate=20", "lengths.prompt={distribution='uniform', min=3, max=60}",
         "lengths.output={distribution='uniform', min=1, max=30}", "sharing.groups=2", "sharing.prefix=40",
         "sessions.turns=2", "check=true")  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [
        ("preset=sglang", "flush=[{at_s=0.3}]", "tiers.host.blocks=500", "links.host.down=0.01"),
        ("preset=sglang", "flush=[{at_s=0.3}]", "cache.backup=true"),
        ("lengths.samples=3", "cache.copy_on_write=true", "cache.hit_same_step=false"),
        ("beam.width=2", "cache.copy_on_write=true", "cache.hit_same_step=false"),
    ],
)
def test_blocks_that_are_copied_or_shared_keep_their_books(keys):
    """A flush while a copy reads; samples that each register the block that they share."""
    assert run(configure("chat", changes=[("--set", key) for key in (*SMALL, *keys)])).record.complete
