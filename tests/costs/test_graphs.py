"""Captured graphs: sizes, padding, the least time of launches, memory; points where host and device wait."""

from __future__ import annotations

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.run import run
from kvbench.bench.step_times import graphs_of, step_costs
from kvbench.bench.system import System, build_system
from kvbench.cli import call
from kvbench.costs.graph_keys import MODES, GraphSettings
from kvbench.costs.pricing import price_steps
from kvbench.costs.roofline import kernels_of_step
from kvbench.costs.tables import DECODE_ATTENTION, HOST, LINEAR

US = 1000


def system(*changes: str) -> System:
    return build_system(configure("tiny-model", changes=[("--set", text) for text in changes]).config)


def steps_ns(which: System, *steps: tuple[int, int, int, int]) -> list[list[int]]:
    """Resources of steps of (new, context, decodes, context of each)."""
    return price_steps(step_costs(which).tables, steps)[0].tolist()


DECODE, LARGE, MIXED = (0, 0, 4, 100), (0, 0, 300, 100), (40, 0, 4, 100)


def test_a_step_takes_its_launches_at_least_by_the_mode():
    """A model of 40 million parameters: launches are all that there is."""
    layers, kernels = system().deployment.model.num_layers, kernels_of_step(system().deployment)
    eager, pieces, whole = kernels * 25, (layers + 1) * 10 + layers * 3 * 25, 10
    sizes = "graph.capture_sizes=1,2,4,8,64"
    for mode, wanted in {
        "none": (eager, eager, eager),
        "piecewise": (pieces, eager, pieces),
        "full-decode": (whole, eager, eager),
        "full-and-piecewise": (whole, eager, pieces),
    }.items():
        free = steps_ns(
            system(f"graph.mode={mode}", sizes, "graph.eager_us=0", "graph.replay_us=0"), DECODE, LARGE, MIXED
        )
        found = steps_ns(system(f"graph.mode={mode}", sizes), DECODE, LARGE, MIXED)
        for resources, without, floor in zip(found, free, wanted, strict=True):
            assert sum(resources) - resources[HOST] == max(sum(without) - without[HOST], floor * US)


def test_a_step_is_padded_to_the_next_size_and_attention_is_not():
    small = system("graph.mode=full-and-piecewise", "graph.capture_sizes=16,64")
    four, five, sixteen = steps_ns(small, (0, 0, 4, 100), (0, 0, 5, 100), (0, 0, 16, 100))
    assert four[LINEAR] < sixteen[LINEAR] + 1
    linear = {n: steps_ns(system("graph.mode=none"), (0, 0, n, 100))[0][LINEAR] for n in (4, 16)}
    head = linear[16] - sixteen[LINEAR]
    assert head == 0
    assert four[LINEAR] > linear[4] or linear[4] == linear[16]
    assert graphs_of(small).sizes == (16, 64)
    assert five[DECODE_ATTENTION] < sixteen[DECODE_ATTENTION]  # decode attention by real lengths


def test_sizes_of_the_engines():
    ascend = configure("chat", changes=[("--preset", "preset=vllm-ascend"), ("--device", "device=ascend-910b")])
    closed = build_system(ascend.config)
    assert closed.config["block_tokens"] == 128
    places = closed.config["scheduler.max_num_seqs"]
    assert graphs_of(closed).sizes[-1] == min(places, 512)
    vllm = build_system(configure("chat", changes=[("--set", "scheduler.max_num_seqs=64")]).config)
    assert graphs_of(vllm).sizes[-1] == 128  # twice the sequences
    assert graphs_of(vllm).mixed
    sglang = build_system(configure("chat", changes=[("--preset", "preset=sglang")]).config)
    assert not graphs_of(sglang).mixed


def test_memory_of_graphs_comes_out_of_the_kv():
    blocks = {mode: system(f"graph.mode={mode}").budget.num_blocks for mode in MODES}
    assert (
        blocks["none"] > blocks["piecewise"] == blocks["full-decode"] > blocks["auto"] == blocks["full-and-piecewise"]
    )
    own = graphs_of(system()).sizes
    freed = (blocks["none"] - blocks["auto"]) * system().budget.block_bytes
    assert freed == pytest.approx(2 * len(own) * 8 * 2**20, rel=0.01)
    few = system("graph.capture_sizes=1,2").budget.num_blocks
    assert blocks["auto"] < few < blocks["none"]


def test_what_overlap_hides_and_what_not():
    def itl(*changes: str) -> float:
        given = ("num_prompts=20", "arrivals.rate=4", "lengths.output=30", *changes)
        record = run(configure("chat", changes=[("--set", text) for text in given])).record
        return float(record.summary.latencies["itl"].p50)

    for overlap in ("true", "false"):
        on = f"overlap={overlap}"
        plain = itl(on)
        assert itl(on, "sync.sampling_us=700", "sync.logits_us=300") == pytest.approx(plain + 1, abs=0.05)
        hidden = itl(on, "sync.block_tables_us=1000") - plain
        assert hidden == pytest.approx(0 if overlap == "true" else 1, abs=0.05)


def test_wrong_sizes_are_one_line(capsys):
    assert GraphSettings(capture_sizes="8,1,,8").sizes == (1, 8)
    for text in ("a", "0", "1;2"):
        assert call(["config", "chat", "--set", f"graph.capture_sizes={text}"]) == 2
    assert call(["config", "chat", "--set", "graph.mode=half"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
