"""The keys of `[costs]` and the settings they make.

What the defaults rest on. Efficiencies, the gap between kernels, the time of an all-reduce and the floor of a step are
those of the device's class (classes.py), fitted to measured kernels and profiles. Host times are those of the engine's
version, by its preset; without one, a guess. Tokenising and detokenising are guesses. Nothing is calibrated for any one
machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import Key

FITTED_SHARE, FITTED_US = 0.0, -1.0
"""As fitted for the device's class."""


@dataclass(frozen=True)
class CostSettings:
    """Values of COST_KEYS; each field is the key `costs.<field>`."""

    flops_efficiency: float = FITTED_SHARE
    bandwidth_efficiency: float = FITTED_SHARE
    link_efficiency: float = FITTED_SHARE
    allreduce_latency_us: float = FITTED_US
    launch_us: float = FITTED_US
    floor_us: float = FITTED_US
    step_overhead_us: float = 500.0
    request_overhead_us: float = 10.0
    tokenize_us_per_request: float = 0.0
    tokenize_us_per_token: float = 2.0
    detokenize_us_per_token: float = 10.0
    serial_tokenizer: bool = False
    output_us_per_token: float = 0.0
    graphs: str = "none"
    silicon: bool = True


DEFAULTS = CostSettings()
GRAPH_RULES = ("none", "vllm", "vllm-ascend", "sglang")
"""See costs.graphs."""


def _efficiency(name: str, meaning: str) -> Key:
    meaning += "; 0 = as fitted for the device's class"
    return Key(f"costs.{name}", "float", getattr(DEFAULTS, name), "", meaning, low=0.0, high=1.0)


def _time(name: str, meaning: str) -> Key:
    return Key(f"costs.{name}", "float", getattr(DEFAULTS, name), "us", meaning, low=0.0, high=1e6)


def _fitted_time(name: str, meaning: str) -> Key:
    meaning += "; -1 = as fitted for the device's class"
    return Key(f"costs.{name}", "float", getattr(DEFAULTS, name), "us", meaning, low=-1.0, high=1e6)


COST_KEYS: tuple[Key, ...] = (
    _efficiency("flops_efficiency", "share of the dense FLOP/s that matrix products and attention reach"),
    _efficiency("bandwidth_efficiency", "share of the memory bandwidth that reading weights and KV reaches"),
    _efficiency("link_efficiency", "share of the link bandwidth that an all-reduce reaches"),
    _fitted_time("allreduce_latency_us", "fixed time of each of the two all-reduces per layer (tp > 1)"),
    _fitted_time("launch_us", "gap before each kernel of a step"),
    _fitted_time("floor_us", "no step keeps the device for less"),
    _time("step_overhead_us", "host time of a step: schedule, prepare inputs, sample"),
    _time("request_overhead_us", "host time of a step for each sequence in it"),
    _time("tokenize_us_per_request", "delay of a request before it is queued: HTTP, template, hand-over"),
    _time("tokenize_us_per_token", "delay of a request before it is queued, for each prompt token"),
    _time("detokenize_us_per_token", "delay of each token before it is handed out"),
    Key("costs.serial_tokenizer", "bool", False, "", "a server has one tokeniser: prompts wait for those before them"),
    _time("output_us_per_token", "a server has one output stage: time of each token in it, one after the other"),
    Key("costs.graphs", "choice", DEFAULTS.graphs, "", "whose captured graphs pad a step", GRAPH_RULES),
    Key("costs.silicon", "bool", DEFAULTS.silicon, "", "use shipped measurements where one fits, not the datasheet"),
)
