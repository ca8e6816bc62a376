"""The CSV files of a small run, byte for byte, and as pandas reads them."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd

from kvbench.core.journal import PARTS, STEP_COLUMNS, no_parts
from kvbench.metrics.latency import summarise
from kvbench.metrics.percentiles import order_statistics
from kvbench.report import csv_files
from kvbench.report.csv_files import requests_csv, steps_csv, summary_csv
from tests.runs import MS, counters, journal, record, requests

REQUESTS = """\
request_id,session_id,turn,sample,tenant,namespace,priority,phase,status,arrival_ms,queue_ms,ttft_ms,\
tpot_ms,e2el_ms,prompt_tokens,cached_tokens,output_tokens,recomputed_tokens,preemptions,\
time_tokenize_ms,time_queue_ms,time_prefill_ms,time_decode_ms,time_stall_ms,time_preempted_ms,time_transfer_ms
0,,,0,default,,0,main,finished,1.000000,1.000000,11.000000,10.000000,41.000000,100,0,4,0,0,,,,,,,
1,7,3,0,"a ""b"", c",,0,main,finished,3.000000,2.000000,22.000000,,22.000000,200,96,1,0,0,,,,,,,
2,,,0,default,,0,main,refused,4.000000,,,,,300,0,0,0,0,,,,,,,
3,,,0,default,,0,main,partial,5.000000,3.000000,,,,400,0,0,17,1,,,,,,,
"""


def test_requests_csv_byte_for_byte():
    assert "".join(requests_csv(journal(), requests())) == REQUESTS


def test_rows_written_in_pieces_are_the_same(monkeypatch):
    monkeypatch.setattr(csv_files, "ROWS_AT_ONCE", 3)
    assert "".join(requests_csv(journal(), requests())) == REQUESTS


def test_pandas_reads_it_without_being_told_how():
    frame = pd.read_csv(io.StringIO(REQUESTS))
    assert frame.shape == (4, 26)
    assert frame.tenant[1] == 'a "b", c'
    assert frame.tpot_ms.isna().tolist() == [False, True, True, True]


def test_every_ns_is_in_the_milliseconds():
    odd = journal(arrival_ns=np.array([1, 3 * MS, 4 * MS, 10**15 + 1], np.int64))
    rows = "".join(requests_csv(odd, requests())).splitlines()
    assert ",0.000001," in rows[1]
    assert ",1000000000.000001," in rows[4]


def test_summary_has_a_row_per_metric():
    frame = pd.read_csv(io.StringIO("".join(summary_csv(record()))), dtype={"fingerprint": str})
    assert list(frame.metric[:5]) == ["ttft", "tpot", "itl", "e2el", "queue"]
    assert set(frame.run) == {"small"}
    assert set(frame.machine) == {"a CPU, 2 threads"}
    by_metric = frame.set_index("metric")
    assert by_metric.loc["ttft", ["mean", "p50", "n"]].tolist() == [16.5, 16.5, 2]
    assert np.isnan(by_metric.loc["ttft", "p99_high"])
    assert by_metric.loc["evicted_blocks", "mean"] == 5
    assert by_metric.loc["hit_rate", "mean"] == round(96 / 700, 6)
    assert frame.loc[5:, "p50":].isna().all(axis=None)


def test_intervals_are_in_the_summary_where_they_exist():
    times = np.arange(1, 101) * MS
    many = {name: np.zeros(100, np.int64) for name in vars(journal())} | {
        "finish_ns": times,
        "first_token_ns": times,
        "itl_gap_ns": times,
        "itl_count": np.ones(100, np.int64),
        "steps": journal().steps,
        "parts_ns": no_parts(),
    }
    one = journal(**many)
    asked = requests(**{name: np.repeat(value[:1], 100) for name, value in vars(requests()).items()
                        if isinstance(value, np.ndarray) and value.size == 4})  # fmt: skip
    text = "".join(summary_csv(record(summary=summarise(one, asked, counters()))))
    row = pd.read_csv(io.StringIO(text)).set_index("metric").loc["ttft"]
    low, high = order_statistics(100, 0.9, 0.05)
    assert (row.p90_low, row.p90_high) == (low, high)
    assert (row.p50_low, row.p50_high) == (40, 61)
    assert row.p99_low == order_statistics(100, 0.99, 0.05)[0]
    assert np.isnan(row.p99_high)


def test_parts_of_the_time_sum_to_the_latency():
    parts = np.array([[1, 0, 10, 20, 5, 4, 1], [0, 2, 20, 0, 0, 0, 0], [-1] * 7, [-1] * 7]) * MS
    parts[2:] = -1
    frame = pd.read_csv(io.StringIO("".join(requests_csv(journal(parts_ns=parts), requests()))))
    columns = [f"time_{part}_ms" for part in PARTS]
    assert (frame[columns].sum(axis=1)[:2] == frame.e2el_ms[:2]).all()
    assert frame.loc[2:, columns].isna().all(axis=None)


def test_steps_have_the_columns_of_the_journal():
    steps = np.arange(2 * len(STEP_COLUMNS), dtype=np.int64).reshape(2, -1)
    lines = "".join(steps_csv(journal(steps=steps))).splitlines()
    assert lines[0].split(",")[:3] == ["start_ms", "duration_ms", "decode_seqs"]
    assert lines[1] == "0.000000,0.000001,2,3,4,5,6,7,8,9,10,11,0.000012"
    assert len(lines) == 3
