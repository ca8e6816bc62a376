"""Client protocols by the names of the tools, and the keys that they set. No NumPy: the command line reads this.

Sources: `vllm/benchmarks/serve.py` and its random dataset; `sglang/bench_serving.py`; `benchmark_lib.sh` of
InferenceMAX and the client that it calls; `bench_run.sh` as AIConfigurator generates it, and the evaluator of its
release 0.6; the options of AIPerf.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.keys import Key


@dataclass(frozen=True)
class Protocol:
    """The keys of one tool without options, and what they are in words."""

    values: Mapping[str, Any]
    meaning: str


PROTOCOLS: dict[str, Protocol] = {
    "vllm-bench": Protocol(
        {"num_prompts": 1000, "arrivals.exact_rate": True, "client.warm_up": 1, "client.warm_up_prompt": "first"},
        "vllm bench serve: 1,000 prompts, fixed lengths, the first one sent before",
    ),
    "sglang-bench": Protocol(
        {
            "num_prompts": 1000,
            "lengths.output": 1024,
            "client.range_low": 0.0,
            "client.warm_up": 1,
            "client.warm_up_prompt": "first",
            "client.ignore_eos": True,
        },
        "sglang.bench_serving: 1,000 prompts, lengths from 1 up, the first one sent before",
    ),
    "inferencemax": Protocol(
        {
            "client.prompts_per_slot": 10,
            "client.range_low": 0.8,
            "client.warm_up_per_slot": 2,
            "client.warm_up_prompt": "first",
            "client.ignore_eos": True,
        },
        "InferenceMAX: 10 prompts and 2 warm-ups a slot, lengths .8 to 1",
    ),
    "aiconfigurator": Protocol(
        {"client.prompts_per_slot": 20, "client.warm_up_per_slot": 2, "client.ignore_eos": True},
        "AIConfigurator's script: 20 requests and 2 warm-ups a slot, fixed lengths",
    ),
    "aiconfigurator-eval": Protocol(
        {"client.prompts_per_slot": 10, "client.warm_up_per_slot": 2, "client.ignore_eos": True},
        "AIConfigurator's evaluator: 10 requests and 2 warm-ups a slot, fixed lengths",
    ),
    "aiperf": Protocol(
        {"client.prompts_per_slot": 2, "client.min_prompts": 10, "arrivals.concurrency": 1},
        "AIPerf: one slot, 2 requests a slot and at least 10, fixed lengths, no warm-up",
    ),
}

# fmt: off
CLIENT_KEYS: tuple[Key, ...] = (
    Key("client.protocol", "choice", "", "", "the tool whose client this is: sets the keys below and num_prompts",
        ("", *PROTOCOLS)),
    Key("client.prompts_per_slot", "int", 0, "requests", "num_prompts as a multiple of arrivals.concurrency; 0 is off",
        low=0, high=1_000_000),
    Key("client.min_prompts", "int", 0, "requests", "and at least so many", low=0, high=100_000_000),
    Key("client.warm_up", "int", 0, "requests", "sent and answered before the others come; left out of the results",
        low=0, high=1_000_000),
    Key("client.warm_up_per_slot", "int", 0, "requests", "and so many more for each of arrivals.concurrency",
        low=0, high=1000),
    Key("client.warm_up_prompt", "choice", "own", "", "first: all of them are the first prompt of the others, which a "
        "prefix cache then knows", ("own", "first")),
    Key("client.range_low", "float", 1.0, "", "fixed lengths become even draws, from this share of them", low=0,
        high=1),
    Key("client.range_high", "float", 1.0, "", "to this share", low=1, high=100),
    Key("client.ignore_eos", "bool", False, "", "outputs go on to max_tokens"),
)
# fmt: on
