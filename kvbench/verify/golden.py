"""Replay recordings of real engines through the product's own code, and say where the two differ.

A stream is replayed up to the first step in which something differs: from there on the two are in different
states, and further differences say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..core.errors import KvbenchError
from .expert_ascend import AscendPolicies
from .expert_moves import ReplicaChoices, TransferPlans
from .expert_placement import Placements
from .expert_timelines import AscendTimeline, SglangTimeline, VllmTimeline
from .hicache import HiCache
from .kv_router import KvRouter, KvRouterHashes
from .lmcache_cpu import LmcacheCpu
from .pull_pair import PullPair
from .push_pair import PushPair
from .recording import Recording, Row, read_recording
from .routers import SglangRouter, SmgRouter, StackRouter, VllmRouter
from .sglang_policy import SglangPolicy
from .sglang_radix import SglangRadix
from .sglang_requests import SglangRequests
from .sglang_scheduler import SglangScheduler
from .stream import Stream
from .vllm_offload import VllmOffload
from .vllm_offload_connector import VllmOffloadConnector
from .vllm_scheduler import VllmScheduler
from .vllm_simple_connector import VllmSimpleConnector
from .vllm_tables import VllmTables

COMPONENTS: dict[str, type[Stream]] = {
    "v1_scheduler": VllmScheduler,
    "v1_kv_cache_manager": VllmTables,
    "scheduler": SglangScheduler,
    "radix_cache": SglangRadix,
    "radix_cache_request_level": SglangRequests,
    "schedule_policy_and_prefill_adder": SglangPolicy,
    "placement": Placements,
    "ascend_policy": AscendPolicies,
    "transfer_plan": TransferPlans,
    "replica_choice": ReplicaChoices,
    "eplb_state": VllmTimeline,
    "eplb_manager": SglangTimeline,
    "eplb_updator": AscendTimeline,
    "pd_nixl_pull": PullPair,
    "pd_queues": PushPair,
    "kv_router": KvRouter,
    "kv_router_hash": KvRouterHashes,
    "hiradix_cache": HiCache,
    "local_cpu_backend": LmcacheCpu,
    "cpu_offload_manager": VllmOffload,
    "offloading_connector": VllmOffloadConnector,
    "simple_cpu_offload_connector": VllmSimpleConnector,
}
"""Component in the header of a recording -> what replays it."""

ROUTER = "router"
ROUTERS: dict[str, type[Stream]] = {kind.ENGINE: kind for kind in (SglangRouter, VllmRouter, SmgRouter, StackRouter)}
"""Engine in the header of a recording of component `router` -> what replays it."""

ABSENT = "(absent)"

T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    """One field of one step. ABSENT where only one side has it."""

    field: str
    recorded: Any
    kvbench: Any


@dataclass(frozen=True)
class Verdict:
    """What became of one stream.

    agreed, steps   steps that agree, and all of them; the summary is no step
    where           line and step of the first difference
    differences     of that step
    unknown         why it was not replayed
    """

    name: str
    engine: str
    steps: int
    agreed: int = 0
    where: str = ""
    differences: tuple[Difference, ...] = ()
    unknown: str = ""

    @property
    def passed(self) -> bool:
        return not self.differences and not self.unknown


def verify_files(
    paths: Sequence[Path], progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Verdict]:
    """A verdict for every recording, in order.

    raises  UsageError: a file that is no whole recording. KvbenchError: one that cannot be replayed
    """
    recordings = [read_recording(path) for path in paths]
    verdicts: list[Verdict] = []
    for recording in recordings:
        progress(len(verdicts), len(recordings))
        verdicts.append(verify(recording))
    progress(len(recordings), len(recordings))
    return verdicts


def verify(recording: Recording) -> Verdict:
    """Replay one stream."""
    header, rows = recording.header, recording.rows
    engine = f"{header['engine']} {header['version']}"
    if unknown := why_unknown(header):
        return Verdict(recording.name, engine, len(rows), unknown=unknown)
    with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
        stream = _guarded(header, _stream, header, rows)
        observed = getattr(stream, "recorded", recorded)
        for number, row in enumerate(rows):
            _check_operation(stream, row)
            found = differences(observed(row), _guarded(row, stream.step, row))
            if found:
                return Verdict(recording.name, engine, len(rows), number, _place(row, number), found)
        found = differences(recording.last, stream.last())
    return Verdict(recording.name, engine, len(rows), len(rows), f"line {recording.last.line}, the summary", found)


def kind_of(header: Row) -> type[Stream] | None:
    """What replays a recording with this header."""
    if header["component"] == ROUTER:
        return ROUTERS.get(header["engine"])
    return COMPONENTS.get(header["component"])


def _stream(header: Row, rows: tuple[Row, ...]) -> Stream:
    kind = kind_of(header)
    assert kind is not None  # why_unknown has looked
    return kind(header, rows)


def why_unknown(header: Row) -> str:
    """Why kvbench cannot replay a stream with this header; "" if it can."""
    kind = kind_of(header)
    if kind is None:
        if header["component"] == ROUTER:
            return f"router {header['engine']} is unknown; known are {', '.join(ROUTERS)}"
        return f"component {header['component']} is unknown; known are {', '.join((*COMPONENTS, ROUTER))}"
    if header["engine"] != kind.ENGINE or header["version"] not in kind.VERSIONS:
        known = f"{kind.ENGINE} {' and '.join(kind.VERSIONS)}"
        return f"{header['engine']} {header['version']} is unknown for {header['component']}; known: {known}"
    for name, value in header["params"].items():
        if name in kind.FIXED and not _is_fixed(value, kind.FIXED[name]):
            if reason := getattr(kind, "NEVER", {}).get(value):
                return f"{name} = {value} is not modelled: {reason}"
            return f"parameter {name} = {value} is not modelled; only {_shown(kind.FIXED[name])} is"
        if name not in kind.FIXED and name not in kind.PARAMS:
            return f"parameter {name} is unknown for {header['component']}"
    return ""


def _is_fixed(value: Any, allowed: Any) -> bool:
    return value in allowed if isinstance(allowed, frozenset) else value == allowed


def _shown(allowed: Any) -> str:
    return " or ".join(sorted(allowed)) if isinstance(allowed, frozenset) else str(allowed)


def _check_operation(stream: Stream, row: Row) -> None:
    known = getattr(stream, "OPERATIONS", None)
    if known is not None and row["op"] not in known:
        raise KvbenchError(f"{row.where}: operation {row['op']} is unknown; known are {', '.join(sorted(known))}")


def _guarded(row: Row, action: Callable[..., T], *arguments: Any) -> T:
    """What a wrong value in a file breaks is reported with its place."""
    try:
        return action(*arguments)
    except KvbenchError:
        raise
    except Exception as error:
        raise KvbenchError(f"{row.where}: cannot be replayed ({type(error).__name__}: {error})") from error


def recorded(row: Row) -> dict[str, Any]:
    """What a row says was observed. An idle step of vLLM has no `out`."""
    idle = row.get("idle", False)
    return {"idle": idle} | (row.get("out", {}) if idle else row["out"])


def _place(row: Row, number: int) -> str:
    if "op" in row and "step" not in row:
        return f"line {row.line}, operation {number} ({row['op']})"
    name = next((name for name in ("step", "t") if name in row), "case")
    return f"line {row.line}, {'tick' if name == 't' else name} {row[name]}"


def differences(recorded: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Fields that are not equal. One that is absent is its default: nothing, none, no."""
    found = []
    for name in dict.fromkeys([*recorded, *got]):
        ours, theirs = got.get(name, ABSENT), recorded.get(name, ABSENT)
        if ours == theirs or (ABSENT in (ours, theirs) and not any(v for v in (ours, theirs) if v != ABSENT)):
            continue
        found.append(Difference(name, theirs, ours))
    return tuple(found)
