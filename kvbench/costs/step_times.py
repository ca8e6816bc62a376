"""Step times of one device, model and parallelism with what is known about them, and the file that holds both.

Every source ends here: a profile, measured kernels, a fit, a table of steps. `StepTimes` is plain data; `tables` makes
of it what the jitted evaluator reads. A file (.npz) keeps arrays as float32 (ns to seven digits) and one JSON text.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from .axes import Grid, Line
from .classes import fitted
from .deployment import Deployment
from .devices import Device
from .keys import DEFAULTS, CostSettings
from .known_errors import NONE_KNOWN, known_error
from .models import Model
from .tables import (
    LIMIT_NAMES,
    NO_EXPERTS,
    NO_GRAPHS,
    NO_LIMITS,
    UNREAD,
    CostTables,
    ExpertTimes,
    Graphs,
    Overheads,
    build_tables,
)

FORMAT = "kvbench step times 1"
_LINES = ("linear", "communication", "head")
_ONCE = ("prefill_step_ns", "launch_ns", "floor_ns")
_GRIDS = ("prefill", "decode", "mixed")


@dataclass(frozen=True)
class Costs:
    """Tables with what a reader of the results must know about them."""

    tables: CostTables
    source: str
    """One line: where the times come from and how far they are calibrated."""
    missing: tuple[str, ...] = UNREAD
    """Dimensions of the query that do not change the result."""
    notes: tuple[str, ...] = ()
    """One line each on assumptions that hold for this combination only."""
    error: str = NONE_KNOWN
    """What predictions from this source have been off by, and where that was seen."""


@dataclass(frozen=True)
class Origin:
    """What step times hold for, and where they come from.

    kind           roofline, kernels, profile, steps, corrected: what its error is known by (known_errors)
    source         one line: "kernels measured by aiconfigurator-core 0.12.0, vLLM 0.24.0 on h200_sxm"
    model, shape   its name, and its geometry as `shape_of` writes it: this is what has to match
    tp, dp, ep     tensor, data and expert parallel ranks
    engine         "vllm", "sglang"; "" where the times do not depend on it
    licence        of the data
    measured       share of the points that were measured and not estimated; None: not known
    error          what this very source has been off by; "": as its kind
    """

    kind: str
    source: str
    device: Device
    model: str
    shape: str
    dtype: str
    kv_dtype: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    engine: str = ""
    licence: str = ""
    measured: float | None = None
    error: str = ""
    notes: tuple[str, ...] = ()

    @property
    def parallelism(self) -> str:
        """ "tp 2", "tp 1, dp 2, ep 2"."""
        ranks = [("tp", self.tp)] + [(name, n) for name, n in (("dp", self.dp), ("ep", self.ep)) if n > 1]
        return ", ".join(f"{name} {n}" for name, n in ranks)


@dataclass(frozen=True)
class StepTimes:
    """Sampled costs, see CostTables for what each is; host_step_us and host_sequence_us where the source has them."""

    origin: Origin
    linear: Line
    communication: Line
    head: Line
    prefill: Grid
    decode: Grid
    mixed: Grid
    prefill_step_ns: float = 0.0
    launch_ns: float = 0.0
    floor_ns: float = 0.0
    limits: tuple[float, ...] = NO_LIMITS
    host: dict[str, float] = field(default_factory=dict)
    """Keys of `[costs]` (without that prefix) that the source has measured: they replace the preset's."""

    def tables(
        self, settings: CostSettings = DEFAULTS, graphs: Graphs = NO_GRAPHS, experts: ExpertTimes = NO_EXPERTS
    ) -> CostTables:
        """Tables for the evaluator: with the host times of these settings, padded to these graphs."""
        settings = fitted(settings, self.origin.device, self.origin.dtype)
        overheads = Overheads(
            step_ns=settings.step_overhead_us * 1e3,
            sequence_ns=settings.request_overhead_us * 1e3,
            copy_ns_per_byte=2e9 / (self.origin.device.memory_bandwidth * settings.bandwidth_efficiency),
            prefill_step_ns=self.prefill_step_ns,
            launch_ns=self.launch_ns,
            floor_ns=self.floor_ns,
        )
        return build_tables(
            self.linear,
            self.communication,
            self.head,
            self.prefill,
            self.decode,
            overheads,
            mixed=self.mixed,
            graphs=graphs,
            limits=self.limits,
            experts=experts,
        )


@dataclass(frozen=True)
class Wanted:
    """What a configuration says about step times.

    device, step_times   the values of those keys
    engine               "vllm", "sglang": whose kernels
    """

    device: str
    step_times: str
    engine: str
    dp: int = 1
    ep: int = 1


def costs_of(
    times: StepTimes,
    settings: CostSettings,
    graphs: Graphs = NO_GRAPHS,
    experts: ExpertTimes = NO_EXPERTS,
    engine: str = "",
) -> Costs:
    """Tables and what to say of them. engine: that of the run, where the times hold for any."""
    origin = times.origin
    error = known_error(origin.kind, origin.device.name, origin.engine or engine, origin.error)
    return Costs(times.tables(settings, graphs, experts), origin.source, notes=origin.notes, error=error)


def shape_of(model: Model) -> str:
    """The geometry that step times depend on, as one comparable line."""
    parts = [
        f"{model.num_layers} layers of {model.hidden}",
        f"{model.num_heads}/{model.num_kv_heads} heads of {model.head_dim}",
        f"MLP {model.mlp_width}",
        f"vocabulary {model.vocab}",
    ]
    if model.mla is not None:
        parts.append(f"MLA {model.mla.q_lora_rank}/{model.mla.kv_lora_rank}+{model.mla.rope_head_dim}")
    if model.moe is not None:
        moe = model.moe
        parts.append(
            f"{moe.experts_per_token} of {moe.num_experts} experts of {moe.expert_width}, shared {moe.shared_width}"
        )
    return ", ".join(parts)


def check_fits(origin: Origin, deployment: Deployment, name: str, dp: int = 1, ep: int = 1) -> None:
    """UsageError of one line where step times hold for something else than this deployment."""
    asked = [
        ("model", origin.shape == shape_of(deployment.model), origin.model, deployment.model.name),
        ("dtype", origin.dtype == deployment.dtype, origin.dtype, deployment.dtype),
        ("kv_dtype", origin.kv_dtype == deployment.kv_dtype, origin.kv_dtype, deployment.kv_dtype),
        ("tp", origin.tp == deployment.tp, origin.tp, deployment.tp),
        ("dp", origin.dp == dp, origin.dp, dp),
        ("ep", origin.ep == ep, origin.ep, ep),
    ]
    wrong = [f"{key} {has} (the run has {wants})" for key, fits, has, wants in asked if not fits]
    if wrong:
        raise UsageError(f"{name}: these step times are of {', '.join(wrong)}; set that, or build a table for this run")


# ---------------------------------------------------------------- the file


def save_step_times(times: StepTimes, path: Path) -> None:
    """Write the file; the same data gives the same bytes."""
    arrays: dict[str, Any] = {}
    bits: dict[str, list[int]] = {}
    for name in _LINES:
        line: Line = getattr(times, name)
        arrays[name], bits[name] = line.ns.astype(np.float32), [line.bits]
    for name in _GRIDS:
        grid: Grid = getattr(times, name)
        bits[name] = [grid.row_bits, grid.column_bits]
        arrays[name] = grid.compute_ns.astype(np.float32)
        if np.any(grid.memory_ns):
            arrays[name + "_memory"] = grid.memory_ns.astype(np.float32)
    meta = {
        "format": FORMAT,
        "origin": asdict(times.origin),
        "bits": bits,
        **{name: getattr(times, name) for name in _ONCE},
        "limits": {name: None if np.isinf(n) else n for name, n in zip(LIMIT_NAMES, times.limits, strict=True)},
        "host": times.host,
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, meta=np.array(json.dumps(meta, sort_keys=True)), **arrays)
    try:
        path.write_bytes(buffer.getvalue())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None


def load_step_times(path: Path) -> StepTimes:
    """Read a file of save_step_times. UsageError of one line for anything else."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(str(arrays["meta"]))
        if meta["format"] != FORMAT:
            raise UsageError(f"{path}: {meta['format']!r} is not a format that this version reads; build it again")
        return _of_arrays(meta, arrays)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; `kvbench device build` makes one") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        raise UsageError(f"{path}: not a file of step times; `kvbench device build` makes one") from None


def _of_arrays(meta: dict[str, Any], arrays: dict[str, Any]) -> StepTimes:
    origin = dict(meta["origin"])
    origin["device"] = Device(**origin["device"])
    origin["notes"] = tuple(origin["notes"])

    def line(name: str) -> Line:
        return Line(meta["bits"][name][0], arrays[name].astype(np.float64))

    def grid(name: str) -> Grid:
        compute = np.ascontiguousarray(arrays[name], np.float64)
        memory = np.ascontiguousarray(arrays.get(name + "_memory", np.zeros_like(compute)), np.float64)
        rows, columns = meta["bits"][name]
        return Grid(rows, columns, compute, memory)

    return StepTimes(
        Origin(**origin),
        linear=line("linear"),
        communication=line("communication"),
        head=line("head"),
        prefill=grid("prefill"),
        decode=grid("decode"),
        mixed=grid("mixed"),
        **{name: float(meta[name]) for name in _ONCE},
        limits=tuple(np.inf if meta["limits"][name] is None else float(meta["limits"][name]) for name in LIMIT_NAMES),
        host=meta["host"],
    )
