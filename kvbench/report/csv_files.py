"""requests.csv, summary.csv, itl.csv and steps.csv: tidy, one header row, the same bytes for the same run.

Written from integers, without pandas: its import alone takes a quarter of a short run. Times are ns in the
journal and ms with 6 decimals here, so no digit is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from ..core.journal import NEVER, STATUS_NAMES, STEP_COLUMNS, Journal
from ..core.printable import csv_text
from ..core.requests import NONE, Requests
from ..core.units import NS_PER_MS
from ..metrics.latency import LATENCIES, included, sequence_times
from ..metrics.percentiles import percentiles
from .record import SCHEMA, RunRecord

I64 = NDArray[np.int64]

REQUEST_COLUMNS = (
    "request_id,session_id,turn,sample,tenant,namespace,priority,phase,status,arrival_ms,queue_ms,ttft_ms,"
    "tpot_ms,e2el_ms,prompt_tokens,cached_tokens,output_tokens,recomputed_tokens,preemptions"
)
SUMMARY_COLUMNS = (
    "run,fingerprint,schema,clock,cache_state,preset,model,device,machine,seed,metric,unit,mean,p50,p90,p99,"
    "p99_low,p99_high,n,p50_low,p50_high,p90_low,p90_high"
)

ITL_COLUMNS = "percentile,itl_ms"
ITL_PERCENTILES = (
    *range(100),
    *(round(100 - digit * 10.0**-power, power) for power in range(1, 5) for digit in range(9, 0, -1)),
    100,
)
"""0, 1 .. 99, 99.1 .. 99.9, 99.91 .. 99.9999 and 100."""

ROWS_AT_ONCE = 1 << 16
"""Rows held as text at once: bounds the memory of a run of millions."""


def requests_csv(journal: Journal, requests: Requests) -> Iterator[str]:
    """A row per sequence, in order of request, then sample. Empty: it does not exist."""
    yield (
        ",".join([REQUEST_COLUMNS, *(f"time_{part}_ms" for part in journal.part_names), *_own_columns(journal)]) + "\n"
    )
    times = sequence_times(journal)
    for start in range(0, journal.status.size, ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        request = journal.request_index[part]
        in_session = requests.session_id[request] != NONE
        yield _rows(
            [
                _integers(request),
                _integers(requests.session_id[request], in_session),
                _integers(requests.turn[request], in_session),
                _integers(journal.sample[part]),
                _names(requests.tenant[request], requests.tenants),
                _names(requests.namespace[request], requests.namespaces),
                _integers(requests.priority[request]),
                _names(requests.phase[request], requests.phases),
                _names(journal.status[part], STATUS_NAMES),
                _milliseconds(journal.arrival_ns[part]),
                _milliseconds(times.queue_ns[part]),
                _milliseconds(times.ttft_ns[part]),
                _milliseconds(times.tpot_ns[part]),
                _milliseconds(times.e2el_ns[part]),
                _integers(requests.prompt_tokens[request]),
                _integers(journal.cached_tokens[part]),
                _integers(journal.output_tokens[part]),
                _integers(journal.recomputed_tokens[part]),
                _integers(journal.preemptions[part]),
                *_parts(journal, part),
                *(_own(name, values[part]) for name, values in journal.columns.items()),
            ]
        )


def _parts(journal: Journal, part: slice) -> list[list[str]]:
    """Where the time went, a column each; empty where the engine does not tell."""
    if journal.parts_ns.shape[0] == journal.status.size:
        return [_milliseconds(column) for column in journal.parts_ns[part].T]
    return [[""] * journal.status[part].size for _ in journal.part_names]


def _own_columns(journal: Journal) -> list[str]:
    """Names of what only such runs have."""
    return [name.removesuffix("_ns") + "_ms" if name.endswith("_ns") else name for name in journal.columns]


def _own(name: str, values: I64) -> list[str]:
    return _milliseconds(values) if name.endswith("_ns") else _integers(values, values != NEVER)


def steps_csv(journal: Journal) -> Iterator[str]:
    """A row per step: the columns of the journal, its times in ms, and of a fleet the engine, one after another."""
    names, several = [name.replace("_ns", "_ms") for name in STEP_COLUMNS], journal.step_engine.size > 0
    yield ",".join([*names, *(["engine"] if several else [])]) + "\n"
    for start in range(0, journal.steps.shape[0], ROWS_AT_ONCE):
        part = journal.steps[start : start + ROWS_AT_ONCE].T
        yield _rows(
            [
                _milliseconds(column) if name.endswith("_ns") else _integers(column)
                for name, column in zip(STEP_COLUMNS, part, strict=True)
            ]
            + ([_integers(journal.step_engine[start : start + ROWS_AT_ONCE])] if several else [])
        )


def itl_csv(journal: Journal, requests: Requests) -> Iterator[str]:
    """The distribution of gaps between tokens, pooled over sequences: a row per percentile, as far as samples reach."""
    journal = included(journal, requests)
    n = int(journal.itl_count.sum())
    reached = [percent for percent in ITL_PERCENTILES if percent in (0, 100) or n * (1 - percent / 100) >= 1]
    found = percentiles(journal.itl_gap_ns, journal.itl_count, reached)
    yield ITL_COLUMNS + "\n"
    for percent, gap_ns in zip(reached, found, strict=False):
        yield f"{percent:.6g},{gap_ns / NS_PER_MS:.6f}\n"


def summary_csv(record: RunRecord) -> Iterator[str]:
    """A row per metric. Latencies fill every column, a scalar only `mean`."""
    yield SUMMARY_COLUMNS + "\n"
    identity = [
        record.run,
        record.fingerprint,
        str(SCHEMA),
        record.clock,
        record.cache_state,
        record.preset,
        record.model,
        record.device,
        record.machine,
        str(record.seed),
    ]
    head = ",".join(csv_text(cell) for cell in identity)
    for name in LATENCIES:
        cells = ",".join(map(csv_number, astuple(record.summary.latencies[name])))
        yield f"{head},{name},ms,{cells}\n"
    for name, (value, unit) in record.summary.scalars.items():
        yield f"{head},{name},{csv_text(unit)},{csv_number(value)},,,,,,,,,,\n"


def _rows(columns: Sequence[Sequence[str]]) -> str:
    return "\n".join(map(",".join, zip(*columns, strict=True))) + "\n"


def _integers(values: I64, exists: NDArray[np.bool_] | None = None) -> list[str]:
    text = list(map(str, values.tolist()))
    if exists is None or exists.all():
        return text
    return [cell if there else "" for cell, there in zip(text, exists.tolist(), strict=True)]


def _milliseconds(values_ns: I64) -> list[str]:
    whole, rest = np.divmod(values_ns, NS_PER_MS)
    text = [f"{ms}.{ns:06d}" for ms, ns in zip(whole.tolist(), rest.tolist(), strict=True)]
    for i in np.flatnonzero(values_ns == NEVER).tolist():
        text[i] = ""
    return text


def _names(values: I64, names: Iterable[str]) -> list[str]:
    quoted = [csv_text(name) for name in names]
    return [quoted[i] for i in values.tolist()]


def csv_number(value: float | int | None) -> str:
    """A cell: whole numbers as they are, others with 6 digits after the point; empty: it does not exist."""
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.6f}"
