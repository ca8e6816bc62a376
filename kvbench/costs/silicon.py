"""Step times from kernels measured on real devices: aiconfigurator-core (Apache-2.0; extra kvbench[silicon]).

The package has, for a system and an engine, times of each operation of a step, measured or interpolated, and says
which. They are sampled here at the points of the cost tables: what depends on tokens (embedding, norms, projections,
MLP), all-reduces, the output head by sequences, attention of a chunk and of a batch of decodes. Host time is not in
them. Only dense models: it has measured their kernels on H100 and H200.

Decodes beside a chunk are not measured there. They take as many times their time alone as in the profiles of two other
devices (RTX 4090 with Llama 3.1 8B, RTX PRO 6000 with Qwen3 30B-A3B, vLLM 0.19): `BESIDE_PREFILL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..core.errors import UsageError
from .axes import F64, Grid, Line, axis_points
from .config_json import read_config_json
from .devices import DEVICES, Device
from .measured_axes import straight
from .models import MODELS, Model, find_hub_model
from .step_times import Origin, StepTimes, shape_of

PRODUCTS = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block"}
"""dtype -> how the package names matrix products of it; attention and KV stay at 16 bits."""

BESIDE_PREFILL = ((1.0, 8.0, 16.0, 32.0, 64.0, 128.0), (1.3, 1.75, 2.0, 2.1, 2.3, 3.3))
"""Decodes; how many times longer their attention takes beside a prefill chunk: the geometric mean of the medians of
both profiles, over contexts of 256 to 4,096 tokens and chunks of 128 to 2,048. Of more decodes: as of the last."""

LAST_TOKENS, LAST_SEQUENCES, LAST_CONTEXT = 1 << 14, 1 << 10, 1 << 17
_LINE_BITS, _HEAD_BITS, _NEW_BITS, _BATCH_BITS = 3, 2, 2, 1
_KEPT_BITS = 10
"""Of a mantissa: at most .1 %, far below what measurements differ by, and files stay small."""

Operations: TypeAlias = Iterable[tuple[str, float, float, str]]
"""name, ms, energy, source, as the package answers."""


@dataclass
class Probe:
    """One compiled engine of the package, and how much of what it answered was measured."""

    handle: Any
    measured_ms: float = field(default=0.0)
    total_ms: float = field(default=0.0)

    def prefill(self, new: int, context: int) -> dict[str, float]:
        """Operation -> ns of a step that is one chunk."""
        size = {"batch_size": 1, "isl": new + context, "prefix": context, "osl": 1}
        return self._named(self.handle.run_static_per_op(**size, mode="static_ctx")[0])

    def decode(self, batch: int, context: int) -> dict[str, float]:
        """Operation -> ns of a step that is `batch` decodes of so much context each."""
        size = {"batch_size": batch, "isl": max(context, 1), "osl": 2}
        return self._named(self.handle.run_static_per_op(**size, mode="static_gen")[1])

    def _named(self, operations: Operations) -> dict[str, float]:
        out = {}
        for name, ms, _, source in operations:
            out[name.partition("_")[2]] = ms * 1e6
            self.total_ms += ms
            self.measured_ms += ms * {"silicon": 1.0, "mixed": 0.5}.get(source, 0.0)
        return out


def silicon_step_times(system: str, engine: str, model: str, tp: int, dtype: str) -> StepTimes:
    """Step times of a system, engine and model. UsageError: not in the package, or the package is not installed."""
    core = _package()
    device, version = _device(system), _versions(core, system, engine)
    hub_name, shape = _model(Path(core.__file__).parent / "model_configs", model)
    if dtype not in PRODUCTS:
        raise UsageError(f"measured kernels are of {', '.join(PRODUCTS)}, not of {dtype!r}")
    probe = Probe(_compiled(hub_name, system, engine, tp, PRODUCTS[dtype]))
    prefill = _prefill_grid(probe)
    floor = float(prefill.compute_ns.min())
    decode = _decode_grid(probe)
    linear, communication = _by_tokens(probe)
    from importlib.metadata import version as installed

    origin = Origin(
        kind="kernels",
        source=f"kernels measured on {system} under {version} (aiconfigurator-core {installed('aiconfigurator-core')})",
        device=device,
        model=shape.name,
        shape=shape_of(shape),
        dtype=dtype,
        kv_dtype="bf16",
        tp=tp,
        engine=engine,
        licence="Apache-2.0, aiconfigurator-core",
        measured=round(probe.measured_ms / probe.total_ms, 3),
        notes=("decodes beside a prefill chunk: estimated from profiles of two other devices",),
    )
    limits = (LAST_TOKENS, LAST_SEQUENCES, LAST_TOKENS, LAST_CONTEXT, LAST_SEQUENCES, LAST_CONTEXT)
    return StepTimes(
        origin,
        linear=linear,
        communication=communication,
        head=_line(_HEAD_BITS, LAST_SEQUENCES, lambda n: probe.decode(n, 1)["logits_gemm"]),
        prefill=Grid(_NEW_BITS, 0, _rounded(prefill.compute_ns - floor), prefill.memory_ns),
        decode=decode,
        mixed=_beside_prefill(decode),
        prefill_step_ns=floor,
        limits=tuple(float(n) for n in limits),
    )


# ---------------------------------------------------------------- what the package has


def _package() -> Any:
    try:
        import aiconfigurator_core
    except ImportError:
        raise UsageError(
            "measured kernels need aiconfigurator-core 0.12: pip install 'kvbench[silicon]', best into an environment "
            "of its own (0.6 GB)"
        ) from None
    return aiconfigurator_core


def _device(system: str) -> Device:
    systems = {f"{name}_sxm": DEVICES[name] for name in ("h100", "h200")}
    if system not in systems:
        raise UsageError(f"system {system!r}: measured kernels are read for {', '.join(systems)}")
    return systems[system]


def _versions(core: Any, system: str, engine: str) -> str:
    """ "vLLM 0.24.0": the version whose kernels the package answers with."""
    titles = {"vllm": "vLLM", "sglang": "SGLang"}
    if engine not in titles:
        raise UsageError(f"engine {engine!r}: measured kernels are read for {', '.join(titles)}")
    from aiconfigurator_core.sdk.perf_database import get_version_slots

    return f"{titles[engine]} {(get_version_slots(system, engine) or {}).get('current', 'of a version not named')}"


def _model(folder: Path, name: str) -> tuple[str, Model]:
    """The package's own name of a model, and its shape; other names would make it download."""
    own = sorted(path.name.removesuffix("_config.json").replace("--", "/") for path in folder.glob("*_config.json"))
    own = [hub for hub in own if not hub.endswith("_hf_quant")]
    known = {hub for hub in own if hub == name or (name in MODELS and _is(hub, name))}
    if not known:
        dense = ", ".join(hub for hub in own if _is_known(hub))
        raise UsageError(f"model {name!r} is not in aiconfigurator-core; those that kvbench knows too: {dense}")
    hub_name = min(known, key=len)
    shape = read_config_json(str(folder / f"{hub_name.replace('/', '--')}_config.json"))
    if shape.moe is not None or shape.mla is not None:
        raise UsageError(f"model {name!r}: measured kernels are read for dense models with plain attention only")
    return hub_name, next((m for m in MODELS.values() if shape_of(m) == shape_of(shape)), shape)


def _is(hub: str, name: str) -> bool:
    return _is_known(hub) and find_hub_model(hub).name == name


def _is_known(hub: str) -> bool:
    try:
        return find_hub_model(hub).moe is None
    except UsageError:
        return False


def _compiled(model: str, system: str, engine: str, tp: int, products: str) -> Any:
    from aiconfigurator_core.sdk.engine import EngineHandle

    try:
        return EngineHandle.compile(model, system, engine, tp_size=tp, gemm_quant_mode=products)
    except Exception as error:  # whatever the package raises: there is no table
        raise UsageError(f"aiconfigurator-core has no {products} {model} at tp {tp} on {system}: {error}") from None


# ---------------------------------------------------------------- sampled


def _by_tokens(probe: Probe) -> tuple[Line, Line]:
    """Operations by tokens, and the all-reduces among them; both of all layers."""
    points = axis_points(_LINE_BITS, LAST_TOKENS)
    linear, communication = np.zeros_like(points), np.zeros_like(points)
    for i, tokens in enumerate(points):
        operations = probe.prefill(round(tokens), 0)
        for name, ns in operations.items():
            if name.endswith(("_ar", "ar_1", "ar_2", "p2p")):
                communication[i] += ns
            elif name not in ("attention", "logits_gemm"):
                linear[i] += ns
    return Line(_LINE_BITS, _rounded(linear)), Line(_LINE_BITS, _rounded(communication))


def _line(bits: int, last: int, cost: Callable[[int], float]) -> Line:
    return Line(bits, _rounded(np.array([cost(round(n)) for n in axis_points(bits, last)])))


def _prefill_grid(probe: Probe) -> Grid:
    new, context = axis_points(_NEW_BITS, LAST_TOKENS), axis_points(0, LAST_CONTEXT) - 1.0
    ns = np.array([[probe.prefill(round(n), round(c))["attention"] for c in context] for n in new])
    return Grid(_NEW_BITS, 0, ns, np.zeros_like(ns))


def _decode_grid(probe: Probe) -> Grid:
    """Rows by batch; a sum of contexts is spread evenly."""
    batch, sums = axis_points(_BATCH_BITS, LAST_SEQUENCES), axis_points(0, LAST_SEQUENCES * LAST_CONTEXT)
    ns = np.array([[_one_batch(probe, round(n), s) for s in sums] for n in batch])
    return Grid(_BATCH_BITS, 0, _rounded(ns), np.zeros_like(ns))


def _one_batch(probe: Probe, batch: int, context_sum: float) -> float:
    """ns of attention; beyond the longest context as long as its last octave says."""
    context = context_sum / batch
    if context <= LAST_CONTEXT:
        return probe.decode(batch, round(context))["attention"]
    known = np.array([LAST_CONTEXT / 2.0, LAST_CONTEXT])
    costs = np.array([probe.decode(batch, round(c))["attention"] for c in known])
    return float(straight(np.array([context]), known, costs)[0])


def _beside_prefill(decode: Grid) -> Grid:
    batch = axis_points(decode.row_bits, LAST_SEQUENCES)
    factor = np.interp(batch, *BESIDE_PREFILL)[:, None]
    return Grid(decode.row_bits, decode.column_bits, _rounded(decode.compute_ns * factor), decode.memory_ns)


def _rounded(ns: F64) -> F64:
    fraction, exponent = np.frexp(ns)
    return np.ldexp(np.round(np.ldexp(fraction, _KEPT_BITS)), exponent - _KEPT_BITS)
