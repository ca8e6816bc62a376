"""Runs of a server: a folder in LLMServingSim's layout.

    vllm/requests.jsonl   input_toks, output_toks, arrival_time (the client's clock), and of one monotonic clock
                          queued_ts, first_token_ts, last_token_ts; all in s
    vllm/meta.json        model, vllm_version, engine_kwargs, kv_cache and hardware where they are known
    config.json           hardware, where meta.json has none; link_bw, GB/s between the devices of that machine
    profile/              step times of that machine (`kvbench device build --profile` reads it)

The engine stamps queued_ts when it looks into its inbox, which it does between steps: later than the arrival by up to
a step. So arrivals are replayed at the client's times, shifted by the smallest delay of all, and TTFT is counted from
the same stamp on both sides.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.journal import FINISHED, STEP_COLUMNS, Journal
from ..core.requests import Requests
from ..workload.formats.llmservingsim import read
from ..workload.options import TraceOptions
from ..workload.source import Source, Trace
from .truth import Figures, Server, ServerRun

F64 = NDArray[np.float64]

STATISTICS = {"mean": None, "p50": 50.0, "p90": 90.0, "p99": 99.0}
_COLUMNS = ("input_toks", "output_toks", "arrival_time", "queued_ts", "first_token_ts", "last_token_ts")


def is_server_run(folder: Path) -> bool:
    """Whether the folder holds one."""
    return (folder / "vllm" / "requests.jsonl").is_file() and (folder / "vllm" / "meta.json").is_file()


def read_server_run(folder: Path) -> ServerRun:
    """UsageError: a file that is not what it should be."""
    meta = _json(folder / "vllm" / "meta.json")
    arguments = meta.get("engine_kwargs", {})
    cache = meta.get("kv_cache") or {}
    resolved = meta.get("resolved_config", {}).get("scheduler_config", {})
    server = Server(
        engine="vllm",
        version=str(meta.get("vllm_version", "")),
        model=str(meta.get("model") or arguments.get("model", "")),
        system=_hardware(folder, meta),
        dtype={"bfloat16": "bf16", "float16": "fp16"}.get(str(arguments.get("dtype")), str(arguments.get("dtype"))),
        tp=int(arguments.get("tensor_parallel_size") or 1),
        dp=int(arguments.get("data_parallel_size") or 1),
        ep=_devices(arguments) if arguments.get("enable_expert_parallel") else 1,
    )
    return ServerRun(
        name=folder.name,
        source=folder.name,
        server=server,
        folder=folder,
        arguments={**arguments, "enable_prefix_caching": cache.get("enable_prefix_caching", True)},
        kv_blocks=int(cache.get("num_gpu_blocks") or 0),
        block_tokens=int(cache.get("block_size") or 16),
        overlap=bool(resolved.get("async_scheduling", True)),
        link_gbs=_link_gbs(folder),
    )


def _devices(arguments: dict[str, Any]) -> int:
    """Of an instance: experts are spread over all of them."""
    return int(arguments.get("tensor_parallel_size") or 1) * int(arguments.get("data_parallel_size") or 1)


def read_times(run: ServerRun) -> dict[str, F64]:
    """Column -> (requests,) in order of arrival. UsageError: a row without one of them."""
    path = run.folder / "vllm" / "requests.jsonl"
    rows = []
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(text)
            rows.append([float(row[name]) for name in _COLUMNS])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path}:{line}: not a request with its times ({error})") from None
    if not rows:
        raise UsageError(f"{path}: holds no request")
    table = np.array(rows)
    table = table[np.argsort(table[:, _COLUMNS.index("arrival_time")], kind="stable")]
    return dict(zip(_COLUMNS, table.T, strict=True))


def measured_figures(times: dict[str, F64]) -> Figures:
    """TTFT and E2EL from queued_ts, TPOT, in ms."""
    first, last, queued = times["first_token_ts"], times["last_token_ts"], times["queued_ts"]
    gaps = times["output_toks"] - 1
    return figures(first - queued, last - queued, (last - first)[gaps > 0] / gaps[gaps > 0])


def figures(ttft: F64, e2el: F64, tpot: F64) -> Figures:
    """Mean and percentiles in ms of times in s."""
    found = {}
    for metric, values in (("ttft", ttft), ("tpot", tpot), ("e2el", e2el)):
        for statistic, p in STATISTICS.items():
            value = values.mean() if p is None else np.percentile(values, p)
            found[metric, statistic] = float(value) * 1e3
    return found


def arrivals_s(times: dict[str, F64]) -> F64:
    """(requests,) the client's times on the engine's clock, from the first on."""
    lag = times["queued_ts"] - times["arrival_time"]
    arrival = times["arrival_time"] + lag.min()
    return np.asarray(arrival - arrival.min(), np.float64)


def replayed(times: dict[str, F64], name: str) -> Requests:
    """The same requests, to be sent again. Their texts are not known, so they share nothing."""
    lines = [
        json.dumps({"input_toks": int(prompt), "output_toks": int(output), "arrival_time_ns": round(at * 1e9)})
        for prompt, output, at in zip(times["input_toks"], times["output_toks"], arrivals_s(times), strict=True)
    ]
    return read(Trace(name, (Source(name, "\n".join(lines).encode()),)), TraceOptions())


def predicted_figures(journal: Journal) -> Figures:
    """The same figures of a run that recorded its steps. UsageError: not all requests finished."""
    if (journal.status != FINISHED).any():
        raise UsageError(f"{int((journal.status != FINISHED).sum())} requests did not finish in the replay")
    seen = inbox_ns(journal)
    gaps = journal.output_tokens - 1
    spread = (journal.finish_ns - journal.first_token_ns)[gaps > 0] / gaps[gaps > 0]
    return figures((journal.first_token_ns - seen) / 1e9, (journal.finish_ns - seen) / 1e9, spread / 1e9)


def inbox_ns(journal: Journal) -> NDArray[np.int64]:
    """(requests,) when the engine looked into its inbox and found the request: at the end of the step that ran.

    Replicas in lockstep have one row each for a step; any of them says when it was.
    """
    steps = journal.steps[np.argsort(journal.steps[:, STEP_COLUMNS.index("start_ns")], kind="stable")]
    start = steps[:, STEP_COLUMNS.index("start_ns")]
    end = start + steps[:, STEP_COLUMNS.index("duration_ns")]
    step = np.maximum(np.searchsorted(start, journal.queued_ns, side="right") - 1, 0)
    inside = (journal.queued_ns >= start[step]) & (journal.queued_ns < end[step])
    return np.where(inside, np.minimum(end[step], journal.scheduled_ns), journal.queued_ns)


def _hardware(folder: Path, meta: dict[str, Any]) -> str:
    named = (meta.get("hardware") or {}).get("device_name")
    if named:
        return str(named)
    try:
        return str(_json(folder / "config.json")["nodes"][0]["instances"][0]["hardware"])
    except (UsageError, KeyError, IndexError, TypeError):
        raise UsageError("neither meta.json nor config.json names the hardware") from None


def _link_gbs(folder: Path) -> float:
    """0: not stated. Its link_latency is not read: it was timed call by call, and a captured graph pays less."""
    path = folder / "config.json"
    stated = _json(path).get("link_bw", 0.0) if path.is_file() else 0.0
    if isinstance(stated, bool) or not isinstance(stated, int | float) or not 0.0 <= stated < 1e6:
        raise UsageError(f"config.json: link_bw is a bandwidth in GB/s, not {stated!r}")
    return float(stated)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path.name}: cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{path.name}: no JSON object")
    return found
