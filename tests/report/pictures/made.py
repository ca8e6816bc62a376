"""Folders of runs by hand, as `kvbench run -o` would write them, without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvbench.core.journal import FINISHED, PARTS, STEP_COLUMNS, Journal
from kvbench.core.requests import NONE, Requests
from kvbench.metrics.latency import summarise
from kvbench.report.record import RunRecord
from kvbench.report.result_files import write_result
from kvbench.report.run_json import run_document

from ...runs import MS, counters, record, requests

CONFIG = {"arrivals": {"rate": 8.0}, "cache": {"blocks": 100}, "slo": {"ttft": 30.0, "tpot": 0.0, "e2el": 0.0}}


def many_requests(n: int) -> Requests:
    ones = np.ones(n, np.int64)
    return requests(
        arrival_ns=np.arange(n) * 5 * MS,
        prompt_tokens=100 * ones,
        output_tokens=4 * ones,
        max_tokens=4 * ones,
        samples=ones,
        session_id=NONE * ones,
        turn=0 * ones,
        after=NONE * ones,
        think_ns=0 * ones,
        tenant=0 * ones,
        namespace=0 * ones,
        priority=0 * ones,
        phase=0 * ones,
        cancel_ns=NONE * ones,
        output_stream=1000 + np.arange(n),
        output_start=0 * ones,
        segment_offset=np.arange(n + 1),
        segment_stream=np.arange(n),
        segment_start=0 * ones,
        segment_length=100 * ones,
    )


def many_rows(n: int, slow: int = 1, steps: bool = True, **changed: Any) -> Journal:
    """n sequences that finish, every tenth with a wait of 40 ms, every twentieth preempted; times are `slow` fold."""
    i = np.arange(n)
    arrival = i * 5 * MS
    parts = np.zeros((n, len(PARTS)), np.int64)
    parts[:, PARTS.index("tokenize")] = MS
    parts[:, PARTS.index("queue")] = np.where(i % 10 == 9, 40, 1) * MS * slow
    parts[:, PARTS.index("prefill")] = (5 + i % 7) * MS * slow
    parts[:, PARTS.index("decode")] = 30 * MS * slow
    parts[:, PARTS.index("stall")] = (i % 5) * MS * slow
    parts[:, PARTS.index("preempted")] = np.where(i % 20 == 19, 10, 0) * MS * slow
    ends = np.cumsum(parts, axis=1) + arrival[:, None]
    rows = np.zeros((2 * n if steps else 0, len(STEP_COLUMNS)), np.int64)
    if steps:
        k = np.arange(2 * n)
        values = [
            k * 3 * MS,
            0 * k + 2 * MS,
            k % 9,
            k % 4 == 0,
            100 * (k % 4 == 0),
            k % 9 + 1,
            k % 6,
            20 + k % 50,
            k % 30,
        ]
        rows[:, :9] = np.stack(values, axis=1)
        rows[:, STEP_COLUMNS.index("preempted")] = k % 40 == 39
        rows[:, STEP_COLUMNS.index("evicted_blocks")] = np.where(k % 25 == 24, 3, 0)
    fields: dict[str, Any] = {
        "request_index": i,
        "sample": 0 * i,
        "status": np.full(n, FINISHED),
        "arrival_ns": arrival,
        "queued_ns": ends[:, 0],
        "scheduled_ns": ends[:, 1],
        "first_token_ns": ends[:, 2],
        "finish_ns": ends[:, -1],
        "cached_tokens": np.where(i > n // 2, 64, 0),
        "output_tokens": 0 * i + 4,
        "recomputed_tokens": 0 * i,
        "preemptions": np.where(i % 20 == 19, 1, 0),
        "itl_gap_ns": np.arange(3 * n) % 11 * MS + MS,
        "itl_count": np.ones(3 * n, np.int64),
        "steps": rows,
        "parts_ns": parts,
    }
    return Journal(**{**fields, **changed})


def write_run(
    folder: Path, n: int = 400, slow: int = 1, steps: bool = True, config: dict[str, Any] | None = None, **changed: Any
) -> Path:
    """The files of one run; `changed` fields of its record."""
    write_rows(folder, many_rows(n, slow, steps), many_requests(n), config, steps, **changed)
    return folder


def write_rows(
    folder: Path, journal: Journal, table: Requests, config: dict[str, Any] | None, steps: bool, **changed: Any
) -> None:
    """The files of any rows."""
    folder.mkdir(parents=True)
    found: RunRecord = record(summary=summarise(journal, table, counters()), **changed)
    document = run_document(found, {"config": {**CONFIG, **(config or {})}, "given": {}})
    write_result(folder, found, document, journal, table, steps)


def write_rates(folder: Path) -> Path:
    """A grid over the rate: a folder per point."""
    for i, rate in enumerate((4.0, 8.0, 16.0)):
        write_run(folder / f"00{i}-rate", 100, 1 + i, False, {"arrivals": {"rate": rate}}, run="rates")
    return folder


HIT = "hit_rate_tokens"
CURVE = f"""run,cache.blocks,cache.eviction,requests,{HIT},{HIT}_infinite,{HIT}_optimum,error
t,100,lru,9,0.100000,0.800000,0.300000,
t,100,fifo,9,0.050000,0.800000,0.300000,
t,1000,lru,9,0.500000,0.800000,0.700000,
t,1000,fifo,9,0.400000,0.800000,0.700000,
t,10000,lru,9,0.800000,0.800000,0.800000,
t,10000,fifo,9,,,,it cannot
"""


FIDELITY = """name,kind,engine,model,device,metric,statistic,measured_ms,predicted_ms,error
a,deployment,vllm 0.12,m,h100,ttft,mean,100.0,120.0,0.2
b,deployment,vllm 0.12,m,h100,ttft,mean,400.0,300.0,-0.25
a,deployment,vllm 0.12,m,h100,tpot,mean,10.0,11.0,0.1
"""


def write_fidelity(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "fidelity.csv").write_text(FIDELITY)
    return folder


def write_curve(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "grid.csv").write_text(CURVE)
    return folder


def write_advice(folder: Path) -> None:
    """advice.json as `kvbench advise -o` writes it: a stall, one lever that helps and one that hurts."""
    from kvbench.report.advice import BETTER, WORSE, Advice, Effect, LeverLine, SymptomLine, advice_document
    from kvbench.report.run_json import to_text

    def effect(after: float, verdict: str) -> Effect:
        return Effect("ttft.p99", "ms", 400.0, after, after / 400, after / 440, after / 360, verdict)

    levers = (
        LeverLine("smaller <chunks>", ("scheduler.max_num_batched_tokens=2048",), "nothing", 1.0, "kvbench ab", BETTER,
                  effects=(effect(250.0, BETTER),)),
        LeverLine("KV in 8 bits", ("kv_dtype=fp8",), "quality", 1.0, "kvbench ab", WORSE,
                  effects=(effect(500.0, WORSE),), worse=("TTFT p99 +25.0 %",)),
    )  # fmt: skip
    symptom = SymptomLine(
        "prefill-stalls", "long prompts stall those who decode", 0.5, 0.1, 0.4, ("itl",), ("55 % <b>",)
    )
    found = Advice(record(run="chat"), "kvbench advise chat", ("ttft.p99:300",), ("ttft",), None, (symptom,),
                   ("ttft.p99",), levers, (0, 1))  # fmt: skip
    folder.mkdir()
    (folder / "advice.json").write_text(to_text(advice_document(found)))
