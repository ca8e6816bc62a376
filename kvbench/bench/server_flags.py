"""Flags of `vllm serve` and `sglang.launch_server`, and the keys that they are. Data, and how a value is read.

Sources: the engines' own lists of arguments (vLLM: EngineArgs; SGLang: ServerArgs). A flag is written here with dashes,
without the two in front; engines take underscores as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UsageError
from ..costs.models import MODELS, find_hub_model
from ..scheduler.rules import EVICTION, POLICIES

Changes = list[str]
"""key=value each."""

ON, OFF = "true", "false"
"""The values of flags that take none."""

_TYPES = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "fp8": "fp8", "w8a8_int8": "int8", "w8a8_fp8": "fp8"}
_TYPES |= {"modelopt": "fp8", "modelopt_fp4": "fp4", "fp8-block": "fp8-block", "compressed-tensors-fp8": "fp8"}
_KV_TYPES = {"auto": "auto", "bfloat16": "bf16", "bf16": "bf16", "half": "fp16", "float16": "fp16"}
_KV_TYPES |= {"fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8_e5m2", "int8": "int8"}
_THOUSANDS = {"k": 1_000, "m": 1_000_000, "K": 1024, "M": 1024**2}


@dataclass(frozen=True)
class Engine:
    """What its command looks like, and what its flags mean.

    preset    that follows it
    programs  words of a command line that start it; the flags come behind
    always    keys that its defaults differ in from kvbench's
    flags     flag -> changes of keys from its value
    switches  those of them that take no value
    idle      flags without influence on what is modelled
    """

    preset: str
    programs: tuple[tuple[str, ...], ...]
    always: tuple[str, ...]
    flags: Mapping[str, Callable[[str], Changes]]
    switches: frozenset[str]
    idle: frozenset[str]


def _as(key: str) -> Callable[[str], Changes]:
    return lambda value: [f"{key}={value}"]


def _fixed(*changes: str) -> Callable[[str], Changes]:
    return lambda value: list(changes)


def _switch(key: str, on: str = ON, off: str = OFF) -> Callable[[str], Changes]:
    return lambda value: [f"{key}={on if value == ON else off}"]


def _whole(key: str) -> Callable[[str], Changes]:
    """A number that may be written as 32k (thousands) or 32K (binary)."""

    def read(value: str) -> Changes:
        times = _THOUSANDS.get(value[-1:], 0)
        try:
            number = float(value[:-1]) * times if times else float(value)
        except ValueError:
            raise UsageError(f"{value!r} is no number of tokens") from None
        return [f"{key}={number:.0f}"]

    return read


def _chosen(key: str, names: Mapping[str, str]) -> Callable[[str], Changes]:
    def read(value: str) -> Changes:
        if value not in names:
            raise UsageError(f"{value!r} is not modelled; known are {', '.join(names)}")
        return [f"{key}={names[value]}"] if names[value] else []

    return read


def _model(value: str) -> Changes:
    """A name of the hub, a built-in name, or a folder with a config.json."""
    if value in MODELS:
        return [f"model={value}"]
    folder = Path(value).expanduser()
    if (folder / "config.json").is_file():
        return [f"model={folder / 'config.json'}"]
    model = find_hub_model(value)
    quantised = ["dtype=fp8"] if "fp8" in value.lower() else []
    return [f"model={model.name}", *quantised]


def _chunk(value: str) -> Changes:
    if value.startswith("-"):
        return ["scheduler.enable_chunked_prefill=false"]
    return [f"scheduler.chunked_prefill_size={value}"]


_COMMON: dict[str, Callable[[str], Changes]] = {
    "model": _model,
    "dtype": _chosen("dtype", {"auto": "", **_TYPES}),
    "quantization": _chosen("dtype", _TYPES),
    "kv-cache-dtype": _chosen("kv_dtype", _KV_TYPES),
    "tensor-parallel-size": _as("tp"),
}

_VLLM: dict[str, Callable[[str], Changes]] = {
    **_COMMON,
    "tp": _as("tp"),
    "max-model-len": _whole("max_model_len"),
    "block-size": _as("block_tokens"),
    "gpu-memory-utilization": _as("cache.memory_utilization"),
    "num-gpu-blocks-override": _as("cache.blocks"),
    "max-num-seqs": _as("scheduler.max_num_seqs"),
    "max-num-batched-tokens": _whole("scheduler.max_num_batched_tokens"),
    "long-prefill-token-threshold": _as("scheduler.long_prefill_token_threshold"),
    "scheduling-policy": _as("scheduler.policy"),
    "enable-prefix-caching": _switch("cache.kind", "hash", "none"),
    "enable-chunked-prefill": _switch("scheduler.enable_chunked_prefill"),
    "async-scheduling": _switch("overlap"),
    "enforce-eager": _fixed("costs.graphs=none"),
}
_VLLM_SWITCHES = ("enable-prefix-caching", "enable-chunked-prefill", "async-scheduling", "enforce-eager")

_SGLANG: dict[str, Callable[[str], Changes]] = {
    **_COMMON,
    "model-path": _model,
    "tp": _as("tp"),
    "tp-size": _as("tp"),
    "context-length": _whole("max_model_len"),
    "page-size": _as("block_tokens"),
    "mem-fraction-static": _as("cache.memory_utilization"),
    "max-running-requests": _as("scheduler.max_running_requests"),
    "max-prefill-tokens": _as("scheduler.max_prefill_tokens"),
    "chunked-prefill-size": _chunk,
    "prefill-max-requests": _as("scheduler.prefill_max_requests"),
    "schedule-policy": _chosen("scheduler.policy", {name: name for name in POLICIES}),
    "schedule-conservativeness": _as("scheduler.schedule_conservativeness"),
    "radix-eviction-policy": _chosen("cache.eviction", {name: name for name in EVICTION}),
    "enable-mixed-chunk": _fixed("scheduler.enable_mixed_chunk=true"),
    "disable-radix-cache": _fixed("cache.kind=none"),
    "disable-overlap-schedule": _fixed("overlap=false"),
    "disable-cuda-graph": _fixed("costs.graphs=none"),
}
_SGLANG_SWITCHES = ("enable-mixed-chunk", "disable-radix-cache", "disable-overlap-schedule", "disable-cuda-graph")

_IDLE_SWITCHES = (
    "trust-remote-code", "disable-log-requests", "enable-log-requests", "disable-log-stats", "enable-auto-tool-choice",
    "disable-uvicorn-access-log", "enable-metrics", "log-requests", "skip-server-warmup", "enable-request-id-headers",
)  # fmt: skip
_IDLE_VALUES = (
    "host", "port", "api-key", "served-model-name", "tokenizer", "tokenizer-path", "tokenizer-mode", "revision", "seed",
    "random-seed", "download-dir", "load-format", "chat-template", "tool-call-parser", "reasoning-parser", "log-level",
    "uvicorn-log-level", "config-format", "root-path", "ssl-keyfile", "ssl-certfile", "max-logprobs", "device",
    "response-role", "generation-config", "watchdog-timeout", "max-log-len",
)  # fmt: skip

ENGINES: dict[str, Engine] = {
    "vLLM": Engine(
        preset="vllm",
        programs=(("vllm", "serve"), ("vllm.entrypoints.openai.api_server",)),
        always=(),
        flags=_VLLM,
        switches=frozenset((*_VLLM_SWITCHES, *_IDLE_SWITCHES)),
        idle=frozenset((*_IDLE_SWITCHES, *_IDLE_VALUES)),
    ),
    "SGLang": Engine(
        preset="sglang",
        programs=(("sglang.launch_server",), ("sglang", "launch_server"), ("sglang", "serve")),
        always=("block_tokens=1",),
        flags=_SGLANG,
        switches=frozenset((*_SGLANG_SWITCHES, *_IDLE_SWITCHES)),
        idle=frozenset((*_IDLE_SWITCHES, *_IDLE_VALUES)),
    ),
}

SHORT = {"tp": "tensor-parallel-size", "q": "quantization", "m": "model"}
"""Flags with one dash."""
