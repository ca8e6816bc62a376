"""Step times from the profile of a machine: CSV files of kernel times in LLMServingSim's layout.

    DIR/meta.yaml                     model, gpu, engine version (three of its lines are read)
    DIR/tpN/dense.csv                 layer, tokens, time_us
    DIR/tpN/per_sequence.csv          layer, sequences, time_us: output head, sampler
    DIR/tpN/attention.csv             prefill_chunk, kv_prefill, n_decode, kv_decode, time_us; of one layer
    DIR/tpN/moe.csv                   tokens, activated_experts, time_us; of one layer, with the model's experts

A step is: embedding and last norm once; in every layer two norms, the projections, rotary embedding, attention and the
MLP or the experts. Attention has four dimensions there and three tables here: prefill alone; decodes alone; and what
decodes add to a chunk, the median over chunks: it depends little on the chunk (it is 1.2 to 4 times the cost alone).
Experts: as many as uniform routing touches; with expert parallelism a rank has its share of them and sees the tokens
of all data-parallel replicas, which are padded to the widest.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.errors import UsageError
from .axes import F64, Grid, Line, axis_points
from .deployment import Deployment
from .devices import Device, find_hardware
from .keys import CostSettings
from .measured_axes import decode_grid, line_of, prefill_grid, straight
from .models import Model, find_hub_model
from .roofline import make_rank
from .step_times import Origin, StepTimes, shape_of

Rows = dict[int, tuple[F64, F64]]

_LINE_BITS = 6
"""Every multiple of 16 up to 2,048 is a point: profiles have no more."""
_NEW_BITS, _CONTEXT_BITS, _SUM_BITS = 3, 1, 1
_ONCE = ("embedding", "final_layernorm")
_TWICE = ("layernorm",)
_NEEDED = ("qkv_proj", "o_proj")
_MOE_COLUMNS = ("tokens", "activated_experts")
_MLP = ("gate_up_proj", "down_proj")


@dataclass(frozen=True)
class Profile:
    """What a profile folder says of itself, and the folder of one tensor-parallel degree.

    link_gbs   between its devices, in GB/s; 0: as the device's class reaches of its datasheet
    """

    folder: Path
    model: Model
    device: Device
    dtype: str
    engine: str
    dp: int = 1
    ep: int = 1
    link_gbs: float = 0.0


def find_profile(folder: Path, tp: int, model: Model | None, device: Device | None) -> Profile:
    """The profile in a folder. UsageError: no profile, no such degree, an unknown model or device."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; a profile is a folder of CSV files (LLMServingSim's layout)")
    degrees = sorted(int(f.name[2:]) for f in folder.glob("tp*") if f.name[2:].isdigit())
    if tp not in degrees:
        has = ", ".join(f"tp {n}" for n in degrees) or "none: is it a profile folder?"
        raise UsageError(f"{folder}: no profile of tp {tp}; there is {has}")
    meta = _meta(folder / "meta.yaml")
    return Profile(
        folder / f"tp{tp}",
        model or find_hub_model(meta.get("model", "?")),
        device or find_hardware(meta.get("hardware", "?")),
        {"bfloat16": "bf16", "float16": "fp16"}.get(meta.get("variant", "bf16"), meta.get("variant", "bf16")),
        f"vLLM {meta['vllm_version']}" if "vllm_version" in meta else "an engine not named",
    )


def _meta(path: Path) -> dict[str, str]:
    """The plain `key: value` lines of the top level."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return {}
    return {m[1]: m[2].strip("'\"") for m in re.finditer(r"^(\w+): (\S.*?)\s*$", text, re.MULTILINE)}


def profile_step_times(profile: Profile, tp: int) -> StepTimes:
    """Step times of a profile. UsageError of one line where it is incomplete."""
    layers = profile.model.num_layers
    linear, last_tokens = _linear(profile)
    head, last_sequences = _head(profile.folder / "per_sequence.csv")
    prefill, decode, mixed, floor, last = _attention(profile.folder / "attention.csv", layers)
    ranks = f"tp {tp}" + (f", dp {profile.dp}, ep {profile.ep}" if profile.dp > 1 else "")
    origin = Origin(
        kind="profile",
        source=f"profile of {profile.engine} on {profile.device.title} ({ranks})",
        device=profile.device,
        model=profile.model.name,
        shape=shape_of(profile.model),
        dtype=profile.dtype,
        kv_dtype="bf16",
        tp=tp,
        dp=profile.dp,
        ep=profile.ep,
        measured=1.0,
        notes=_communication_notes(profile, tp),
    )
    return StepTimes(
        origin,
        linear=linear,
        communication=_communication(profile, tp, last_tokens),
        head=head,
        prefill=prefill,
        decode=decode,
        mixed=mixed,
        prefill_step_ns=float(floor),
        limits=(last_tokens, last_sequences, *last),
    )


# ---------------------------------------------------------------- tokens and sequences


def _linear(profile: Profile) -> tuple[Line, float]:
    """All that depends on the number of tokens; ns."""
    path, layers = profile.folder / "dense.csv", profile.model.num_layers
    by_layer = _by_layer(path, "tokens")
    is_moe = profile.model.moe is not None
    _need(path, by_layer, _NEEDED if is_moe else (*_NEEDED, *_MLP))
    known = by_layer[_NEEDED[0]][0]
    total = np.zeros_like(known)
    for layer, (tokens, ns) in by_layer.items():
        times = 1 if layer in _ONCE else 2 * layers if layer in _TWICE else layers
        total = total + times * straight(known, tokens, ns)
    if is_moe:
        total = total + _experts(profile, known)
    return line_of(known, total, _LINE_BITS), float(known[-1])


def _experts(profile: Profile, tokens: F64) -> F64:
    """Routed experts of all layers on one rank, ns."""
    moe = profile.model.moe
    assert moe is not None
    rows = _gather((int(n), used, us * 1e3) for n, used, us in _read(profile.folder / "moe.csv", _MOE_COLUMNS))
    routed = tokens * profile.dp
    touched = moe.num_experts / profile.ep * (1.0 - (1.0 - moe.experts_per_token / moe.num_experts) ** routed)
    known = np.array(sorted(rows), np.float64)
    by_row = np.stack([straight(np.maximum(touched, 1.0), *rows[int(n)]) for n in known])
    own = routed / profile.ep
    one_layer = np.array([straight(own[i : i + 1], known, by_row[:, i])[0] for i in range(own.size)])
    return one_layer * (profile.model.num_layers - moe.dense_layers)


def _head(path: Path) -> tuple[Line, float]:
    """Output head and sampler by sequences; ns."""
    by_layer = _by_layer(path, "sequences")
    _need(path, by_layer, ("lm_head",))
    known = by_layer["lm_head"][0]
    total = np.sum([straight(known, *points) for points in by_layer.values()], axis=0)
    return line_of(known, total, _LINE_BITS), float(known[-1])


def _communication(profile: Profile, tp: int, last: float) -> Line:
    """All-reduces of tensor parallelism and, between replicas that share experts, gather and scatter of every token."""
    settings = CostSettings(link_efficiency=link_share(profile.device, profile.link_gbs))
    rank = make_rank(Deployment(profile.device, profile.model, profile.dtype, tp=tp), settings)
    tokens = axis_points(0, int(last))
    return Line(0, rank.communication_ns(tokens) + rank.exchange_ns(tokens, profile.dp))


def link_share(device: Device, gbs: float) -> float:
    """Of the link of its datasheet; 0 where that has none, or nothing is known of the machine's."""
    own = device.scale_up or device.host_link
    return min(gbs * 1e9 / own, 1.0) if own else 0.0


def _communication_notes(profile: Profile, tp: int) -> tuple[str, ...]:
    if tp == profile.dp == 1:
        return ()
    of = f"{profile.link_gbs:g} GB/s between devices, as stated" if profile.link_gbs else "links by datasheet"
    return (f"communication is not in a profile: {of}",)


# ---------------------------------------------------------------- attention


def _attention(path: Path, layers: int) -> tuple[Grid, Grid, Grid, float, tuple[float, ...]]:
    """Prefill, decode alone, decode beside a chunk; the floor of prefill; up to where each was measured."""
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    time: dict[tuple[int, int, int, int], float] = {}
    for line in _read(path, names):
        chunk, before, batch, context = (int(value) for value in line[:4])
        time[chunk, before, batch, context] = line[4] * 1e3 * layers
    prefill = _gather((c, k, ns) for (c, k, n, _), ns in time.items() if n == 0 and c > 0)
    alone = _gather((n, d, ns) for (c, _, n, d), ns in time.items() if c == 0 and n > 0)
    if not prefill or not alone:
        raise UsageError(f"{path}: needs rows of chunks alone (n_decode 0) and of decodes alone (prefill_chunk 0)")
    beside = _beside(time) or alone
    batch, context = max(alone), int(max(contexts[-1] for contexts, _ in alone.values()))
    beside = _continued(beside, alone)
    floor = min(ns[0] for _, ns in prefill.values())
    prefill = {chunk: (contexts, ns - floor) for chunk, (contexts, ns) in prefill.items()}
    axes = (batch, context, 0, _SUM_BITS)
    limits = (max(prefill), max(c[-1] for c, _ in prefill.values()), batch, context)
    return (
        prefill_grid(prefill, _NEW_BITS, _CONTEXT_BITS),
        decode_grid(alone, *axes),
        decode_grid(beside, *axes),
        floor,
        tuple(float(n) for n in limits),
    )


def _beside(time: dict[tuple[int, int, int, int], float]) -> Rows:
    """What decodes add to a chunk, by (decodes, context): the median over chunks, never below nothing."""
    added = defaultdict(list)
    for (chunk, before, batch, context), ns in time.items():
        if chunk > 0 and batch > 0 and (chunk, before, 0, 0) in time:
            added[batch, context].append(ns - time[chunk, before, 0, 0])
    return _gather((n, d, max(float(np.median(all_ns)), 0.0)) for (n, d), all_ns in added.items())


def _continued(beside: Rows, alone: Rows) -> Rows:
    """Batches that were measured alone only (their chunk would not fit a step): as many times as the last that was."""
    last = max(beside)
    contexts, ns = beside[last]
    factor = ns / straight(contexts, *alone[last])
    out = dict(beside)
    for batch, (own, own_ns) in alone.items():
        if batch > last:
            out[batch] = (own, own_ns * np.interp(own, contexts, factor))
    return out


# ---------------------------------------------------------------- files


def _read(path: Path, names: tuple[str, ...]) -> Iterable[list[float]]:
    """Lines as numbers in the order of `names`, time_us last. UsageError names the file, and the line or column."""
    columns = (*names, "time_us")
    for number, row in _lines(path, columns):
        try:
            values = [float(row[name]) for name in columns]
        except (TypeError, ValueError):
            raise UsageError(f"{path}:{number}: a value is missing or not a number") from None
        if not all(np.isfinite(values)) or min(values) < 0:
            raise UsageError(f"{path}:{number}: counts and times are 0 or more")
        yield values


def _lines(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            absent = [name for name in columns if name not in (reader.fieldnames or ())]
            if absent:
                raise UsageError(f"{path}: incomplete profile: no column {', '.join(absent)}")
            yield from enumerate(reader, 2)
    except OSError as error:
        raise UsageError(f"{path}: incomplete profile: {error.strerror}") from None


def _gather(points: Iterable[tuple[int, float, float]]) -> Rows:
    """(row, column, ns) in any order -> row -> (ascending columns, ns)."""
    by_row: dict[int, dict[float, float]] = defaultdict(dict)
    for row, column, ns in points:
        by_row[row][column] = ns
    return {
        row: (np.array(sorted(found), np.float64), np.array([found[c] for c in sorted(found)]))
        for row, found in by_row.items()
    }


def _by_layer(path: Path, count: str) -> dict[str, tuple[F64, F64]]:
    """layer -> (counts, ns)."""
    found: dict[str, dict[float, float]] = defaultdict(dict)
    for number, row in _lines(path, ("layer", count, "time_us")):
        try:
            found[row["layer"]][float(row[count])] = float(row["time_us"]) * 1e3
        except (TypeError, ValueError):
            raise UsageError(f"{path}:{number}: a value is missing or not a number") from None
    return {
        layer: (np.array(sorted(points)), np.array([points[c] for c in sorted(points)]))
        for layer, points in found.items()
    }


def _need(path: Path, by_layer: dict[str, tuple[F64, F64]], layers: tuple[str, ...]) -> None:
    absent = [layer for layer in layers if layer not in by_layer]
    if absent:
        raise UsageError(f"{path}: incomplete profile: no rows of {', '.join(absent)}")
