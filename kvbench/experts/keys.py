"""The keys of `[experts]` and `[eplb]`, and the settings they make. Plain Python."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import Key

LOADS = ("uniform", "zipf", "recorded")
BY_STEP, BY_REQUEST = ("rotate", "jump"), ("tenant", "phase")
DRIFTS = ("none", *BY_STEP, *BY_REQUEST)
MODES = ("auto", "normal", "low-latency")
REPLICAS = ("even", "nearest")
POLICY_NAMES = (
    *("deepseek", "deepseek-global", "sglang", "sglang-vec", "vllm"),
    *("vllm-ascend", "vllm-ascend-swift", "vllm-ascend-flashlb"),
)
EPLB_MODES = ("off", "static", "dynamic-sync", "dynamic-async")


@dataclass(frozen=True)
class LoadSettings:
    """How loads of experts come about: `experts.<name>`."""

    load: str = "zipf"
    exponent: float = 0.8
    table: str = ""
    domain: str = ""
    drift: str = "none"
    drift_steps: int = 2000
    phases_differ: bool = True


@dataclass(frozen=True)
class EplbSettings:
    """When and how experts are placed anew: `eplb.<name>`."""

    mode: str = "off"
    policy: str = "vllm"
    window: int = 1000
    interval: int = 3000
    redundant: int = 0
    threshold: float = 1.0
    replicas: str = "even"
    collect_us: float = 20.0
    decide_us: float = 10.0
    async_share: float = 0.2
    fault: str = "none"


EPLB_FAULTS = ("none", "worker_dies", "replicas_differ", "half_switched", "cancelled")

EXPERT_KEYS: tuple[Key, ...] = (
    Key("experts.load", "choice", "zipf", "", "popularity of experts, where they are spread (ep > 1)", LOADS),
    Key("experts.exponent", "float", 0.8, "", "of zipf; each layer has a permutation of its own", low=0.0, high=4.0),
    Key("experts.table", "path", "", "", "JSON counts by layer and expert, of load = recorded"),
    Key(
        "experts.domain",
        "str",
        "",
        "",
        "part of the table, NAME/NAME; several, with commas, follow each other under drift, or are dealt to tenants",
    ),
    Key(
        "experts.drift",
        "choice",
        "none",
        "",
        "popularity changes: slowly (rotate), at once (jump), or with who runs: each tenant or phase has its own",
        DRIFTS,
    ),
    Key("experts.drift_steps", "int", 2000, "steps", "from one popularity to the next", low=1),
    Key("experts.phases_differ", "bool", True, "", "prefill and decode have popularities of their own"),
    Key("experts.seed", "int", -1, "", "of popularities and of every step's choices; -1 is `seed`", low=-1),
    Key("experts.exchange", "choice", "auto", "", "kernels of dispatch and combine; auto: normal with a chunk", MODES),
    Key("experts.dispatch_dtype", "choice", "fp8", "", "of dispatched activations", ("fp8", "bf16")),
    Key("experts.node_devices", "int", 8, "devices", "of a node, linked by the scale-up link", low=1),
    Key("experts.network_gbs", "float", 45.0, "GB/s", "between nodes, per device and direction", low=0.001),
    Key("experts.exchange_us", "float", 30.0, "us", "fixed time of a dispatch or a combine", low=0.0, high=1e6),
)

EPLB_KEYS: tuple[Key, ...] = (
    Key("eplb.mode", "choice", "off", "", "static: placed once, from the loads of a window before", EPLB_MODES),
    Key("eplb.policy", "choice-or-function", "vllm", "", "where experts lie, or FILE.py:FUNCTION", POLICY_NAMES),
    Key("eplb.window", "int", 1000, "steps", "whose loads a decision sees", low=1),
    Key("eplb.interval", "int", 3000, "steps", "between decisions", low=1),
    Key("eplb.redundant", "int", 0, "experts", "slots beyond one an expert, on all devices together", low=0),
    Key("eplb.threshold", "float", 1.0, "", "no decision while balancedness is above; 1 = always", low=0.0, high=1.0),
    Key("eplb.replicas", "choice", "even", "", "which replica a token goes to", REPLICAS),
    Key(
        "eplb.collect_us", "float", 20.0, "us", "a step's loads gathered, in steps that are recorded", low=0.0, high=1e6
    ),
    Key(
        "eplb.decide_us", "float", 10.0, "us", "host time of a decision, for each slot of each layer", low=0.0, high=1e6
    ),
    Key("eplb.async_share", "float", 0.2, "", "of the links, for moves beside the steps", low=0.01, high=0.9),
    Key("eplb.fault", "choice", "none", "", "a fault that is planted on purpose", EPLB_FAULTS),
)
