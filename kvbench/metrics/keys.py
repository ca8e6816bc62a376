"""The configuration keys of what is counted as good."""

from __future__ import annotations

from ..core.keys import Key

# fmt: off
SLO_KEYS = (
    Key("slo.ttft", "float", 0.0, "ms", "goodput: time to first token at most; 0 promises nothing", low=0),
    Key("slo.tpot", "float", 0.0, "ms", "goodput: mean time per output token at most; 0 promises nothing", low=0),
    Key("slo.e2el", "float", 0.0, "ms", "goodput: end-to-end latency at most; 0 promises nothing", low=0),
)
# fmt: on

SLO_NAMES = tuple(key.name.partition(".")[2] for key in SLO_KEYS)
