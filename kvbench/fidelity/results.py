"""What a user's own server did, request by request, from the files that benchmark tools and gateways leave.

    vllm bench serve --save-result --save-detailed    one JSON object: input_lens, output_lens, ttfts, itls, start_times
    sglang.bench_serving --output-details             JSON Lines of the same, a line a run
    AIPerf                                            profile_export.jsonl: a line a request, metadata and metrics
    LiteLLM                                           JSON Lines: startTime, completionStartTime, endTime, ..._tokens
    kvbench run -o                                    requests.csv
    LLMServingSim                                     a folder with vllm/requests.jsonl and vllm/meta.json

A file without start times holds a closed loop, whose client is replayed, or a burst; with a rate it is of no use.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from .server_runs import arrivals_s, is_server_run, read_server_run, read_times

F64 = NDArray[np.float64]
Row = Mapping[str, Any]

_LONGER = 1.5
"""Times as long as the benchmark: more is no rounding."""
_OTHER_RATE = 10.0
"""Times as many or as few requests a second: more is no chance, nor a ramp."""
_ENOUGH = 20
"""Requests, to tell."""


@dataclass(frozen=True)
class Served:
    """n requests in order of arrival; times in s.

    arrival   (n,) from the first on; all 0 where the client's slots decide
    output    (n,) tokens that were produced, >= 1
    ttft, e2el   (n,) from the arrival
    slots     of a closed loop whose start times are not known; 0: the arrivals hold
    left_out  requests that failed, or of a warm-up: they are not here
    model     as the file names it; "": it does not
    """

    name: str
    tool: str
    arrival: F64
    prompt: F64
    output: F64
    ttft: F64
    e2el: F64
    slots: int = 0
    left_out: int = 0
    model: str = ""

    def __len__(self) -> int:
        return int(self.arrival.size)

    @property
    def tpot(self) -> F64:
        """(n,) NaN where only one token came."""
        gaps = self.output - 1
        return np.where(gaps > 0, (self.e2el - self.ttft) / np.maximum(gaps, 1), np.nan)


def read_served(path: Path) -> list[Served]:
    """The runs of one file or folder. UsageError: none of these forms, or without what a fit needs."""
    if path.is_dir():
        if not is_server_run(path):
            raise UsageError(f"{path}: a folder without vllm/requests.jsonl and vllm/meta.json; name a result file")
        return [_server_run(path)]
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from None
    if path.suffix == ".csv":
        return [_requests_csv(path, text)]
    rows = _json_rows(path, text)
    first = rows[0]
    if "input_lens" in first or "ttfts" in first or "mean_ttft_ms" in first:
        return [_bench(path, row, len(rows), i) for i, row in enumerate(rows)]
    if "metadata" in first and "metrics" in first:
        return [_of_rows(path, "AIPerf", rows, _aiperf)]
    if "startTime" in first:
        return [_of_rows(path, "LiteLLM", rows, _litellm)]
    raise UsageError(
        f"{path}: no result of vllm bench serve, sglang.bench_serving, AIPerf, LiteLLM or kvbench: it has the keys "
        f"{', '.join(list(first)[:5])}"
    )


def _json_rows(path: Path, text: str) -> list[dict[str, Any]]:
    """One JSON value, a list of them, or lines."""
    try:
        whole = json.loads(text)
        rows = whole if isinstance(whole, list) else [whole]
    except ValueError:
        rows = []
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise UsageError(f"{path}:{number}: not JSON: {error}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise UsageError(f"{path}: holds no JSON object")
    return rows


# ---------------------------------------------------------------- the forms


def _bench(path: Path, row: Row, of: int, index: int) -> Served:
    """A run of vLLM's or SGLang's benchmark: lists by request."""
    name = path.name if of == 1 else f"{path.name}, run {index + 1}"
    option = "--save-detailed (vllm) or --output-details (sglang)"
    for key in ("input_lens", "output_lens", "ttfts", "itls"):
        if not isinstance(row.get(key), list):
            raise UsageError(f"{name}: has no {key} by request; run the benchmark with {option}")
    columns = [_numbers(row[key], name, key) for key in ("input_lens", "output_lens", "ttfts")]
    spread = np.array([math.fsum(gaps) for gaps in row["itls"]])
    starts = row.get("start_times")
    slots = int(row.get("max_concurrency") or 0)
    rate = row.get("request_rate", "inf")
    if starts is None and str(rate) not in ("inf", "Infinity", "None"):
        raise UsageError(f"{name}: requests came at {rate}/s and their start times are not in it; a fit needs them")
    arrival = np.zeros(columns[0].size) if starts is None else _numbers(starts, name, "start_times")
    sizes = {column.size for column in (*columns, spread, arrival)}
    if len(sizes) > 1:
        raise UsageError(f"{name}: its lists have different lengths: {sorted(sizes)}")
    prompt, output, ttft = columns
    kept = (ttft > 0) & (output > 0) & (prompt > 0)
    tool = "sglang.bench_serving" if "sglang" in str(row.get("backend", "")) else "vllm bench serve"
    served = Served(
        name, tool, arrival, prompt, output, ttft, ttft + spread, slots if starts is None else 0,
        model=str(row.get("model_id") or ""),
    )  # fmt: skip
    cleaned = _cleaned(served, kept)
    _check_units(row, cleaned)
    return cleaned


def _check_units(row: Row, served: Served) -> None:
    """UsageError: its requests took longer than the whole benchmark, or came at another rate than it says."""
    duration, rate = _number(row.get("duration")), _number(row.get("request_rate"))
    if duration:
        took = float((served.arrival + served.e2el).max())
        if took > _LONGER * duration:
            raise UsageError(
                f"{served.name}: its requests take {took:,.0f} s by start_times, ttfts and itls, and its duration says "
                f"{duration:,.0f} s: give times in s"
            )
    span = float(served.arrival.max())
    if rate and span > 0 and len(served) >= _ENOUGH:
        came = len(served) / span
        if not rate / _OTHER_RATE < came < rate * _OTHER_RATE:
            raise UsageError(
                f"{served.name}: {came:.3g} requests came a second by start_times, and its request_rate says "
                f"{rate:.3g}: give times in s"
            )


def _number(value: Any) -> float:
    """0: it is no number that says something."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if known else 0.0


def _aiperf(row: Row) -> list[float] | None:
    """arrival, prompt, output, TTFT, E2EL in s; None: it warmed up, or failed."""
    meta, metrics = row["metadata"], row["metrics"]
    if meta.get("benchmark_phase", "profiling") != "profiling" or row.get("error"):
        return None
    return [
        float(meta["request_start_ns"]) / 1e9,
        _metric(metrics, "input_sequence_length"),
        _metric(metrics, "output_sequence_length"),
        _metric(metrics, "time_to_first_token"),
        _metric(metrics, "request_latency"),
    ]


def _metric(metrics: Row, name: str) -> float:
    found = metrics[name]
    factor = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3}.get(str(found.get("unit", "")), 1.0)
    return float(found["value"]) * factor


def _litellm(row: Row) -> list[float] | None:
    if str(row.get("status", "success")) != "success" or "completionStartTime" not in row:
        return None
    start, first, end = (float(row[key]) for key in ("startTime", "completionStartTime", "endTime"))
    return [start, float(row["prompt_tokens"]), float(row["completion_tokens"]), first - start, end - start]


def _of_rows(path: Path, tool: str, rows: Sequence[Row], read: Callable[[Row], list[float] | None]) -> Served:
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(read(row))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}:{number}: not a request of {tool} with its times ({error})") from None
    table = np.array([values for values in found if values is not None]).reshape(-1, 5)
    if table.size == 0:
        needs = "; its log needs completionStartTime (streaming)" if tool == "LiteLLM" else ""
        raise UsageError(f"{path}: no request of {tool} in it has a time to first token{needs}")
    arrival, prompt, output, ttft, e2el = table.T
    served = Served(path.name, tool, arrival, prompt, output, ttft, e2el, left_out=len(found) - len(table))
    return _cleaned(served, np.all(table > 0, axis=1))


def _requests_csv(path: Path, text: str) -> Served:
    rows = list(csv.DictReader(io.StringIO(text)))
    needed = ("arrival_ms", "prompt_tokens", "output_tokens", "ttft_ms", "e2el_ms", "status")
    missing = [name for name in needed if not rows or name not in rows[0]]
    if missing:
        raise UsageError(f"{path}: no requests.csv of kvbench: it has no column {missing[0]}")

    def read(row: Row) -> list[float] | None:
        if row["status"] != "finished":
            return None
        arrival, prompt, output, ttft, e2el = (float(row[name]) for name in needed[:-1])
        return [arrival / 1e3 + 1e-9, prompt, output, ttft / 1e3, e2el / 1e3]

    return _of_rows(path, "kvbench", rows, read)


def _server_run(path: Path) -> Served:
    """As a client would have seen it: from the arrival, not from the engine's stamp."""
    times = read_times(read_server_run(path))
    arrival = arrivals_s(times)
    start = times["arrival_time"] + (times["queued_ts"] - times["arrival_time"]).min()
    ttft, e2el = times["first_token_ts"] - start, times["last_token_ts"] - start
    served = Served(path.name, "vLLM", arrival, times["input_toks"], times["output_toks"], ttft, e2el)
    return _cleaned(served, times["output_toks"] > 0)


def _cleaned(served: Served, kept: NDArray[np.bool_] | np.bool_) -> Served:
    """Those kept, in order of arrival, which counts from the first."""
    if not kept.any():
        raise UsageError(f"{served.name}: holds no request that finished with a time to first token")
    order = np.flatnonzero(kept)[np.argsort(served.arrival[kept], kind="stable")]
    columns = {name: getattr(served, name)[order] for name in ("arrival", "prompt", "output", "ttft", "e2el")}
    columns["arrival"] = columns["arrival"] - columns["arrival"].min()
    left_out = served.left_out + int((~kept).sum())
    return replace(served, **columns, left_out=left_out)


def _numbers(values: Any, name: str, key: str) -> F64:
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: {key} is no list of numbers") from None
