"""The configuration keys of what is worked out without a clock."""

from __future__ import annotations

from ..core.keys import Key

# fmt: off
OFFLINE_KEYS = (
    Key("offline.answers", "bool", True, "", "--cache-only: answers enter the cache; false: prompts alone do"),
    Key("offline.warm_up", "float", 0.0, "share", "--cache-only: requests, the first, not counted", low=0, high=0.99),
)
# fmt: on
