"""What a report is made of: a run described in words and numbers. `bench` fills it in, nothing here runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..metrics.latency import Summary

SCHEMA = 1
"""Of every file; rises when a column or key changes its meaning."""


@dataclass(frozen=True)
class MemoryLine:
    """One line of the memory budget, per device."""

    name: str
    num_bytes: int
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the report that only some runs have.

    name      its key in run.json
    text      as the table shows it
    figures   for run.json: plain dicts, lists and numbers
    files     name -> text of files beside the others
    """

    name: str
    text: str
    figures: Mapping[str, Any]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """The identity of a run, as heads of tables and rows of summary.csv name it.

    run           scenario or trace, without folder and suffix
    engine        "vLLM 0.33"
    step_times    where the step times come from
    step_error    what predictions from them have been off by, or that nothing is known
    parallelism   "tp 1"
    path          how the engine ran: "step" or "calendar"
    fingerprint   sha256 of the workload
    notes         what was done to the input, one line each
    measured      measured clock: (name, text) of what was measured beside latencies
    copy_on_write, allocation   rules of the cache that the table shows more of
    slo           bounds of the goodput, as --goodput takes them
    complete      False when the run was interrupted
    sections      what only some runs have
    """

    run: str
    fingerprint: str
    clock: str
    cache_state: str
    cache_kind: str
    preset: str
    engine: str
    batching: str
    overlap: bool
    overlap_default: bool
    model: str
    dtype: str
    kv_dtype: str
    parallelism: str
    device: str
    step_times: str
    block_tokens: int
    seed: int
    machine: str
    path: str
    memory: tuple[MemoryLine, ...]
    notes: tuple[str, ...]
    complete: bool
    summary: Summary
    copy_on_write: bool = False
    allocation: str = "paged"
    slo: str = ""
    measured: tuple[tuple[str, str], ...] = ()
    step_error: str = ""
    sections: tuple[Section, ...] = ()
