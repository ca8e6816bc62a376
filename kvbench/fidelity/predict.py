"""A measured deployment or run -> the configuration that should behave like it -> the same figures, predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ..bench.configure import configure
from ..bench.run import Result, run
from ..core.config import toml_text
from ..core.errors import UsageError
from ..costs.devices import DEVICES
from ..costs.profile import find_profile, link_share, profile_step_times
from ..costs.step_times import save_step_times
from ..report.fidelity import Case, Figure
from .names import known_device, known_model, known_preset
from .server_runs import measured_figures, predicted_figures, read_times, replayed
from .truth import Deployment, Figures, Server, ServerRun

Changes = Sequence[tuple[str, str]]


USUAL_CLIENT = "aiconfigurator-eval"
"""Of tables that do not say what their client did: that of the tool that published them, at the release that knew these
versions of the engines. Others were tried on the scored rows before it (docs/fidelity.md)."""


def predict_deployment(truth: Deployment, client: str, more: Changes = ()) -> Case:
    """Run the closed loop of a deployment. client: a protocol, "" is USUAL_CLIENT. UsageError: nothing known of it."""
    _check_served(truth.server)
    if truth.server.dp > 1 or truth.server.ep > 1:
        raise UsageError("several replicas: a table does not say how its load was spread over them")
    keys = {
        "client.protocol": client or USUAL_CLIENT,
        "lengths.prompt": truth.prompt,
        "lengths.output": truth.output,
        "arrivals.concurrency": truth.concurrency,
        "max_model_len": 0,
        **_generated(truth),
    }
    configured = configure(None, changes=[*_server_changes(truth.server), *_changes(keys), *more])
    result = run(configured)
    latencies = result.record.summary.latencies
    predicted = {(metric, "mean"): latencies[metric].mean or 0.0 for metric in ("ttft", "tpot")}
    return replace(
        _case(truth, "deployment", result, truth.measured, predicted),
        load=f"{truth.prompt}+{truth.output} x {truth.concurrency}",
        client=client or USUAL_CLIENT,
        prompt_tokens=truth.prompt,
        output_tokens=truth.output,
        concurrency=truth.concurrency,
        doubt=truth.doubt,
    )


def _generated(truth: Deployment) -> dict[str, object]:
    """The sizes that AIConfigurator 0.6 gives a server of this load (its rules `vllm.rule` and `sglang.rule`).

    But for SGLang's max_prefill_tokens, prompt + 1,500 there: it admits two prompts of 1,000 tokens a step, and what
    was measured with 448 in flight needs 3.5 (docs/fidelity.md). It stays at the engine's own.
    """
    if truth.server.engine == "sglang":
        return {
            "scheduler.max_running_requests": truth.concurrency,
            "scheduler.enable_mixed_chunk": True,
        }
    return {
        "scheduler.max_num_seqs": truth.concurrency,
        "scheduler.max_num_batched_tokens": truth.prompt + 1500 + truth.concurrency,
    }


def predict_run(truth: ServerRun, more: Changes = ()) -> Case:
    """Send the requests of a run again, at their times. UsageError: kvbench has nothing for it, or they do not end."""
    _check_served(truth.server)
    with profile_changes(truth) as profile:
        return _predicted_run(truth, [*run_changes(truth), *profile, *more])


def _predicted_run(truth: ServerRun, changes: Changes) -> Case:
    configured = configure(None, changes=changes)
    times = read_times(truth)
    result = run(configured, record_steps=True, workload=(replayed(times, truth.name), None))
    case = _case(truth, "run", result, measured_figures(times), predicted_figures(result.journal))
    return replace(case, load=f"{len(result.requests)} requests as they came")


@contextmanager
def profile_changes(truth: ServerRun) -> Iterator[Changes]:
    """The step times of the profile beside a run, as a file that is there until it has been used."""
    folder = truth.folder / "profile"
    if not folder.is_dir():
        yield []
        return
    found, server = find_profile(folder, truth.server.tp, None, None), truth.server
    profile = replace(found, dp=server.dp, ep=server.ep, link_gbs=truth.link_gbs)
    with TemporaryDirectory(prefix="kvbench-profile-") as place:
        path = Path(place) / f"{truth.name}.npz"
        save_step_times(profile_step_times(profile, truth.server.tp), path)
        yield _changes({"step_times": str(path)})


def run_changes(truth: ServerRun) -> Changes:
    """The keys that a run's own files say: server, sizes, KV blocks, overlap, the link between its devices."""
    arguments = truth.arguments
    keys = {
        "scheduler.max_num_seqs": arguments.get("max_num_seqs") or 0,
        "scheduler.max_num_batched_tokens": arguments.get("max_num_batched_tokens") or 0,
        "max_model_len": arguments.get("max_model_len") or 0,
        "cache.blocks": truth.kv_blocks,
        "cache.kind": "hash" if arguments.get("enable_prefix_caching") else "none",
        "block_tokens": truth.block_tokens,
        "overlap": truth.overlap,
        "costs.link_efficiency": link_share(DEVICES[known_device(truth.server.system)], truth.link_gbs),
    }
    return [*_server_changes(truth.server), *_changes(keys)]


def _case(truth: Deployment | ServerRun, kind: str, result: Result, measured: Figures, predicted: Figures) -> Case:
    record = result.record
    return Case(
        name=truth.name,
        kind=kind,
        source=truth.source,
        engine=f"{truth.server.engine} {truth.server.version}".strip(),
        model=record.model,
        device=record.device,
        dtype=record.dtype,
        tp=truth.server.tp,
        step_times=record.step_times,
        figures=tuple(Figure(*name, measured[name], predicted[name]) for name in measured if name in predicted),
        kv_blocks=result.counters.num_blocks,
        notes=_memory_note(result),
    )


def _memory_note(result: Result) -> tuple[str, ...]:
    counters = result.counters
    if counters.preemptions == 0 and counters.used_blocks_peak < 0.97 * counters.num_blocks:
        return ()
    return (
        f"short of memory: {counters.used_blocks_peak:,} of {counters.num_blocks:,} KV blocks in use, "
        f"{counters.preemptions} preemptions; the number of blocks decides this figure",
    )


def _check_served(server: Server) -> None:
    """UsageError: something that no run is made of."""
    if server.pp > 1:
        raise UsageError(f"pipeline of {server.pp} stages: no model of it here")


def _server_changes(server: Server) -> list[tuple[str, str]]:
    return _changes(
        {
            "preset": known_preset(server.engine, server.version),
            "model": known_model(server.model),
            "device": known_device(server.system),
            "dtype": server.dtype,
            "tp": server.tp,
            "dp": server.dp,
            "ep": server.ep,
        }
    )


def _changes(keys: dict[str, object]) -> list[tuple[str, str]]:
    return [("validate", f"{name}={toml_text(value)}") for name, value in keys.items()]
