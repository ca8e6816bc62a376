"""Options of `kvbench run` that are keys by another name; `kvbench.run` takes them too."""

from __future__ import annotations

KEY_OF_OPTION = {
    "clock": "clock",
    "preset": "preset",
    "model": "model",
    "device": "device",
    "step_times": "step_times",
    "tp": "tp",
    "replicas": "fleet.replicas",
    "router": "router.policy",
    "dp": "dp",
    "ep": "ep",
    "dtype": "dtype",
    "num_prompts": "num_prompts",
    "request_rate": "arrivals.rate",
    "arrivals": "trace.arrivals",
    "burstiness": "arrivals.burstiness",
    "max_concurrency": "arrivals.concurrency",
    "client": "client.protocol",
    "seed": "seed",
}
"""Parameter name -> key."""


def flag(option: str) -> str:
    """As the command line writes it, and as errors name it."""
    return f"--{option.replace('_', '-')}"
